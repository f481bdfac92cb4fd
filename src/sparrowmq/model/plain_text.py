"""Texts from anywhere, such as client ids, without the characters that control a terminal.

Tests: cli/test_messages.py.
"""

from __future__ import annotations

import shlex


def escape(text: str) -> str:
    """Escape the characters that control a terminal or are invisible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def write_argument(name: str) -> str:
    """Write a name as a shell and a command take it as the last argument."""
    return shlex.join(["--", name] if name.startswith("-") else [name])
