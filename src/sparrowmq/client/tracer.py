"""The trace entries that wait to be sent; entries beyond the buffer are dropped.

Tests: test_trace.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparrowmq.calling.effects import Task
from sparrowmq.client.publisher import Publisher
from sparrowmq.model import Message
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.protocol.trace import TraceEntry

# Differs from AsyncTraceDispatcher, whose queue holds 2,048 calls; this buffer holds entries.
ENTRIES_MAX = 8_192
# AsyncTraceDispatcher.maxMsgSize; the keys of a message are a property, whose size is bounded too.
BODY_CHARACTERS_MAX = 128_000
KEYS_CHARACTERS_MAX = 8_000


@dataclass(slots=True, kw_only=True)
class Tracer:
    """The tracer of a client's messages.

    Args:
        publisher: sends the trace.
        group: the client's group, under its name on the wire.
        dropped: the number of entries dropped because the buffer was full or sending failed.
        sending: the task that sends, if one was started.
    """

    publisher: Publisher
    group: str
    dropped: int = 0
    sending: Task | None = None
    _entries: deque[TraceEntry] = field(default_factory=deque)

    def add(self, entries: Iterable[TraceEntry]) -> None:
        """Keep entries to be sent, while the buffer has room."""
        for entry in entries:
            if len(self._entries) < ENTRIES_MAX:
                self._entries.append(entry)
            else:
                self.dropped += 1

    def take(self) -> tuple[Message, int] | None:
        """Take the next entries as one message, and their count; None if there are none."""
        entries = self._entries
        texts: list[str] = []
        keys: dict[str, None] = {}
        body_room, keys_room = BODY_CHARACTERS_MAX, KEYS_CHARACTERS_MAX
        while entries:
            text, own_keys = entries[0]
            new_keys = [key for key in own_keys if key not in keys]
            body_room -= len(text)
            keys_room -= sum(len(key) + 1 for key in new_keys)
            if texts and (body_room < 0 or keys_room < 0):
                break
            entries.popleft()
            texts.append(text)
            keys.update(dict.fromkeys(new_keys))
        if not texts:
            return None
        return Message(TRACE_TOPIC, "".join(texts).encode(), keys=tuple(keys)), len(texts)
