"""The progress bar: epoch, loss, score, samples per second, time left. Silent where nobody watches."""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["SILENT", "Progress", "Silent"]


class Silent:
    """No progress bar."""

    def advance(self, rows: int, epoch: int, text: str) -> None: ...


SILENT = Silent()


class Progress:
    """Two lines that are redrawn a few times a second."""

    def __init__(self, bar: Any, task: Any, epochs: int) -> None:
        self.bar, self.task, self.epochs = bar, task, epochs

    def advance(self, rows: int, epoch: int, text: str) -> None:
        self.bar.update(self.task, advance=rows, description=f"epoch {epoch}/{self.epochs}", text=text)


@contextlib.contextmanager
def progress(wanted: bool, epochs: int, done: int, rows: int) -> Any:
    """Show progress over `rows` rows if it is wanted and a terminal is there to show it on."""
    if not wanted:
        yield SILENT
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield SILENT
        return

    class Speed(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.speed or (task.finished and task.elapsed and task.completed / task.elapsed)
            return Text(f"{speed:,.0f} samples/s" if speed else "starting …", style="cyan")

    class TwoLines(Bar):  # the numbers get a line of their own, so that all fits into 80 columns
        def get_renderables(self) -> Any:
            yield self.make_tasks_table(self.tasks)
            yield from (Text(task.fields["text"], style="bold", no_wrap=True, overflow="ellipsis") for task in self.tasks)

    columns = (TextColumn("{task.description}"), BarColumn(30), Speed(), TimeRemainingColumn(elapsed_when_finished=True))
    with TwoLines(*columns, console=console, speed_estimate_period=5) as bar:
        yield Progress(bar, bar.add_task("starting", total=rows, completed=done, text=""), epochs)
