"""What users do in a simulated world: producers that send, listeners that are slow or fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.operations.send import send
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import SparrowError
from sparrowmq.model import (
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    SendStatus,
)
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import Later
from sparrowmq.simulation.faults import Faults

LISTENER_MS_MAX = 30
# Longer than the bound within which a queue that is given up waits for its listeners.
SLOW_MS_MAX = 14_000
# Half of all messages come in bursts: so many at most follow one another without a pause.
BURST_MAX = 12
# How often a message fails, at most, before it is consumed; a retry waits 10 s, then 30 s.
FAILURES_MAX = 2


class Workload:
    """What all members' listeners have in common.

    Args:
        faults: says how often listeners are slow or fail; `heal` ends that.
    """

    def __init__(self, checkers: Checkers, dice: Dice, faults: Faults) -> None:
        self._checkers = checkers
        self._dice = dice
        self._slow_share = faults.slow_listener
        self._failing_share = faults.failing_listener
        self._failures_left: dict[bytes, int] = {}

    def heal(self) -> None:
        """Let listeners be quick and succeed from now on."""
        self._slow_share = self._failing_share = 0.0
        self._failures_left = dict.fromkeys(self._failures_left, 0)

    def listen(
        self, running: dict[object, MessageQueue], messages: list[MessageExt], queue: MessageQueue
    ) -> Later:
        """Be called as a listener.

        Args:
            running: the member's calls under way; this one is in it until it ends.
            messages: the batch.
            queue: where the messages stand, the retry topic's included.
        """
        self._checkers.note_delivered(queue, messages)
        call = object()
        running[call] = queue
        dice = self._dice
        is_slow = self._slow_share > 0 and dice.random() < self._slow_share
        duration_ms = dice.randrange(0, SLOW_MS_MAX if is_slow else LISTENER_MS_MAX)
        return Later(duration_ms, partial(self._finish, running, call, messages, queue))

    def _finish(
        self,
        running: dict[object, MessageQueue],
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
        self._checkers.note_consumed(queue, [message.queue_offset for message in messages])
        return None

    def _fails(self, message: MessageExt) -> bool:
        left = self._failures_left.get(message.body)
        if left is None:
            drawn = self._failing_share > 0 and self._dice.random() < self._failing_share
            left = self._dice.randrange(1, FAILURES_MAX + 1) if drawn else 0
        self._failures_left[message.body] = max(0, left - 1)
        return left > 0


def make_listener(
    workload: Workload, running: dict[object, MessageQueue]
) -> Callable[[list[MessageExt], ConsumeContext], Later]:
    """Return one member's listener."""

    def listener(messages: list[MessageExt], context: ConsumeContext) -> Later:
        return workload.listen(running, messages, context.queue)

    return listener


def produce(
    publisher: Publisher,
    topic: str,
    *,
    name: str,
    count: int,
    pause_ms_max: int,
    checkers: Checkers,
    dice: Dice,
) -> Operation[int]:
    """Send messages, each with a body of its own; return how many were acknowledged."""
    acked = left_in_burst = 0
    for number in range(count):
        if left_in_burst:
            left_in_burst -= 1
        else:
            yield from sleep(dice.randrange(0, pause_ms_max))
            left_in_burst = dice.choice((0, 0, 0, dice.randrange(1, BURST_MAX)))
        body = f"{name}-{number}".encode()
        key = f"k{number % 7}" if dice.random() < 0.2 else None
        try:
            result = yield from send(publisher, Message(topic, body, sharding_key=key))
        except SparrowError:
            # A user would send it again; here it may be lost, or stored and never confirmed.
            continue
        if result.status is SendStatus.SEND_OK:
            acked += 1
            checkers.note_acked(body, result.queue, result.queue_offset)
    return acked
