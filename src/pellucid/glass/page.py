"""A page: titled sections of lines, each a formula, the formula with numbers in it, and the result."""

from __future__ import annotations

import html as escape_html
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .notation import Matrix, Parts, latex, mathml, text

__all__ = ["Line", "Page", "Section", "document"]

WIDTH = 108  # signs in a line of plain text
LONG = 48  # signs of a formula that has a line of its own

STYLE = """
:root{color-scheme:light}
body{font:17px/1.5 Georgia,'DejaVu Serif',serif;max-width:76rem;margin:2rem auto;padding:0 1.5rem;color:#1c2430;background:#fff}
h1{font-size:1.5rem;margin:0 0 .2rem} h2{font-size:1.1rem;margin:1.6rem 0 .3rem;padding-bottom:.15rem;border-bottom:2px solid var(--c,#bbb)}
h2.forward{--c:#2f6fb7} h2.loss{--c:#7a4fb0} h2.backward{--c:#c4561a} h2.update{--c:#2c8a57} h2.check{--c:#666}
p.lead{margin:.1rem 0 .6rem;color:#566} .note{color:#677;font-size:.82rem} td .note{display:block}
table.lines{border-collapse:collapse} table.lines td{padding:.28rem .5rem .28rem 0;vertical-align:middle}
td.where{color:#89a;font:12px/1.3 ui-monospace,'DejaVu Sans Mono',monospace;white-space:nowrap;padding-right:1rem!important}
td.formula{white-space:nowrap;min-width:13.5rem} td.formula[colspan]{white-space:normal} td.where{min-width:5rem}
td math{margin:.12rem 0} .result{display:inline-block} .result math{font-weight:600}
math{font-size:1.02em} mtable.matrix{font-size:.86em;border-left:1.5px solid;border-right:1.5px solid;margin:0 .28em;
--t:linear-gradient(currentColor,currentColor);background:var(--t) left top/.35em 1.5px no-repeat,var(--t) right top/.35em 1.5px no-repeat,
var(--t) left bottom/.35em 1.5px no-repeat,var(--t) right bottom/.35em 1.5px no-repeat}
mtable.matrix.blank{background-color:#fff2e6} mtd{padding:.14em .4em}
.blank{color:#c4561a;background:#fff2e6}
table.grid{border-collapse:collapse;font-size:.86rem} table.grid th{text-align:left;font-weight:600;border-bottom:1px solid #999}
table.grid td,table.grid th{padding:.2rem .8rem .2rem 0} table.grid td.n{font-variant-numeric:tabular-nums}
.ok{color:#1c7a45;font-weight:600} .bad{color:#c22;font-weight:700} code,pre{font:13px/1.4 ui-monospace,'DejaVu Sans Mono',monospace}
"""


@dataclass(frozen=True)
class Line:
    """formula = numbers = result; what is missing is left out."""

    formula: str
    numbers: Parts | None = None
    result: Matrix | None = None
    where: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if any(isinstance(part, Matrix) and part.cells is None for part in self.numbers or []):
            object.__setattr__(self, "numbers", None)  # too large to be read: the formula and its result say more
        if self.numbers:
            object.__setattr__(self, "numbers", tidy(self.numbers))


@dataclass
class Section:
    """A heading and what stands under it: lines, or an object with `text`, `html` and `latex` of its own."""

    title: str
    lines: list[Line] = field(default_factory=list)
    lead: str = ""
    kind: str = ""
    insert: Any = None


