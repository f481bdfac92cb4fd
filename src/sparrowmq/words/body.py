"""The body of a message for people: at most its beginning, as text if it is text. Pure.

Tests: dash/test_cluster_pages.py, cli/test_messages.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

# The most bytes of a body that are shown; a byte may make some ten characters.
BODY_BYTES_MAX = 65_536
# A text, a sign, or a number or word of JSON.
_JSON_PART = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\n\r{}\[\],:"]+')


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


def json_parts(body: bytes) -> Iterator[str]:
    """Yield the parts of a body of JSON, without blanks and escapes that JSON does not need.

    Numbers stay as they were sent, whatever their digits, and so do names that come twice.

    Raises: ValueError if the body is not JSON; RecursionError if it nests too deep.
    """
    json.loads(body)
    for found in _JSON_PART.finditer(body.decode(json.detect_encoding(body), "surrogatepass")):
        part = found[0]
        yield json.dumps(json.loads(part), ensure_ascii=False) if part[0] == '"' else part
