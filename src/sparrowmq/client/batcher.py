"""Messages that wait to be sent together: which go in one request, and when. Pure.

Each queue has a lane, in which messages keep their order: a lane sends one batch at a time, and the
next when that one is answered. Messages that may go to any queue fill one of a few lanes of their
topic after the other. A changed route may give a sharding key another queue: its messages wait for
the lane of the new queue until those in the lane of the old one have ended.

Source: ProduceAccumulator.java of 5.x, for the bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from sparrowmq.calling.effects import Event
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.queue_selector import QueueChoice, select_queue_by_key, select_queue_by_user
from sparrowmq.model import Message, MessageQueue, SendResult
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX

# Batches of one topic that may be under way at once where messages may go to any queue.
FREE_LANES = 4

# What a batch's request has of a message beside its body and the texts that its user gave: lengths,
# the id, the namespace, and the names of RocketMQ's own properties.
ENTRY_BYTES_MAX = 256

# How long errors that nobody read gather for one line of the log.
UNREAD_GATHER_MS = 1_000

# A topic with one of its queues, or with the number of a free lane.
LaneKey: TypeAlias = tuple[str, MessageQueue | int]


class Pending(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message that waits, and who waits for what becomes of it.

    Args:
        future: gets the result or the error.
        ended: tells the observers the same, if there are observers.
        flush_number: how many calls of `flush` were before it; they do not wait for it.
    """

    message: Message
    queue: QueueChoice | None
    future: Any
    ended: Callable[[SendResult | None, BaseException | None], None] | None = None
    flush_number: int = 0


# Hands the results of messages over to those who wait, or one error for all.
Done: TypeAlias = Callable[[Sequence[Pending], Sequence[SendResult] | Exception], None]


@dataclass(slots=True)
class Lane:
    """What waits for one queue, or, with None, for any.

    Args:
        sending_keys: the sharding keys that chose the queue, of the messages under way.
        placed_count: the messages placed here so far.
        ended_count: those of them whose batch has ended.
    """

    queue: MessageQueue | None
    begun_ms: int
    waiting: deque[Pending] = field(default_factory=deque)
    body_bytes: int = 0
    is_sending: bool = False
    sending_keys: list[str] = field(default_factory=list)
    placed_count: int = 0
    ended_count: int = 0


