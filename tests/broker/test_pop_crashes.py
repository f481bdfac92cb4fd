"""Pops across power cuts and kills: what was confirmed about a message holds wherever they come."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from tests.broker.disk_machine import GROUP, Machine

from sparrowmq.broker.pending_replies import PendingReplies
from sparrowmq.broker.pop_changes import Changed, Finished, Flight, PopChange, Popped
from sparrowmq.broker.pop_queues import PopQueues
from sparrowmq.broker.processors import pop
from sparrowmq.model import MessageExt
from sparrowmq.protocol.bodies import SubscriptionGroupConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.pop_handle import (
    INIT_MIN,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    decode_popped,
    handle_of,
    start_offsets,
)
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage

pytestmark = pytest.mark.slow

RETRIES_MAX = 3
INVISIBLE_MS_MAX = 2_000
DEAD_LETTERS = f"%DLQ%{GROUP}"


@dataclass
class PopUsers:
    """Users who send messages, pop them, and acknowledge some, until the power goes.

    Args:
        sent: the messages whose send was confirmed.
        ended: the messages whose acknowledgement was confirmed.
        ended_in_time: these, if the message was hidden still: it was no dead letter.
        in_doubt: those of `ended`, and those whose acknowledgement was never answered.
        hidden_until_ms: how long a confirmed pop or change hides a message.
        attempts: the number of deliveries, by message.
    """

    rng: Random
    sent: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    ended_in_time: set[bytes] = field(default_factory=set)
    in_doubt: set[bytes] = field(default_factory=set)
    hidden_until_ms: dict[bytes, int] = field(default_factory=dict)
    attempts: dict[bytes, int] = field(default_factory=dict)
    handles: dict[bytes, PopHandle] = field(default_factory=dict)
    count: int = 0

    def work(self, machine: Machine) -> None:
        """Send, pop, acknowledge, change times and wait."""
        while True:
            step = self.rng.randrange(8)
            if step <= 1:
                self.count += 1
                body = b"m%d" % self.count
                machine.send(body)
                self.sent.add(body)
            elif step <= 3:
                self.pop(machine, count_max=4)
            elif step == 4 and self.handles:
                self.acknowledge(machine)
            elif step == 5 and self.handles:
                self.change(machine)
            else:
                machine.pass_time(self.rng.choice((100, 800)))

    def pop(self, machine: Machine, *, count_max: int) -> int:
        """Pop, check what comes, and return how many messages came."""
        header = PopMessageRequestHeader(
            consumer_group=GROUP,
            topic="T",
            queue_id=-1,
            max_msg_nums=count_max,
            invisible_time_ms=self.rng.randrange(100, INVISIBLE_MS_MAX),
            poll_time_ms=0,
            born_timestamp_ms=machine.now_ms,
            init_mode=INIT_MIN,
        )
        reply = machine.ask(RequestCode.POP_MESSAGE, encode_header(header))
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            return 0
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        answer = decode_header(PopMessageResponseHeader, reply.ext_fields)
        name = machine.broker.state.config.broker_name
        messages = decode_popped(reply.body or b"", broker_name=name)
        for message in messages:
            self.note(machine, message, answer)
        return len(messages)

    def note(self, machine: Machine, message: MessageExt, answer: PopMessageResponseHeader) -> None:
        """Check that a message may come now, and note its handle."""
        body = message.body
        assert body not in self.ended, f"{body!r} comes after its acknowledgement"
        hidden_ms = self.hidden_until_ms.get(body, 0) - machine.now_ms
        assert hidden_ms <= 0, f"{body!r} comes {hidden_ms} ms early"
        # An attempt whose answer was lost counts too.
        times = self.attempts[body] = self.attempts.get(body, 0) + 1
        assert times <= message.reconsume_times + 1 <= RETRIES_MAX + 1, f"{body!r}: {times}"
        self.handles[body] = handle_of(message, answer, start_offsets(answer), address="")
        self.hidden_until_ms[body] = machine.now_ms + answer.invisible_time_ms

    def acknowledge(self, machine: Machine) -> None:
        """Acknowledge a message, perhaps too late."""
        body = self.rng.choice(sorted(self.handles))
        header = self.handles.pop(body).ack_header(GROUP, "T")
        is_known = body in self.in_doubt
        self.in_doubt.add(body)
        try:
            code = machine.call(RequestCode.ACK_MESSAGE, encode_header(header))
        except PowerCut:
            # The answer may have gone out before.
            self.ended.update(
                body for each in machine.answers() if each.code == ResponseCode.SUCCESS
            )
            raise
        if code == ResponseCode.SUCCESS:
            self.ended.add(body)
            if machine.now_ms < self.hidden_until_ms.get(body, 0):
                self.ended_in_time.add(body)
        elif not is_known:
            self.in_doubt.discard(body)

    def change(self, machine: Machine) -> None:
        """Hide a message for another time."""
        body = self.rng.choice(sorted(self.handles))
        handle, hidden_ms = self.handles[body], self.hidden_until_ms.pop(body, 0)
        invisible_ms = self.rng.randrange(100, INVISIBLE_MS_MAX)
        header = handle.change_header(GROUP, "T", invisible_ms=invisible_ms)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        reply = machine.ask(code, encode_header(header))
        if reply.code == ResponseCode.SUCCESS:
            changed = decode_header(ChangeInvisibleTimeResponseHeader, reply.ext_fields)
            self.handles[body] = handle.changed(changed)
            self.hidden_until_ms[body] = machine.now_ms + invisible_ms
        else:
            self.hidden_until_ms[body] = hidden_ms


def set_group(machine: Machine) -> None:
    config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=RETRIES_MAX)
    machine.broker.state.put_group(config, timestamp_ms=machine.now_ms)
    machine.pass_time(200)


def run(*, is_power_cut: bool) -> None:
    """Let users work while the power goes again and again, and check what they got."""
    for seed in range(12):
        rng = Random(seed)
        machine, users = Machine(SimulatedStorage(rng)), PopUsers(rng)
        set_group(machine)
        for _ in range(8):
            machine.storage.changes_left = rng.randrange(20, 300)
            with pytest.raises(PowerCut):
                users.work(machine)
            while True:
                if is_power_cut:
                    machine.storage.lose_power()
                else:
                    machine.storage.kill()
                machine.now_ms += rng.choice((0, 1_000))
                # The power may fail again while the broker starts.
                machine.storage.changes_left = rng.choice((None, rng.randrange(1, 60)))
                with suppress(PowerCut):
                    machine.load()
                    break
        machine.storage.changes_left = None
        # Nobody acknowledges from now on: each message comes until it is a dead letter.
        for _ in range(2 * (RETRIES_MAX + 1)):
            while users.pop(machine, count_max=32):
                pass
            machine.pass_time(INVISIBLE_MS_MAX + 200)

        dead = set(machine.bodies(DEAD_LETTERS))
        assert dead & users.ended_in_time == set(), f"seed {seed}"
        lost = users.sent - dead - users.in_doubt
        assert lost == set(), f"seed {seed}"
        assert len(machine.broker.state.pops) == 0, f"seed {seed}"
        assert len(users.ended_in_time) > 10, f"seed {seed}"
        assert dead, f"seed {seed}"


@pytest.mark.parametrize("is_power_cut", [True, False], ids=["power cut", "kill"])
def test_what_was_confirmed_about_popped_messages_holds_wherever_the_power_goes(
    is_power_cut: bool,
) -> None:
    run(is_power_cut=is_power_cut)


def test_acknowledgement_that_changes_nothing_is_answered_after_a_restart() -> None:
    machine = Machine(SimulatedStorage(Random(1)))
    users = PopUsers(Random(1))
    machine.send(b"a")
    users.pop(machine, count_max=1)
    header = encode_header(users.handles[b"a"].ack_header(GROUP, "T"))
    first = machine.call(RequestCode.ACK_MESSAGE, header)
    machine.storage.kill()
    machine.load()

    again = machine.serve(RequestCode.ACK_MESSAGE, header)

    assert first == ResponseCode.SUCCESS
    assert [answer.code for answer in again] == [ResponseCode.SUCCESS]


# --- mistakes planted on purpose ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (Finished, "comes after its acknowledgement"),
        (Popped, "comes after its acknowledgement"),
        (Changed, "ms early"),
    ],
)
def test_change_that_is_not_logged_is_caught(
    monkeypatch: pytest.MonkeyPatch, kind: type, seen: str
) -> None:
    note = PopQueues._note

    def note_others(pops: PopQueues, change: PopChange) -> None:
        if not isinstance(change, kind):
            note(pops, change)

    monkeypatch.setattr(PopQueues, "_note", note_others)

    with pytest.raises(AssertionError, match=seen):
        run(is_power_cut=False)


def test_answer_that_does_not_wait_for_its_flush_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PendingReplies, "add", lambda _, reply, **__: (reply,))

    with pytest.raises(AssertionError, match="comes after its acknowledgement"):
        run(is_power_cut=True)


def test_dead_letter_that_is_not_stored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop, "_put_dead_letter", lambda *_, **__: True)

    with pytest.raises(AssertionError, match="seed 0"):
        run(is_power_cut=False)


def test_attempt_that_is_not_counted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flight, "next_times", 0)

    with pytest.raises(AssertionError, match=": 2"):
        run(is_power_cut=False)


def test_time_that_a_restart_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    load = PopQueues.load

    def load_late(pops: PopQueues, *args: Any, timestamp_ms: int, **settings: Any) -> Any:
        late_ms = timestamp_ms + INVISIBLE_MS_MAX
        return load(pops, *args, timestamp_ms=late_ms, **settings)

    monkeypatch.setattr(PopQueues, "load", load_late)

    with pytest.raises(AssertionError, match="ms early"):
        run(is_power_cut=False)
