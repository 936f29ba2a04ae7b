"""From the notes to the code: every row is there, and everything it names exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "notes-to-code.md").read_text(encoding="utf-8")
ROWS = [*range(1, 19), *range(20, 29), *range(30, 38), *range(40, 50), *range(50, 59)]


def test_every_row_of_the_notes_has_one_line():
    assert re.findall(r"^\| (N\d\d) \|", PAGE, re.M) == [f"N{row:02d}" for row in ROWS]


def test_everything_a_row_names_exists():
    import pellucid as pc

    names = set(re.findall(r"\bpc\.(\w+)", PAGE))
    assert len(names) > 50
    assert not {name for name in names if not hasattr(pc, name)}
    for module, name in set(re.findall(r"pellucid\.(theory|glass)\.(\w+)", PAGE)):
        assert hasattr(importlib.import_module(f"pellucid.{module}"), name), name
    files = set(re.findall(r"`((?:tests|examples)/[\w/]+\.py)`", PAGE))
    assert not {file for file in files if not (ROOT / file).exists()}