@dataclass(slots=True)
class KeyedMessages:
    """The messages of one sharding key that have not ended.

    Args:
        queue: the queue in whose lane they are.
        count: how many are in that lane.
        held: later messages, which wait until the lane has none; the route may have changed.
    """

    queue: MessageQueue
    count: int = 0
    held: deque[Pending] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Batcher:
    """Collects messages into batches: a lane for each chosen queue, a few lanes for the others.

    Args:
        config: the bounds of a batch, and how long a message waits for other messages.
        done: called with messages that have ended.
        incoming: messages that were handed over.
        wake: set after every event, so that the loop looks for batches to send.
        settled: set whenever a batch has ended.
    """

    config: ProducerConfig
    done: Done
    incoming: deque[Pending] = field(default_factory=deque)
    wake: Event = field(default_factory=Event)
    settled: Event = field(default_factory=Event)
    # No batch waits for more messages: somebody waits for all, so many times.
    flush_count: int = 0
    is_closing: bool = False
    # How often everything was abandoned that was not under way.
    abandon_count: int = 0
    # Whether the loop looks at what was handed over by itself: now, or within `linger_ms`.
    is_looking: bool = False
    is_lingering: bool = False
    # While the loop lingers, since when.
    _lingers_ms: int | None = None
    # The errors that nobody has read since the last report: how many, the last, when to report.
    unread_count: int = 0
    unread_error: BaseException | None = None
    _report_due_ms: int | None = None
    # By topic: messages whose queue is not chosen yet, while its queues are looked up.
    _unplaced: dict[str, deque[Pending]] = field(default_factory=dict)
    _lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    # By topic and sharding key.
    _keyed: dict[tuple[str, str], KeyedMessages] = field(default_factory=dict)
    # The free lane that is being filled, by topic.
    _open: dict[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not (self.incoming or self._unplaced or self._lanes)

    def hand_over(self, pending: Pending) -> bool:
        """Take a message from any thread, one at a time.

        Returns: whether the loop must be woken: it rests, or the messages may fill a batch.
        """
        incoming = self.incoming
        incoming.append(pending)
        if self.is_looking or (self.is_lingering and not self._may_fill(len(incoming), pending)):
            return False
        self.is_looking = True
        return True

    def _may_fill(self, count: int, last: Pending) -> bool:
        config = self.config
        size = count * len(last.message.body)
        return count >= config.batch_count_max or size >= config.batch_bytes_max

    def begin_rest(self, now_ms: int) -> int | None:
        """Return for how long the loop has nothing to do; None until it is woken."""
        due_ms = self.next_due_ms()
        rest_ms = None if due_ms is None else max(0, due_ms - now_ms)
        self.is_lingering = rest_ms is not None and rest_ms <= self.config.linger_ms
        self._lingers_ms = now_ms if self.is_lingering else None
        self.is_looking = False
        incoming = self.incoming
        if incoming and not (self.is_lingering and len(incoming) < self.config.batch_count_max):
            # They came while the loop was looking, and woke it not.
            self.is_looking = True
            return 0
        return rest_ms

    def take_in(self) -> list[str]:
        """Take what was handed over; return the topics whose queues are to be looked up now."""
        topics: list[str] = []
        incoming, unplaced = self.incoming, self._unplaced
        while incoming:
            pending = incoming.popleft()
            waiting = unplaced.get(topic := pending.message.topic)
            if waiting is None:
                waiting = unplaced[topic] = deque()
                topics.append(topic)
            waiting.append(pending)
        return topics

    def take_unplaced(self, topic: str) -> list[Pending]:
        """Take a topic's messages whose queue is not chosen; after [] its queues are asked anew."""
        unplaced = self._unplaced[topic]
        if not unplaced:
            del self._unplaced[topic]
            return []
        taken = list(unplaced)
        unplaced.clear()
        return taken

    def place(
        self, pendings: Sequence[Pending], queues: Sequence[MessageQueue], now_ms: int
    ) -> None:
        """Put messages of one topic into their lanes.

        Args:
            queues: of the topic, those that take messages.
        """
        # A message may have come at any time since the loop began to linger.
        begun_ms = now_ms if self._lingers_ms is None else self._lingers_ms
        count_max, bytes_max = self.config.batch_count_max, self.config.batch_bytes_max
        free: Lane | None = None
        for pending in pendings:
            message, queue = pending.message, pending.queue
            if queue is None and not message.sharding_key:
                if free is None:
                    number = self._open.setdefault(message.topic, 0)
                    free = self._lane((message.topic, number), None, begun_ms)
                lane = free
            else:
                try:
                    queue = _choose_queue(message, queue, queues)
                except Exception as error:
                    # The user's code may raise anything.
                    self.done((pending,), error)
                    continue
                if pending.queue is None and not self._may_enter(pending, queue):
                    continue
                lane = self._lane((message.topic, queue), queue, begun_ms)
            lane.waiting.append(pending)
            lane.placed_count += 1
            lane.body_bytes += len(message.body)
            # As `_is_full`: a call for each message would cost as much as its other steps here.
            if lane is free and (len(lane.waiting) >= count_max or lane.body_bytes >= bytes_max):
                self._open[message.topic] = (self._open[message.topic] + 1) % FREE_LANES
                free = None

    def _may_enter(self, pending: Pending, queue: MessageQueue) -> bool:
        """Count a message in its key's queue; hold it if earlier messages are in another queue."""
        key = _sharding_key(pending)
        keyed = self._keyed.get(key)
        if keyed is None:
            keyed = self._keyed[key] = KeyedMessages(queue)
        elif keyed.held or keyed.queue != queue:
            keyed.held.append(pending)
            return False
        keyed.count += 1
        return True

    def _leave(self, key: tuple[str, str]) -> None:
        """Count a message that has ended; after the last, those held are to be placed first."""
        keyed = self._keyed.get(key)
        if keyed is None:
            # The batcher was abandoned meanwhile.
            return
        keyed.count -= 1
        if keyed.count == 0:
            del self._keyed[key]
            unplaced = self._unplaced.get(key[0], self.incoming)
            unplaced.extendleft(reversed(keyed.held))

    def _lane(self, key: LaneKey, queue: MessageQueue | None, begun_ms: int) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(queue, begun_ms)
        elif not lane.waiting:
            lane.begun_ms = begun_ms
        return lane

    def begin(self, now_ms: int) -> Iterator[tuple[LaneKey, MessageQueue | None, list[Pending]]]:
        """Return the batches to send now; each lane waits until `end` is called for it."""
        for key, lane in list(self._lanes.items()):
            if not lane.is_sending and lane.waiting and self._due_ms(lane) <= now_ms:
                lane.is_sending = True
                yield key, lane.queue, self._take(lane, now_ms)

    def _take(self, lane: Lane, now_ms: int) -> list[Pending]:
        batch: list[Pending] = []
        waiting, count_max = lane.waiting, self.config.batch_count_max
        if waiting[0].message.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            # No batch goes there.
            count_max = 1
        room, body_bytes = self.config.batch_bytes_max, 0
        # So a batch is never split, and each message knows its offset by the batch's first.
        request_room = self.config.body_bytes_max
        while waiting and len(batch) < count_max:
            message = waiting[0].message
            size = len(message.body)
            room -= size
            request_room -= size + ENTRY_BYTES_MAX
            if message.properties or message.keys:
                text_bytes = 4 * _property_characters(message)
                room -= text_bytes
                request_room -= text_bytes
            if message.tags or message.sharding_key:
                request_room -= 4 * (len(message.tags or "") + len(message.sharding_key or ""))
            is_full = room < 0 or request_room < 0
            # A batch cannot be delayed.
            if batch and (is_full or message.delay_level or batch[0].message.delay_level):
                break
            batch.append(waiting.popleft())
            body_bytes += size
        lane.body_bytes -= body_bytes
        if lane.queue is not None:
            lane.sending_keys = [_sharding_key(p)[1] for p in batch if p.queue is None]
        lane.begun_ms = now_ms
        return batch

    def has_unplaced(self, topic: str) -> bool:
        """Return whether messages of a topic have no lane yet."""
        return (
            topic in self._unplaced
            or any(p.message.topic == topic for p in tuple(self.incoming))
            or any(keyed.held and name == topic for (name, _), keyed in self._keyed.items())
        )

    def find_lane(self, queue: MessageQueue, key: str | None) -> Lane | None:
        """Return the lane of a queue, None if nothing waits for the queue or is under way.

        Args:
            key: the sharding key that chose the queue; its earlier messages may be in another.
        """
        keyed = None if key is None else self._keyed.get((queue.topic, key))
        return self._lanes.get((queue.topic, queue if keyed is None else keyed.queue))

    def end(self, key: LaneKey) -> None:
        """Record that a lane's batch has ended."""
        lane = self._lanes[key]
        lane.is_sending = False
        lane.ended_count = lane.placed_count - len(lane.waiting)
        for sharding_key in lane.sending_keys:
            self._leave((key[0], sharding_key))
        lane.sending_keys = []
        if not lane.waiting:
            del self._lanes[key]
        self.wake.set()
        self.settled.set()

    def note_unread(self, error: BaseException) -> None:
        """Count an error that nobody has read; any thread may call."""
        self.unread_count += 1
        self.unread_error = error

    def take_unread(self, now_ms: int | None) -> tuple[int, BaseException] | None:
        """Take the count of errors that nobody has read, and the last; None if none is due.

        Args:
            now_ms: the time; None at the end, when all are due.
        """
        if self.unread_error is None:
            return None
        if now_ms is not None:
            if self._report_due_ms is None:
                self._report_due_ms = now_ms + UNREAD_GATHER_MS
            if now_ms < self._report_due_ms:
                return None
        taken = self.unread_count, self.unread_error
        self.unread_count, self.unread_error, self._report_due_ms = 0, None, None
        return taken

    def next_due_ms(self) -> int | None:
        """Return when a batch is to be sent, or errors to be reported; None for neither."""
        due = [
            self._due_ms(lane)
            for lane in self._lanes.values()
            if lane.waiting and not lane.is_sending
        ]
        if self._report_due_ms is not None:
            due.append(self._report_due_ms)
        return min(due, default=None)

    def _due_ms(self, lane: Lane) -> int:
        is_wanted = self.is_closing or self.flush_count > 0 or self._is_full(lane)
        return 0 if is_wanted else lane.begun_ms + self.config.linger_ms

    def _is_full(self, lane: Lane) -> bool:
        config = self.config
        return (
            len(lane.waiting) >= config.batch_count_max or lane.body_bytes >= config.batch_bytes_max
        )

    def abandon(self) -> list[Pending]:
        """Take all that is not under way: nobody sends it any more."""
        self.abandon_count += 1
        waiting = [*self.incoming]
        lanes = (lane.waiting for lane in self._lanes.values())
        held = (keyed.held for keyed in self._keyed.values())
        for queue in (*self._unplaced.values(), *lanes, *held):
            waiting += queue
            queue.clear()
        self.incoming.clear()
        self._keyed.clear()
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.is_sending}
        return waiting


def _sharding_key(pending: Pending) -> tuple[str, str]:
    """Return the topic and the sharding key of a message whose key chooses its queue."""
    message = pending.message
    assert message.sharding_key is not None
    return message.topic, message.sharding_key


def _choose_queue(
    message: Message, queue: QueueChoice | None, queues: Sequence[MessageQueue]
) -> MessageQueue:
    if callable(queue):
        return select_queue_by_user(queue, queues, message)
    if queue is not None:
        return queue
    assert message.sharding_key is not None
    return select_queue_by_key(queues, message.sharding_key)


def _property_characters(message: Message) -> int:
    """Return about how long a message's properties are, without its id."""
    size = sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    return size + sum(len(key) + 1 for key in message.keys)
