"""Formulas as people write them, in Unicode, turned into LaTeX and MathML; matrices for all three.

A formula is a plain string such as ``δ¹ = (W²)ᵀ δ² ⊙ σ′(z¹)``; raised and lowered signs, ``^word`` and ``_word``
are read as superscripts and subscripts. A line of a page is a list of such strings and `Matrix` objects.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Matrix", "latex", "mathml", "number", "superscript", "text"]

RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵀᶻˣʸᵗᵏᴸˡʰ", "0123456789+−=()niTzxytkLlh", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ᵢⱼₖₗₙₜₓₘ", "0123456789+−=()ijklntxm", strict=True))
LATEX = {
    "⊙": r"\odot ", "⊗": r"\otimes ", "Σ": r"\sum ", "∂": r"\partial ", "∇": r"\nabla ", "−": "-", "·": r"\cdot ", "…": r"\dots ",
    "≥": r"\ge ", "≤": r"\le ", "≠": r"\ne ", "∞": r"\infty ", "√": r"\surd ", "←": r"\leftarrow ", "→": r"\to ", "×": r"\times ",
    "∘": r"\circ ", "‖": r"\|", "∈": r"\in ", "½": r"\tfrac12 ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ",
    "ε": r"\varepsilon ", "η": r"\eta ", "θ": r"\theta ", "ϑ": r"\vartheta ", "κ": r"\kappa ", "λ": r"\lambda ", "μ": r"\mu ",
    "π": r"\pi ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\varphi ", "ψ": r"\psi ", "ω": r"\omega ", "Φ": r"\Phi ",
    "Δ": r"\Delta ", "Λ": r"\Lambda ", "′": "'", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "⟨": r"\langle ", "⟩": r"\rangle ", "_": r"\_",
}  # fmt: skip
ACCENTS = {"\u0302": ("hat", "^"), "\u0303": ("tilde", "~"), "\u0304": ("bar", "¯"), "\u0307": ("dot", "˙")}

TOKEN = re.compile(
    rf"(?P<sup>[{''.join(RAISED)}]+|\^\{{[^}}]*\}}|\^[A-Za-z0-9]+)|(?P<sub>[{''.join(LOWERED)}]+|_\{{[^}}]*\}}|_[A-Za-z0-9]+)|(?P<prime>[′']+)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<word>[A-Za-z]{2,})|(?P<letter>[^\W\d_][\u0300-\u036f]?)|(?P<space>\s+)|(?P<sign>.)"
)


def number(value: float) -> str:
    """A number in few signs: at most four decimals, or three digits and an exponent."""
    value = float(value)
    if np.isnan(value):
        return "nan"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    plain = 1e-3 <= abs(value) < 1e5 or value == 0
    if plain:
        short = f"{value:.4f}".rstrip("0").rstrip(".")
    else:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short.replace("-", "−")


def superscript(n: int | str) -> str:
    """¹² for 12, ^gate for a name."""
    back = {v: k for k, v in RAISED.items()}
    return "".join(back[c] for c in str(n)) if str(n).isdigit() else f"^{n}"


@dataclass(frozen=True)
class Matrix:
    """An array as a page shows it: in full when it is small, by its shape and norm when it is not; or blank."""

    values: np.ndarray
    limit: int = 48
    blank: bool = False
    turned: bool = False  # whether rows and columns were exchanged for showing it

    @property
    def cells(self) -> list[list[str]] | None:
        a = np.atleast_2d(self.values)
        if a.size > self.limit or a.ndim > 2 or a.shape[1] > 12:
            return None
        if self.blank:
            return [["?"] * a.shape[1] for _ in a]
        rows, largest = [[number(v) for v in row] for row in a], float(np.abs(a).max(initial=0.0))
        short = all("e" not in cell for row in rows for cell in row)
        if not np.isfinite(largest) or not (short or 1e-2 <= largest < 1e5):
            return rows
        decimals = max(len(cell.partition(".")[2]) if "e" not in cell else 4 for row in rows for cell in row)
        fixed = [[f"{float(v):.{decimals}f}" for v in row] for row in a]
        return [[(cell if float(cell) else cell.removeprefix("-")).replace("-", "−") for cell in row] for row in fixed]

    @property
    def summary(self) -> str:
        shape = " × ".join(map(str, self.values.shape))
        if self.blank:
            return f"⟨{shape}: ?⟩"
        finite = np.abs(np.asarray(self.values, np.float64))
        i = np.unravel_index(int(finite.argmax()), finite.shape)
        place = ", ".join(map(str, map(int, i)))
        return f"⟨{shape}, norm {number(float(np.linalg.norm(finite)))}, largest {number(self.values[i])} at [{place}]⟩"

    @property
    def scalar(self) -> bool:
        return self.values.size == 1


Parts = list[Any]  # strings and matrices


# -------------------------------------------------------------------- plain text
def text(parts: Parts) -> list[str]:
    """The parts side by side, matrices as blocks; a list of lines."""
    parts = [unbracketed(parts, i) for i in range(len(parts))]
    blocks = [block(part) for part in parts]
    height = max(len(b) for b in blocks)
    rows = [""] * height
    for b in blocks:
        above = (height - len(b)) // 2
        width = max(len(line) for line in b)
        for i in range(height):
            line = b[i - above] if above <= i < above + len(b) else ""
            rows[i] += line + " " * (width - len(line))
    return [row.rstrip() for row in rows]


def unbracketed(parts: Parts, i: int) -> Any:
    """A single number that stands in brackets already needs none of its own."""
    part, before, after = parts[i], parts[i - 1] if i else "", parts[i + 1] if i + 1 < len(parts) else ""
    enclosed = isinstance(before, str) and before.endswith("(") and isinstance(after, str) and after.startswith(")")
    return block(part)[0].strip("()") if isinstance(part, Matrix) and part.scalar and (enclosed or not i) else part


def block(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    cells = part.cells
    if cells is None:
        return [part.summary]
    if part.scalar:
        return [f"({cells[0][0]})" if cells[0][0].startswith("−") else cells[0][0]]
    widths = [max(len(row[j]) for row in cells) for j in range(len(cells[0]))]
    lines = ["  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in cells]
    if len(lines) == 1:
        return [f"[{lines[0]}]"]
    ends = [("⎡", "⎤")] + [("⎢", "⎥")] * (len(lines) - 2) + [("⎣", "⎦")]
    return [f"{left} {line} {right}" for (left, right), line in zip(ends, lines, strict=True)]


# -------------------------------------------------------------------- LaTeX
def latex(parts: Parts) -> str:
    """The parts as LaTeX, for math mode."""
    parts = [unbracketed(parts, i) for i in range(len(parts))]
    return " ".join(latex_matrix(part) if isinstance(part, Matrix) else latex_formula(part) for part in parts)


def latex_matrix(m: Matrix) -> str:
    cells = m.cells
    if cells is None:
        return rf"\langle\text{{{m.summary[1:-1].replace('×', '$×$')}}}\rangle".replace("−", "-").replace("$×$", r"$\times$")
    if m.scalar:
        value = latex_number(cells[0][0])
        return f"({value})" if value.startswith("-") else value
    rows = r" \\ ".join(" & ".join(latex_number(c) for c in row) for row in cells)
    return rf"\begin{{bmatrix}} {rows} \end{{bmatrix}}"


def latex_number(cell: str) -> str:
    mantissa, e, exponent = cell.replace("−", "-").replace("∞", r"\infty").partition("e")
    return rf"{mantissa} \cdot 10^{{{exponent}}}" if e else mantissa


def latex_formula(formula: str) -> str:
    out, found = [], tokens(formula)
    for i, (kind, token) in enumerate(found):
        if kind == "space" and 0 < i < len(found) - 1 and "word" in (found[i - 1][0], found[i + 1][0]):
            out.append(r"\ ")  # math mode would close the gap beside a word
        elif kind == "sup":
            out.append(f"^{{{latex_script(plain(token, RAISED))}}}")
        elif kind == "sub":
            out.append(f"_{{{latex_script(plain(token, LOWERED))}}}")
        elif kind == "prime":
            out.append("'" * len(token))
        elif kind == "word":
            inner = token[1:] if token[0] == "d" and len(token) == 2 else None
            out.append(f"d{inner}" if inner else rf"\mathrm{{{token}}}")
        elif kind == "letter":
            base, accent = letter(token)
            sign = LATEX.get(base, base)
            out.append(rf"\{ACCENTS[accent][0]}{{{sign}}}" if accent else sign)
        else:
            out.append("".join(LATEX.get(c, c) for c in token))
    return "".join(out)


def latex_script(script: str) -> str:
    """What stands above or below the line: a transpose, a name, or signs."""
    if script == "T":
        return r"\top"
    named = len(script) > 1 and script.replace("_", "").isalpha() and script.isascii()
    return rf"\mathrm{{{script}}}".replace("_", r"\_") if named else "".join(LATEX.get(c, c) for c in script.replace("′", "'"))


# -------------------------------------------------------------------- MathML
def mathml(parts: Parts) -> str:
    """The parts as a MathML element, which browsers draw without help."""
    parts = [unbracketed(parts, i) for i in range(len(parts))]
    inner = "".join(mathml_matrix(part) if isinstance(part, Matrix) else mathml_formula(part) for part in parts)
    return f"<math>{inner}</math>"


def mathml_matrix(m: Matrix) -> str:
    cells = m.cells
    if cells is None:
        return f"<mtext>{html.escape(m.summary)}</mtext>"
    if m.scalar:
        cell = f"<mn{' class=blank' if m.blank else ''}>{cells[0][0]}</mn>"
        return f"<mo>(</mo>{cell}<mo>)</mo>" if cells[0][0].startswith("−") else cell
    signed = [any(row[j].startswith("−") for row in cells) for j in range(len(cells[0]))]
    sign = "<mphantom><mn>−</mn></mphantom>"  # room for the sign that others in the column have
    rows = "".join(
        "<mtr>" + "".join(f"<mtd>{sign * (signed[j] and c[0] != '−')}<mn>{c}</mn></mtd>" for j, c in enumerate(row)) + "</mtr>"
        for row in cells
    )
    return f'<mtable class="matrix{" blank" if m.blank else ""}">{rows}</mtable>'


def mathml_formula(formula: str) -> str:
    found = [(k, t) for k, t in tokens(formula) if k != "space"]
    out, i = [], 0
    while i < len(found):
        kind, token = found[i]
        base = mathml_token(kind, token)
        if kind == "word" and i and found[i - 1][0] == "number":
            out.append('<mspace width="0.25em"/>')
        scripts = {"sub": "", "sup": ""}
        while i + 1 < len(found) and found[i + 1][0] in ("sup", "sub", "prime"):
            i += 1
            k, t = found[i]
            if k == "prime":
                scripts["sup"] += "<mo>′</mo>" * len(t)
            else:
                inner = plain(t, RAISED if k == "sup" else LOWERED)
                scripts[k] += f"<mn>{inner}</mn>" if inner.isdigit() else f"<mi>{html.escape(inner)}</mi>"
        sub, sup = (f"<mrow>{scripts[k]}</mrow>" for k in ("sub", "sup"))
        if scripts["sub"] and scripts["sup"]:
            base = f"<msubsup>{base}{sub}{sup}</msubsup>"
        elif scripts["sub"] or scripts["sup"]:
            kind = "msub" if scripts["sub"] else "msup"
            base = f"<{kind}>{base}{sub if scripts['sub'] else sup}</{kind}>"
        out.append(base)
        i += 1
    return "".join(out)


def mathml_token(kind: str, token: str) -> str:
    if kind == "number":
        return f"<mn>{token}</mn>"
    if kind == "word":
        if token[0] == "d" and len(token) == 2:
            return f"<mrow><mi>d</mi><mi>{token[1]}</mi></mrow>"
        return f'<mi mathvariant="normal">{token}</mi><mspace width="0.17em"/>'
    if kind == "letter":
        base, accent = letter(token)
        return f"<mover><mi>{base}</mi><mo>{ACCENTS[accent][1]}</mo></mover>" if accent else f"<mi>{html.escape(token)}</mi>"
    if token in "()[]":
        return f'<mo stretchy="false">{token}</mo>'
    return f"<mo>{html.escape(token)}</mo>" if kind == "sign" else "<mi></mi>" + f"<mo>{html.escape(token)}</mo>"


# -------------------------------------------------------------------- reading formulas
def tokens(formula: str) -> list[tuple[str, str]]:
    return [(str(m.lastgroup), m.group()) for m in TOKEN.finditer(formula)]


def plain(token: str, table: dict[str, str]) -> str:
    """A superscript or subscript as ordinary signs."""
    return token[1:].strip("{}") if token[0] in "^_" else "".join(table[c] for c in token)


def letter(token: str) -> tuple[str, str]:
    """A letter and the accent above it, if there is one we know."""
    parts = unicodedata.normalize("NFD", token)
    return (parts[0], parts[1]) if len(parts) == 2 and parts[1] in ACCENTS else (token, "")
