"""Pops across power cuts and kills: what was confirmed about a message holds wherever they come."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.broker.disk_machine import GROUP, Machine
from tests.broker.pop_users import DEAD_LETTERS, INVISIBLE_MS_MAX, RETRIES_MAX, PopUsers, set_group

from sparrowmq.broker.pending_replies import PendingReplies
from sparrowmq.broker.pop_changes import Changed, Finished, Flight, PopChange, Popped
from sparrowmq.broker.pop_queues import PopQueues
from sparrowmq.broker.processors import pop
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import encode_header
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage

pytestmark = pytest.mark.slow


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


@pytest.mark.planted
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


@pytest.mark.planted
def test_answer_that_does_not_wait_for_its_flush_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PendingReplies, "add", lambda _, reply, **__: (reply,))

    with pytest.raises(AssertionError, match="comes after its acknowledgement"):
        run(is_power_cut=True)


@pytest.mark.planted
def test_dead_letter_that_is_not_stored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop, "_put_dead_letter", lambda *_, **__: True)

    with pytest.raises(AssertionError, match="seed 0"):
        run(is_power_cut=False)


@pytest.mark.planted
def test_attempt_that_is_not_counted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flight, "next_times", 0)

    with pytest.raises(AssertionError, match=": 2"):
        run(is_power_cut=False)


@pytest.mark.planted
def test_time_that_a_restart_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    load = PopQueues.load

    def load_late(pops: PopQueues, *args: Any, timestamp_ms: int, **settings: Any) -> Any:
        late_ms = timestamp_ms + INVISIBLE_MS_MAX
        return load(pops, *args, timestamp_ms=late_ms, **settings)

    monkeypatch.setattr(PopQueues, "load", load_late)

    with pytest.raises(AssertionError, match="ms early"):
        run(is_power_cut=False)
