"""The gradient check in colour: for a terminal, and as HTML."""

from __future__ import annotations

import html
from typing import Any

__all__ = ["html_table", "rich_table"]


def rich_table(check: Any) -> Any:
    """The check as a table of rich, green or red."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head, *rows = check.cells()
    table = Table(box=None, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if 3 <= i <= 6 else "left", no_wrap=True)
    for row in rows:
        colour = "green" if row[-1] == "ok" else "bold red"
        table.add_row(*row[:-1], Text("✓ ok" if row[-1] == "ok" else "✗ WRONG", colour))
    return Group(table, Text(check.verdict, "green" if check else "bold red"))


def html_table(check: Any) -> str:
    """The check as an HTML table."""
    head, *rows = check.cells()
    top = "".join(f"<th>{name}</th>" for name in head)
    body = []
    for row in rows:
        sign = '<td class="ok" style="color:#1c7a45">✓ ok</td>' if row[-1] == "ok" else '<td class="bad" style="color:#c22">✗ WRONG</td>'
        body.append("<tr>" + "".join(f"<td class=n>{html.escape(cell)}</td>" for cell in row[:-1]) + sign + "</tr>")
    kind = ("ok", "#1c7a45") if check else ("bad", "#c22")
    verdict = f'<p class={kind[0]} style="color:{kind[1]}">{html.escape(check.verdict)}</p>'
    return f"<table class=grid><tr>{top}</tr>{''.join(body)}</table>{verdict}"