@dataclass
class Page:
    """Prints as text; ``page.html()`` and ``page.latex()`` give the other two, ``page.save(path)`` writes by suffix."""

    title: str
    lead: str
    sections: list[Section]

    def text(self) -> str:
        """The page for a terminal."""
        out = [self.title, "═" * len(self.title), self.lead, ""]
        for s in self.sections:
            out += [f"── {s.title} " + "─" * max(0, WIDTH - 5 - len(s.title)), *textwrap.wrap(s.lead, WIDTH)]
            for line in s.lines:
                out += text_line(line)
            out += [str(s.insert), ""] if s.insert is not None else [""]
        return "\n".join(out).rstrip() + "\n"

    def html(self) -> str:
        """The page as one HTML file that needs nothing else."""
        out = [f"<h1>{escape_html.escape(self.title)}</h1>", f"<p class=lead>{escape_html.escape(self.lead)}</p>"]
        for s in self.sections:
            out.append(f'<h2 class="{s.kind}">{escape_html.escape(s.title)}</h2>')
            out += [f"<p class=note>{escape_html.escape(s.lead)}</p>"] if s.lead else []
            out += ["<table class=lines>", *map(html_line, s.lines), "</table>"] if s.lines else []
            if s.insert is not None:
                out.append(s.insert.html() if hasattr(s.insert, "html") else f"<pre>{escape_html.escape(str(s.insert))}</pre>")
        return document(self.title, "\n".join(out))

    def latex(self) -> str:
        """The page as a LaTeX document."""
        out = [r"\documentclass{article}", r"\usepackage{amsmath}", r"\usepackage[a3paper,margin=2cm]{geometry}"]
        out += [r"\allowdisplaybreaks", r"\begin{document}"]
        out += [rf"\section*{{{latex_words(self.title)}}}", latex_words(self.lead)]
        for s in self.sections:
            out += [rf"\subsection*{{{latex_words(s.title)}}}", latex_words(s.lead)]
            rows = [" \\\\\n".join(latex_rows(line)) for line in s.lines]
            out += [r"\begin{align*}", " \\\\\n".join(rows), r"\end{align*}"] if rows else []
            out += [r"\begin{verbatim}", ascii_words(str(s.insert)), r"\end{verbatim}"] if s.insert is not None else []
        return "\n".join([*out, r"\end{document}", ""])

    def save(self, path: Any) -> Path:
        """Write the page: .html, .tex, or anything else as plain text."""
        path = Path(path)
        write = {".html": self.html, ".tex": self.latex}.get(path.suffix, self.text)
        path.write_text(write(), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html()


def document(title: str, body: str) -> str:
    """An HTML file around a body, with the style of all our pages."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape_html.escape(title)}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'


def text_line(line: Line) -> list[str]:
    left, equals, numbers = line.formula, "   = ", numbers_of(line)
    where = (f"   [{line.where}]" if line.where else "") + (f"   ({line.note})" if line.note else "")
    if len(left + where) > WIDTH:
        rows = textwrap.wrap(left, WIDTH, subsequent_indent="      ")
        left, where = "\n".join([*rows, f"     {where[2:]}"]), ""
    if not numbers and line.result is None:
        return [left + where]
    if not numbers:
        block = text([left, " = ", result_of(line), *([where] if where else [])])
        return [*block, ""] if "\n" not in left and max(map(len, block)) <= WIDTH else [left + where, *text([equals, result_of(line)]), ""]
    result = [[equals if i == 0 else " = ", result_of(line)] for i in (0, 1)] if line.result is not None else [[], []]
    block = text([equals, *numbers, *result[1]])
    if max(map(len, block)) > WIDTH:
        pieces = wrapped([equals, *numbers])
        block = [row for piece in pieces for row in text(piece)] + (text(result[0]) if result[0] else [])
    return [left + where, *block, ""]


def wrapped(parts: Parts) -> list[Parts]:
    """The parts in pieces that fit a line, broken before a sign."""
    pieces: list[Parts] = [[]]
    for piece in pieces_of(parts):
        if pieces[-1] and max(map(len, text([*pieces[-1], *piece]))) > WIDTH:
            pieces.append(["     "])
        pieces[-1] += piece
    return pieces


def pieces_of(parts: Parts) -> list[Parts]:
    """The parts cut before every sign that joins two of them."""
    pieces: list[Parts] = [[]]
    for part in parts:
        if isinstance(part, str) and part[:2] in (" +", " −", " ⊙", " ;", ", ", " /") and pieces[-1]:
            pieces.append([])
        pieces[-1].append(part)
    return pieces


def numbers_of(line: Line) -> Parts | None:
    """The right side with numbers, unless it is nothing but the result."""
    alone = line.numbers[0] if line.numbers and len(line.numbers) == 1 else None
    copied = isinstance(alone, Matrix) and line.result is not None and np.array_equal(alone.values, line.result.values)
    return None if copied else line.numbers


def tidy(parts: Parts) -> Parts:
    """Numbers standing side by side get a dot between them."""
    out: Parts = []
    for i, part in enumerate(parts):
        around = [p for p in (*out[-1:], *parts[i + 1 : i + 2]) if isinstance(p, Matrix)]
        out.append(" · " if part == " " and len(around) == 2 and any(m.scalar for m in around) else part)
    return out


def result_of(line: Line) -> Any:
    """The result; a single number without the brackets a negative one has inside a formula."""
    m = line.result
    return m.cells[0][0] if m is not None and m.scalar and m.cells else m


def html_line(line: Line) -> str:
    note = f" <span class=note>{escape_html.escape(line.note)}</span>" if line.note else ""
    name, eq, rest = line.formula.partition(" = ")
    own = numbers_of(line)
    pieces = [mathml(piece) for piece in pieces_of(["=", *own])] if own else []
    numbers = infix(pieces)
    result = mathml(["=", result_of(line)]) if line.result is not None else ""
    first, *others = re.split(r"(?= [+;] )", rest) if len(line.formula) > LONG else [rest]
    formula = infix([mathml([name, *([eq + first] if eq else [])]), *(mathml([part]) for part in others)])
    shown = f"{numbers} <span class=result>{result}</span>"
    if len(line.formula) > LONG:  # the numbers under it, so that they stay in sight
        head = f"<tr><td class=where>{line.where}</td><td class=formula colspan=2>{formula}{note}</td></tr>"
        return head + (f"<tr><td></td><td colspan=2>{shown}</td></tr>" if numbers or result else "")
    return f"<tr><td class=where>{line.where}</td><td class=formula>{formula}{note}</td><td>{shown}</td></tr>"


def infix(pieces: list[str]) -> str:
    """Formulas after each other; a sign that one begins with stands between it and the one before."""
    return " ".join([*pieces[:1], *(piece.replace("<math><mo>", '<math><mo form="infix">', 1) for piece in pieces[1:])])


def latex_rows(line: Line) -> list[str]:
    name, sign, rest = next((p for p in (line.formula.partition(s) for s in (" = ", " ← ")) if p[1]), (line.formula, "", ""))
    first = f"{latex([name])} &{latex([sign.lstrip() + rest])}"
    end = f" = {latex([result_of(line)])}" if line.result is not None else ""
    numbers = numbers_of(line)
    if not numbers:
        return [first + end]
    pieces = [latex(piece) for piece in wrapped(numbers)]
    return [first, *(f"&{'=' if i == 0 else r'{}'} {piece}{end if i == len(pieces) - 1 else ''}" for i, piece in enumerate(pieces))]


def latex_words(words: str) -> str:
    """Prose for LaTeX: what text mode has no signs for goes into math mode."""
    special = str.maketrans(
        {c: rf"\{c}" for c in "{}%&#$_"} | {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", ">": "$>$", "<": "$<$", "|": "$|$"}
    )
    return " ".join(w.translate(special) if w.isascii() else f"${latex([w])}$" for w in words.split(" "))


def ascii_words(words: str) -> str:
    """Tables inside verbatim, where LaTeX takes plain signs only."""
    return words.replace("─", "-").replace("–", "-").replace("−", "-").encode("ascii", "replace").decode()
