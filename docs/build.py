"""Makes the documentation pages: `make docs`. Every block is executed first, so a page that lies is not built."""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from runner import PAGES, ROOT, parser, run_page

OUT = ROOT / "build" / "docs"
FRAME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · pellucid</title>
<link rel="stylesheet" href="style.css">
<nav><a class="home" href="index.html">pellucid</a>{links}</nav>
<main>
{body}
</main>
</html>
"""


def main() -> None:
    printed = {}
    for page in PAGES:
        print(f"running {page.relative_to(ROOT)}", flush=True)
        printed[page] = run_page(page)
    pages = ordered([page for page in PAGES if page.parent == ROOT / "docs"])
    OUT.mkdir(parents=True, exist_ok=True)
    for page in pages:
        (OUT / f"{page.stem}.html").write_text(render(page, pages, printed[page]), encoding="utf-8")
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, OUT)
    light, dark = HtmlFormatter(style="friendly"), HtmlFormatter(style="github-dark")
    colours = [light.get_style_defs(".code"), "@media (prefers-color-scheme: dark) {", dark.get_style_defs(".code"), "}"]
    style = (ROOT / "docs" / "style.css").read_text(encoding="utf-8")
    (OUT / "style.css").write_text("\n".join([*colours, style]), encoding="utf-8")
    print(f"{len(pages)} pages: {(OUT / 'index.html').relative_to(ROOT)}")


def ordered(pages: list[Path]) -> list[Path]:
    """The index first, then the pages as it lists them, then the rest."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(([\w-]+\.md)\)", index)
    rank = {name: i for i, name in reversed(list(enumerate(["index.md", *listed])))}
    return sorted(pages, key=lambda page: (rank.get(page.name, len(rank)), page.name))


def title(page: Path) -> str:
    return re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)[1].replace("`", "")


def render(page: Path, pages: list[Path], printed: dict[int, str]) -> str:
    """A page as HTML, with what its blocks printed, and links to the others beside it."""
    markdown = parser()
    markdown.add_render_rule("fence", fence)
    body = markdown.render(page.read_text(encoding="utf-8"), {"printed": printed})
    body = re.sub(r"<h([23])>(.*?)</h\1>", anchor, body)
    body = re.sub(r'href="([\w-]+)\.md(#[\w-]+)?"', r'href="\1.html\2"', body)
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    links = "".join(
        f'<a href="{p.stem}.html"{" aria-current=page" if p == page else ""}>{html.escape(title(p))}</a>'
        for p in pages if p.stem != "index"
    )  # fmt: skip
    return FRAME.format(title=html.escape(title(page)), links=links, body=body)


def fence(self: object, tokens: list, i: int, options: object, env: dict) -> str:
    """A block of code in colour; in place of a text block after python, what was printed this time."""
    language, content = tokens[i].info or "text", tokens[i].content
    if language == "text":
        if i > 0 and tokens[i - 1].type == "fence" and tokens[i - 1].info == "python":
            return f'<pre class="output">{html.escape(env["printed"][tokens[i - 1].map[0] + 2])}</pre>\n'
        return f'<pre class="plain">{html.escape(content)}</pre>\n'
    return highlight(content, get_lexer_by_name(language), HtmlFormatter(cssclass="code"))


def anchor(found: re.Match) -> str:
    """A heading that can be linked to."""
    level, text = found.groups()
    name = re.sub(r"[^\w]+", "-", re.sub(r"<.*?>", "", text).lower()).strip("-")
    return f'<h{level} id="{name}">{text}</h{level}>'


if __name__ == "__main__":
    sys.exit(main())
