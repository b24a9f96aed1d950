"""Printing: tables, drawn with rich on a terminal and as aligned text elsewhere, and JSON documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click


def print_json(document: Any) -> None:
    """Print one JSON document on standard output; what JSON does not know, such as a date, becomes a text."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def print_title(text: str) -> None:
    """Print a heading with an empty line before it."""
    click.echo()
    click.echo(click.style(text, bold=True))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; rich is imported only if standard output is a terminal."""
    if sys.stdout.isatty():
        _print_rich(headers, rows)
        return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)
