"""The sends of one producer, as its users make them, and what a producer promises of each.

A third of the messages goes by `send_nowait`, the others by the face itself: the coroutines of
`client/faces/aio.py` await the simulated driver.

1. A message with a sharding key stands in the queue of its key, and behind all messages of this key
   that were queued before.
2. A send ends within its timeout, and not before it has tried as often as its settings allow.
3. No two messages have one id, and no answer contradicts its request.

The producer recalls half of the messages that wait for a time of their own.

Tests: test_send_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import combinations
from typing import Any, cast

from sparrowmq.calling.effects import (
    Event,
    Now,
    Operation,
    Spawn,
    Wait,
    sleep,
)
from sparrowmq.client.batcher import Batcher, Pending
from sparrowmq.client.faces.aio import AsyncProducer
from sparrowmq.client.operations import batches
from sparrowmq.client.operations.recall import recall
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import select_queue_by_key
from sparrowmq.errors import (
    BrokerError,
    ConnectionLost,
    InvokeTimeout,
    RemoteProtocolError,
    SendFailed,
    SparrowError,
)
from sparrowmq.model import Message, MessageQueue, SendResult, SendStatus
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import SimulatedDriver

QUEUED_SHARE = 0.33
RECALLED_SHARE = 0.5
# The longest time between a deadline and the end of a send: a turn and rounded milliseconds.
LATE_MS = 20
# The time that a failed send may leave unused: it ends before a pause that would not fit.
UNUSED_MS = 1_000


class Queued:
    """A message of `send_nowait`: its result, once it has ended."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.ended = Event()
        self.result: SendResult | None = None
        self.error: Exception | None = None

    def done(self, result: SendResult | None, error: Exception | None) -> None:
        """Take the result or the error."""
        self.result, self.error = result, error
        self.ended.set()


class _Face(AsyncProducer):
    """The asyncio face of a producer in a simulated process."""

    def __init__(self, publisher: Publisher, driver: SimulatedDriver) -> None:
        self._publisher = publisher
        self._driver = cast(Any, driver)
        self._is_closed = False


