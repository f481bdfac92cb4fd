"""The handle by which a producer recalls a message that waits for its time.

Source: RecallMessageHandle.java of 5.5.0.
Tests: broker/test_timer_messages.py, client/operations/test_delays.py.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """What a handle says.

    Args:
        topic: the message's real topic.
        due_ms: its delivery time, in ms since 1970.
        msg_id: the id that its producer gave it.
    """

    topic: str
    broker_name: str
    due_ms: int
    msg_id: str

    def encode(self) -> str:
        """Return the handle's text."""
        words = _VERSION, self.topic, self.broker_name, str(self.due_ms), self.msg_id
        return urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return what a handle says. Raises: ValueError."""
    version, topic, broker_name, due_ms, msg_id = urlsafe_b64decode(text).decode().split(" ")
    if version != _VERSION or not (due_ms.isascii() and due_ms.isdigit()):
        raise ValueError("not a handle of version v1")
    return RecallHandle(topic, broker_name, int(due_ms), msg_id)
