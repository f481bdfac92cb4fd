"""What tests of the live page do again and again."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from typing import Any

from live_page import Reader


async def eventually(what: str, get: Callable[[], Any], *, timeout_s: float = 30.0) -> Any:
    """Wait until an async function returns something true, and return that."""
    async with asyncio.timeout(timeout_s):
        while not (found := await get()):
            await asyncio.sleep(0.05)
    assert found, what
    return found


def words_of(page: str) -> str:
    """Return a page's text without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


async def read_table(reader: Reader, path: str, table: str) -> list[dict[str, Any]]:
    mark = "&" if "?" in path else "?"
    rows: list[dict[str, Any]] = json.loads(
        await reader.read(f"{path}{mark}format=json&table={table}")
    )
    return rows
