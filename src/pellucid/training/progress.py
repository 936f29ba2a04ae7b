"""The progress bar: epoch, loss, score, samples per second, time left. Silent where nobody watches."""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["Progress", "Silent"]


class Silent:
    """No progress bar."""

    def advance(self, rows: int, epoch: int, text: str) -> None: ...


class Progress:
    """A line that is redrawn a few times a second."""

    def __init__(self, bar: Any, task: Any, epochs: int) -> None:
        self.bar, self.task, self.epochs = bar, task, epochs

    def advance(self, rows: int, epoch: int, text: str) -> None:
        self.bar.update(self.task, advance=rows, description=f"epoch {epoch}/{self.epochs}", text=text)


@contextlib.contextmanager
def progress(wanted: bool, epochs: int, done: int, rows: int) -> Any:
    """Show progress over `rows` rows if it is wanted and a terminal is there to show it on."""
    if not wanted:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield Silent()
        return

    class Speed(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.0f} samples/s" if task.speed else "compiling …", style="cyan")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[text]}", style="bold"),
        Speed(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, speed_estimate_period=5) as bar:
        yield Progress(bar, bar.add_task("starting", total=rows, completed=done, text=""), epochs)
