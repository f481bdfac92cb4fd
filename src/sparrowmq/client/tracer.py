"""The trace of a client's messages: entries that wait to be sent, and the observer of sends.

Entries beyond the buffer are dropped. One-way sends, failed ones and those to brokers with
`traceOn=false` are not traced, as with RocketMQ.
Source: SendMessageTraceHookImpl.java, AsyncTraceDispatcher.java. Tests: test_trace.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from sparrowmq.calling.effects import Task
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.publisher import Ended, Publisher
from sparrowmq.model import Message, SendResult, SendStatus
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.protocol.trace import TracedType, TraceEntry, published

# Differs from AsyncTraceDispatcher, whose queue holds 2,048 calls; this buffer holds entries.
ENTRIES_MAX = 8_192
# AsyncTraceDispatcher.maxMsgSize; the keys of a message are a property, whose size is bounded too.
BODY_CHARACTERS_MAX = 128_000
KEYS_CHARACTERS_MAX = 8_000
# BrokerConfig.regionId. A message names the region of its broker.
DEFAULT_REGION = "DefaultRegion"


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

    @property
    def is_empty(self) -> bool:
        """Whether no entry waits."""
        return not self._entries

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


@dataclass(slots=True, kw_only=True)
class SendTrace:
    """The observer that traces a producer's sends.

    Args:
        tracer: takes the entries.
        config: the configuration of the producer whose sends are traced.
        address_of: returns the address of a broker's master.
        monotonic_ms: reads the clock that measures a send.
        timestamp_ms: reads the wall clock.
        untraced: the names of brokers whose messages are not traced.
    """

    tracer: Tracer
    config: ProducerConfig
    address_of: Callable[[str], str | None]
    monotonic_ms: Callable[[], int]
    timestamp_ms: Callable[[], int]
    untraced: Set[str] = frozenset()

    def begin(
        self, messages: Sequence[Message], *, is_half: bool
    ) -> tuple[Sequence[Message], Ended]:
        """Note the begin of a send; return the messages unchanged."""
        kind = TracedType.DELAY if messages[0].delay_level else TracedType.NORMAL
        kind = TracedType.TRANSACTION_HALF if is_half else kind
        return messages, partial(
            self._end, messages, kind, self.timestamp_ms(), self.monotonic_ms()
        )

    def _end(
        self,
        messages: Sequence[Message],
        kind: TracedType,
        timestamp_ms: int,
        begun_ms: int,
        result: SendResult | None,
        _: BaseException | None,
    ) -> None:
        if result is None or result.queue.broker_name in self.untraced:
            return
        cost_ms = self.monotonic_ms() - begun_ms
        ids = zip(result.msg_id.split(","), result.offset_msg_id.split(","), strict=False)
        self.tracer.add(
            published(
                timestamp_ms=timestamp_ms,
                cost_ms=cost_ms,
                region=DEFAULT_REGION,
                group=self.tracer.group,
                topic=self.config.namespace.wrap(message.topic),
                msg_id=msg_id,
                offset_msg_id=offset_msg_id,
                tags=message.tags or "",
                keys=message.keys,
                store_host=self.address_of(result.queue.broker_name) or "",
                body_bytes=len(message.body),
                kind=kind,
                is_success=result.status is SendStatus.SEND_OK,
            )
            for message, (msg_id, offset_msg_id) in zip(messages, ids, strict=False)
        )
