"""The users of a simulated world: producers, and listeners that are slow or fail.

Tests: test_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeAlias

from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.operations.gather import gather
from sparrowmq.model import (
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
)
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import Later
from sparrowmq.simulation.faults import Faults
from sparrowmq.simulation.sends import Sends

# The longest call of a listener, unless a run has another bound.
LISTENER_MS_MAX = 30
# Longer than the bound for which a revoked queue waits for its listeners.
SLOW_MS_MAX = 14_000
# Half of all messages come in bursts of at most this many messages, sent within this time. A sync
# lasts for some milliseconds, and several messages are appended during a sync.
BURST_MAX = 12
BURST_MS = 20
# Some messages fill whole sectors of a disk; a power cut may keep any of the sectors.
BODY_SIZES = (0, 400, 3_000)
# The most failures of a message before it is consumed; a retry waits 10 s, then 30 s.
FAILURES_MAX = 2
# The delays of delayed messages: 1 s, 5 s and 10 s, or for each second message a time of its own.
DELAY_LEVELS = (1, 1, 2, 3)
DELAYS_MS = (50, 12_000)


class Running(NamedTuple):
    """A running call of a listener: its queue and its start."""

    queue: MessageQueue
    begun_ms: int


RunningCalls: TypeAlias = dict[object, Running]


class Workload:
    """The behaviour of all members' listeners.

    Args:
        faults: the shares of slow and failing calls; `heal` ends both.
        listener_ms_max: the longest of the other calls.
    """

    def __init__(
        self, checkers: Checkers, dice: Dice, faults: Faults, *, listener_ms_max: int
    ) -> None:
        self._checkers = checkers
        self._dice = dice
        self._listener_ms_max = listener_ms_max
        self._slow_share = faults.slow_listener
        self._failing_share = faults.failing_listener
        self._failures_left: dict[bytes, int] = {}

    def heal(self) -> None:
        """Let listeners be quick and succeed from now on."""
        self._slow_share = self._failing_share = 0.0
        self._listener_ms_max = LISTENER_MS_MAX
        self._failures_left = dict.fromkeys(self._failures_left, 0)

    def listen(
        self,
        running: RunningCalls,
        messages: list[MessageExt],
        queue: MessageQueue,
        *,
        now_ms: int,
    ) -> Later:
        """Handle a listener's call.

        Args:
            running: the member's calls under way, with this one until it ends.
            queue: the queue of the messages, perhaps of the retry topic.
        """
        self._checkers.note_delivered(queue, messages)
        call = object()
        running[call] = Running(queue, now_ms)
        dice = self._dice
        is_slow = self._slow_share > 0 and dice.random() < self._slow_share
        duration_ms = dice.randrange(0, SLOW_MS_MAX if is_slow else self._listener_ms_max)
        return Later(duration_ms, partial(self._finish, running, call, messages, queue))

    def _finish(
        self,
        running: RunningCalls,
        call: object,
        messages: list[MessageExt],
        queue: MessageQueue,
    ) -> ConsumeStatus | None:
        del running[call]
        # Every message throws its dice.
        if sum(map(self._fails, messages)):
            if self._dice.random() < 0.5:
                raise ValueError("the listener does not like this message")
            return ConsumeStatus.RECONSUME_LATER
        kept = [message for message in messages if not self._checkers.is_lost(queue, message)]
        self._checkers.note_consumed(queue, [message.queue_offset for message in kept])
        return None

    def _fails(self, message: MessageExt) -> bool:
        left = self._failures_left.get(message.body)
        if left is None:
            drawn = self._failing_share > 0 and self._dice.random() < self._failing_share
            left = self._dice.randrange(1, FAILURES_MAX + 1) if drawn else 0
        self._failures_left[message.body] = max(0, left - 1)
        return left > 0


def make_listener(
    workload: Workload,
    running: RunningCalls,
    monotonic_ms: Callable[[], int],
    check: Callable[[MessageQueue], None],
) -> Callable[[list[MessageExt], ConsumeContext], Later]:
    """Return one member's listener; `check` is called with the queue of each call."""

    def listener(messages: list[MessageExt], context: ConsumeContext) -> Later:
        check(context.queue)
        return workload.listen(running, messages, context.queue, now_ms=monotonic_ms())

    return listener


def produce(
    sends: Sends,
    topic: str,
    *,
    name: str,
    count: int,
    pause_ms_max: int,
    delayed_share: float,
    checkers: Checkers,
    dice: Dice,
) -> Operation[int]:
    """Send messages with different bodies; return the number of acknowledged ones.

    Args:
        delayed_share: the share of the messages that have a delay.
    """
    acked = sent = 0
    while sent < count:
        yield from sleep(dice.randrange(0, pause_ms_max))
        burst = min(count - sent, dice.choice((1, 1, 1, dice.randrange(2, BURST_MAX + 1))))
        operations = []
        for number in range(sent, sent + burst):
            body = f"{name}-{number}".encode()
            size = dice.choice(BODY_SIZES)
            key = f"k{number % 7}" if dice.random() < 0.2 else None
            is_delayed = delayed_share > 0 and dice.random() < delayed_share
            level, delay = _draw_delay(dice) if is_delayed else (0, None)
            message = Message(
                topic, body.ljust(size, b"."), sharding_key=key, delay_level=level, delay=delay
            )
            wait_ms = 0 if burst == 1 else dice.randrange(0, BURST_MS)
            operations.append(_send_one(sends, message, checkers, wait_ms=wait_ms))
        acked += sum((yield from gather(operations, name=f"burst of {name}")))
        sent += burst
    return acked


def _draw_delay(dice: Dice) -> tuple[int, timedelta | None]:
    """Choose a level, or a time of its own."""
    if dice.random() < 0.5:
        return dice.choice(DELAY_LEVELS), None
    return 0, timedelta(milliseconds=dice.randrange(*DELAYS_MS))


def _send_one(
    sends: Sends, message: Message, checkers: Checkers, *, wait_ms: int
) -> Operation[bool]:
    yield from sleep(wait_ms)
    level = message.delay_level
    delay_ms = DELAY_LEVELS_MS[level - 1] if level else 0
    if message.delay is not None:
        delay_ms = message.delay // timedelta(milliseconds=1)
    checkers.note_sent(message.body, delay_ms=delay_ms)
    return (yield from sends.send(message))
