"""The body of a message for people: at most its beginning, as text if it is text. Pure.

Tests: dash/test_cluster_pages.py, cli/test_messages.py.
"""

from __future__ import annotations

# The most bytes of a body that are shown; a byte may make some ten characters.
BODY_BYTES_MAX = 65_536


def decode_beginning(body: bytes, bytes_max: int = BODY_BYTES_MAX) -> tuple[str | None, bool]:
    """Decode the beginning of a body; leave out a character that its end has cut.

    Returns: the text, None if it is not UTF-8; and whether this is the whole body.
    """
    part = body[:bytes_max]
    is_whole = len(part) == len(body)
    try:
        return part.decode(), is_whole
    except UnicodeDecodeError as error:
        if is_whole or error.reason != "unexpected end of data":
            return None, is_whole
        return part[: error.start].decode(), is_whole
