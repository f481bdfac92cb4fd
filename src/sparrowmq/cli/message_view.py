"""The printing of messages: a line each, in full, or as JSON.

Strangers wrote the bodies and properties: characters that control a terminal are escaped.
Tests: test_messages.py.
"""

from __future__ import annotations

import base64
import contextlib
import sys
from enum import StrEnum

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sparrowmq.cli.language import words
from sparrowmq.cli.output import Json, format_time
from sparrowmq.model import MessageExt
from sparrowmq.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from sparrowmq.model.plain_text import escape
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words.body import BODY_BYTES_MAX, decode_beginning, json_parts

_SHOWN_ELSEWHERE = {PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY}


class BodyFormat(StrEnum):
    """The form of bodies; AUTO shows JSON and text as such, and other bytes as hex.

    RAW writes the bytes as they were sent.
    """

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"
    RAW = "raw"


def format_body(body: bytes, body_format: BodyFormat) -> str:
    """Write a body on one line."""
    if body_format is BodyFormat.HEX:
        return body.hex(" ")
    if body_format in (BodyFormat.AUTO, BodyFormat.JSON):
        with contextlib.suppress(ValueError, RecursionError):
            return escape("".join(json_parts(body)))
    try:
        return escape(body.decode())
    except UnicodeDecodeError:
        return body.hex(" ") if body_format is BodyFormat.AUTO else escape(body.decode("latin-1"))


def shorten_body(body: bytes, body_format: BodyFormat) -> str:
    """Write at most the first `BODY_BYTES_MAX` of a body on one line, and what is left out."""
    text, is_whole = decode_beginning(body)
    if is_whole:
        return format_body(body, body_format)
    part = body[:BODY_BYTES_MAX] if text is None else text.encode()
    return f"{format_body(part, body_format)}… ({len(body):,} bytes; --json shows all)"


def json_of_message(message: MessageExt) -> Json:
    """Return a message as JSON; a body that is not a text is null, with `body_base64`."""
    body: str | None
    try:
        body, more = message.body.decode(), {}
    except UnicodeDecodeError:
        body, more = None, {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_timestamp_ms": message.store_timestamp_ms,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
        "body": body,
        **more,
    }


def line_of_message(message: MessageExt, body_format: BodyFormat) -> Text:
    """Write a message on one line: when, where, tag and keys, body."""
    line = Text.assemble(
        (format_time(message.store_timestamp_ms), "dim"),
        (f"  {spell_queue(message)}@{message.queue_offset}", "cyan"),
    )
    if message.tags:
        line.append(f"  {escape(message.tags)}", "green")
    if message.keys:
        line.append(f"  {escape(','.join(message.keys))}", "yellow")
    return line.append(f"  {shorten_body(message.body, body_format)}")


def print_message(
    console: Console, message: MessageExt, body_format: BodyFormat, *, sent_again: str = ""
) -> None:
    """Print a message in full: its places, times and properties, then its body."""
    rows = {
        words()("id"): message.msg_id,
        words()("id at the broker"): message.offset_msg_id,
        words()("topic"): message.topic,
        words()("queue"): spell_queue(message),
        words()("offset"): str(message.queue_offset),
        words()("born"): _moment(message.born_timestamp_ms, message.born_host),
        words()("stored"): _moment(message.store_timestamp_ms, message.store_host),
        words()("tag"): message.tags,
        words()("keys"): ", ".join(message.keys),
        words()("consumed again"): message.reconsume_times,
        words()("sent again"): sent_again,
    }
    for name, value in rows.items():
        if value:
            _print_pair(console, name, str(value))
    for name, value in sorted(message.properties.items()):
        if name not in _SHOWN_ELSEWHERE:
            _print_pair(console, f"  {name}", value)
    size = words().count(len(message.body), "byte")
    _print_pair(console, words()("body, {size}", size=size), "")
    console.print(Text(shorten_body(message.body, body_format)), soft_wrap=True)
    console.print()


def print_raw(message: MessageExt) -> None:
    """Write a body's bytes as they were sent."""
    sys.stdout.flush()
    sys.stdout.buffer.write(message.body)
    sys.stdout.buffer.flush()


def _moment(timestamp_ms: int, host: str) -> str:
    return words()("{time} at {host}", time=format_time(timestamp_ms), host=host)


def _print_pair(console: Console, name: str, value: str) -> None:
    name = escape(name)
    # A Chinese character takes two cells.
    padding = " " * max(1, 18 - cell_len(name))
    pair = Text.assemble((name + padding, "dim"), escape(value))
    console.print(pair, soft_wrap=True)
