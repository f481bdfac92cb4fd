"""A table that shows texts as they are. Tests: doctor/test_effects.py.

Rich reads texts in cells as its markup: `[fe80::1]@12` would lose its address, and `[/x]` would end
the command.
"""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text


class PlainTable(Table):
    """A table whose cells are texts, which may come from anywhere, or other renderables."""

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """Add a row."""
        plain = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*plain, **settings)
