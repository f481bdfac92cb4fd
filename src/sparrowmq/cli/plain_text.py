"""Texts from anywhere, such as client ids and properties, shown as they are.

Rich reads texts in cells as its markup: `[fe80::1]@12` would lose its address, and `[/x]` would end
the command. Other characters would control the terminal. Tests: doctor/test_effects.py.
"""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sparrowmq.model.plain_text import escape


class PlainTable(Table):
    """A table whose cells are texts from anywhere, or renderables of our own."""

    def add_column(self, *titles: Any, **settings: Any) -> None:
        """Add a column: what may take several lines is folded, and never cut.

        Chinese has no blanks, so that a whole sentence is one word.
        """
        if not settings.get("no_wrap"):
            settings.setdefault("overflow", "fold")
        super().add_column(*titles, **settings)

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """Add a row."""
        plain = [Text(escape(cell)) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*plain, **settings)
