"""Runs what the documentation shows, so that it stays true.

Every ```python block of a page is executed, from top to bottom, in one namespace for the page. Where a ```text
block follows it directly, that must be what the python block prints; `...` stands for anything, as in doctest (for
times and speeds). Other blocks are only shown. Pages run in an empty folder: what they write is thrown away.

Examples are run as programs, with PELLUCID_SHORT=1, which asks them to take a moment only, and PELLUCID_DATA, the
folder of the data sets.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


class Block(NamedTuple):
    """A python block, the line it begins on, and what it is said to print (None: nothing is said)."""

    line: int
    code: str
    expected: str | None


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable("table")


def blocks(text: str) -> Iterator[Block]:
    """The python blocks of a page."""
    tokens = parser().parse(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "fence" and token.info == "python":
            shown = following is not None and following.type == "fence" and following.info == "text"
            yield Block(token.map[0] + 2, token.content, following.content if shown else None)


def run_page(path: Path) -> dict[int, str]:
    """Execute a page; returns what each block printed, by line. An error or a wrong output is raised with its place."""
    outputs = {}
    module = types.ModuleType(f"page_{path.stem.replace('-', '_')}")  # a real module, so that its functions can be found by name
    sys.modules[module.__name__] = module
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for block in blocks(path.read_text(encoding="utf-8")):
                printed = io.StringIO()
                program = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
                with contextlib.redirect_stdout(printed):
                    exec(program, module.__dict__)
                outputs[block.line] = printed.getvalue()
                if block.expected is not None:
                    compare(f"{path.name}, line {block.line}", block.expected, outputs[block.line])
    finally:
        del sys.modules[module.__name__]
    return outputs


def compare(where: str, expected: str, printed: str) -> None:
    """Raise an error that shows how `printed` differs from `expected`."""
    want, got = ("\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n" for text in (expected, printed))
    if not doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS):
        difference = difflib.unified_diff(want.splitlines(True), got.splitlines(True), "shown on the page", "printed")
        raise AssertionError(f"{where} prints something else than the page shows:\n{''.join(difference)}\nprinted was:\n{got}")


def run_example(path: Path, data: Path) -> str:
    """Run an example as a program in its short form, on the data sets in the folder `data`; returns what it printed."""
    sources = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PELLUCID_SHORT": "1", "PELLUCID_DATA": str(data), "PYTHONPATH": sources, "PYTHONIOENCODING": "utf-8"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", str(path)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise AssertionError(f"{path.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
