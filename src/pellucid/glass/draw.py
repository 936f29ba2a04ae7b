"""An expression as a diagram of boxes and wires, in text."""

from __future__ import annotations

from typing import Any

from ..layers.combine import Chain, Combinator, Concat, Parallel, Product

__all__ = ["draw"]

Block = tuple[list[str], int]  # lines of equal width, and the line on which the wire runs


def draw(net: Any) -> str:
    """Draw `net` from left to right; parallel branches lie one under the other."""
    lines, _ = beside(beside((["x ─"], 0), block(net)), (["─→ y"], 0))
    return "\n".join(line.rstrip() for line in lines)


def block(net: Any) -> Block:
    if isinstance(net, Parallel):
        return parallel(net)
    if isinstance(net, Chain):
        out = block(net.layers[0])
        for layer in net.layers[1:]:
            out = beside(beside(out, (["─"], 0)), block(layer))
        return out
    label = type(net).__name__ if not net.name else f"{net.name}: {type(net).__name__}"
    size = next((str(getattr(net, f)) for f in ("units", "filters", "channels") if hasattr(net, f)), "")
    if len(net.children) == 1 and not isinstance(net, Combinator):
        inner, wire = block(net.children[0])
        width = max(len(inner[0]), len(label))
        body = [f"│{line:<{width}}│" for line in inner]
        body[wire] = f"┤{inner[wire]:─<{width}}├"
        return [f"┌{label:─<{width}}┐", *body, f"└{'─' * width}┘"], wire + 1
    return [f"[{label}{f' {size}' if size else ''}]"], 0


def parallel(net: Any) -> Block:
    blocks = [block(layer) for layer in net.layers]
    width = max(len(lines[0]) for lines, _ in blocks)
    rows: list[str] = []
    wires: list[int] = []
    for lines, wire in blocks:
        wires.append(len(rows) + wire)
        rows += [f"{line:{'─' if i == wire else ' '}<{width}}" for i, line in enumerate(lines)]
    middle = len(rows) // 2 if len(rows) > 2 else wires[0]
    sign = {Concat: "⧺", Product: "⊙"}.get(type(net), "⊕")
    out = []
    for i, row in enumerate(rows):
        wired, edge = i in wires, "─" if i == middle else " "
        ends = "┌┐" if i == wires[0] else "└┘" if i == wires[-1] else "├┤" if wired else "││" if wires[0] < i < wires[-1] else "  "
        if i == middle:
            ends = ("┬" if i == wires[0] else "┼" if wired else "┤") + sign
        pad = "─" if wired else " "
        out.append(f"{edge}{ends[0]}{pad}{row}{pad}{ends[1]}{edge}")
    return out, middle


def beside(a: Block, b: Block) -> Block:
    """Two blocks joined where their wires are."""
    (left, i), (right, j) = a, b
    wire = max(i, j)
    height = wire + max(len(left) - i, len(right) - j)

    def padded(lines: list[str], at: int) -> list[str]:
        blank = " " * len(lines[0])
        return [blank] * (wire - at) + lines + [blank] * (height - (wire - at) - len(lines))

    return [p + q for p, q in zip(padded(left, i), padded(right, j), strict=True)], wire