class Sends:
    """The sends of a producer.

    Args:
        driver: the driver of the producer's process.
        find_queues: returns the queues that the topic may have had so far.
        dice: chooses the way of each message.
    """

    def __init__(
        self,
        publisher: Publisher,
        driver: SimulatedDriver,
        find_queues: Callable[[], Sequence[Sequence[MessageQueue]]],
        checkers: Checkers,
        dice: Dice,
    ) -> None:
        self._publisher = publisher
        self._face = _Face(publisher, driver)
        self._find_queues = find_queues
        self._checkers = checkers
        self._dice = dice
        self._ids: set[str] = set()
        # By key, the messages of `send_nowait` so far.
        self._queued: dict[str, list[Queued]] = {}

    def send(self, message: Message) -> Operation[bool]:
        """Send a message once; return whether it was acknowledged."""
        begun_ms: int = yield Now()
        # The offset of a delayed message is that of its place among the delayed.
        key = None if message.delay_level else message.sharding_key
        earlier = tuple(self._queued.get(key, ())) if key else ()
        is_queued = self._dice.random() < QUEUED_SHARE
        error: SparrowError | None = None
        result: SendResult | None = None
        try:
            if is_queued:
                result = yield from self._send_queued(message)
            else:
                result = yield from self._face.send(message).__await__()
        except SparrowError as failure:
            # A user would send the message again; here the message may be lost, or stored without
            # an acknowledgement.
            error = failure
        ended_ms: int = yield Now()
        name = message.body.rstrip(b".").decode()
        if not is_queued:
            self._check_end(name, error, ended_ms - begun_ms)
        if isinstance(error, RemoteProtocolError):
            self._checkers.fail(f"{name}: {error}")
        if result is None or result.status is not SendStatus.SEND_OK:
            return False
        self._checkers.note_acked(message.body, result.queue, result.queue_offset)
        if result.msg_id in self._ids:
            self._checkers.fail(f"{name} has the id of another message, {result.msg_id}")
        self._ids.add(result.msg_id)
        if key is not None:
            self._check_key(name, key, result, earlier)
        if result.recall_handle is not None and self._dice.random() < RECALLED_SHARE:
            yield Spawn(self._recall(message, result.recall_handle), f"recall of {name}")
        return True

    def _recall(self, message: Message, handle: str) -> Operation[None]:
        assert message.delay is not None
        delays = self._checkers.delays
        yield from sleep(self._dice.randrange(0, message.delay // timedelta(milliseconds=1)))
        asked_ms: int = yield Now()
        delays.note_recall(message.body)
        try:
            yield from recall(self._publisher, handle)
        except BrokerError as error:
            # A recall that is not on the disk in time may hold.
            if error.code != ResponseCode.FLUSH_DISK_TIMEOUT:
                delays.note_refused(message.body, asked_ms=asked_ms)
        except SparrowError:
            # The broker may have recalled the message, or not.
            return
        else:
            delays.note_recalled(message.body, handle)

    def _send_queued(self, message: Message) -> Operation[SendResult | None]:
        publisher = self._publisher
        if publisher.batcher is None:
            publisher.batcher = Batcher(publisher.config, _end)
            yield Spawn(batches.serve(publisher, publisher.batcher), "batches")
        queued = Queued(message.body)
        if message.sharding_key and not message.delay_level:
            self._queued.setdefault(message.sharding_key, []).append(queued)
        if publisher.batcher.hand_over(Pending(message, None, queued)):
            publisher.batcher.wake.set()
        yield Wait(queued.ended, None)
        if isinstance(queued.error, SparrowError):
            raise queued.error
        return queued.result

    def _check_end(self, name: str, error: SparrowError | None, duration_ms: int) -> None:
        config = self._publisher.config
        if duration_ms > config.send_timeout_ms + LATE_MS:
            self._checkers.fail(f"{name} ended {duration_ms} ms after its send began")
        if (
            isinstance(error, SendFailed)
            and isinstance(error.__cause__, ConnectionLost | InvokeTimeout)
            and 0 < len(error.brokers_tried) < 1 + config.retry_times
            and duration_ms < config.send_timeout_ms - UNUSED_MS
        ):
            count = len(error.brokers_tried)
            self._checkers.fail(f"{name} gave up after {count} attempts and {duration_ms} ms")

    def _check_key(
        self, name: str, key: str, result: SendResult, earlier: Sequence[Queued]
    ) -> None:
        known = self._find_queues()
        if not any(result.queue in find_key_queues(key, queues) for queues in known):
            self._checkers.fail(f"{name} of key {key} went to {result.queue}")
        for queued in earlier:
            if not queued.ended.is_set:
                self._checkers.fail(f"{name} of key {key} overtook a message queued before")
            found = queued.result
            is_lost = queued.payload in self._checkers.lost
            if found is None or found.queue != result.queue or is_lost:
                continue
            if found.status is not SendStatus.SEND_OK:
                # Its flush failed: it may be gone, and this message in its place.
                continue
            if found.queue_offset >= result.queue_offset:
                self._checkers.fail(f"{name} of key {key} stands before a message queued before")


def _end(pendings: Sequence[Pending], outcome: Sequence[SendResult] | Exception) -> None:
    for number, pending in enumerate(pendings):
        if isinstance(outcome, Exception):
            pending.future.done(None, outcome)
        else:
            pending.future.done(outcome[number], None)


def find_key_queues(key: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
    """Return the queues that a key may have, while some of the topic's brokers are away."""
    names = sorted({queue.broker_name for queue in queues})
    return {
        select_queue_by_key([queue for queue in queues if queue.broker_name in present], key)
        for count in range(1, len(names) + 1)
        for present in combinations(names, count)
    }
