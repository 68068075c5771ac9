"""Tables on a terminal, as Markdown and as one self-contained HTML page, and values as JSON."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Sequence
from typing import Any

import rich.table
from rich.console import Console

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # caption, heads, cells

_STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 1250px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 2em } td, th { padding: .2em .6em; border-bottom: 1px solid #ddd }
td { text-align: right; white-space: nowrap } td:first-child, th:first-child { text-align: left }
th { text-align: right } img { max-width: 100% } pre { background: #f6f6f6; padding: 1em; overflow-x: auto }"""


def markdown(tables: Sequence[Table]) -> str:
    """All tables, each under its caption."""
    return "".join(f"**{caption}**\n\n{_markdown(heads, rows)}\n\n" for caption, heads, rows in tables)[:-1]


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """On a terminal."""
    for caption, heads, rows in tables:
        table = rich.table.Table(title=caption, title_justify="left")
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i else "left", no_wrap=not i)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A part of a page; without heads, rows alone."""
    cells = (_row("th", heads) if heads else "") + "".join(_row("td", row) for row in rows)
    return f"<h2>{html.escape(caption)}</h2>\n<table>{cells}</table>"


def html_image(png: bytes) -> str:
    """A part of a page."""
    return f'<p><img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt=""></p>'


def html_json(caption: str, value: Any) -> str:
    """A part of a page."""
    return f"<h2>{html.escape(caption)}</h2>\n<pre>{html.escape(json.dumps(value, indent=1))}</pre>"


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page of such parts."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>{body}\n</body></html>\n'


def plain(value: Any) -> Any:
    """For JSON: named tuples as objects, NaN as null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>\n"
