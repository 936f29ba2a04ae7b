"""What README.md, docs/ and examples/ show is true."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from pathlib import Path

import pytest

from .tiny_data import write_tiny_data

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("docs_runner", ROOT / "docs" / "runner.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


@pytest.mark.parametrize("page", runner.PAGES, ids=lambda path: path.name)
def test_every_block_of_a_page_runs_and_prints_what_is_shown(page):
    runner.run_page(page)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("example", runner.EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_and_says_something(example, data):
    assert runner.run_example(example, data).strip()


@pytest.mark.parametrize("page", runner.PAGES, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_index_links_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    unlinked = [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index and page.name != "index.md"]
    assert not unlinked


def test_a_page_that_prints_something_else_is_caught(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match="line 2 prints something else"):
        runner.run_page(page)


def test_dots_stand_for_anything_and_one_namespace_serves_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 41\n```\nThen:\n```python\nprint('took', 0.123, 's:', x + 1)\n```\n```text\ntook ... s: 42\n```\n")
    runner.run_page(page)


def test_rendered_pages_link_to_each_other(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    build = importlib.import_module("build")
    pages = build.ordered(sorted((ROOT / "docs").glob("*.md")))
    assert pages[0].name == "index.md"
    for page in pages:
        text = build.render(page, pages, defaultdict(str))
        assert not set(re.findall(r'href="([\w-]+)\.html', text)) - {p.stem for p in pages}
        assert 'href="style.css"' in text
        assert ".md" not in "".join(re.findall(r'href="[^"]*"', text))


def test_the_readme_opens_with_the_two_commands():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line.split("#")[0].strip() for line in lines if line.startswith("make ")][:2] == ["make demo", "make test"]
    assert next(i for i, line in enumerate(lines) if line.startswith("make demo")) < 10
