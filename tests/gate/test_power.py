"""Power cuts under mixed load: nothing is broken, and what is broken on purpose is seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gate import power
from sparrowmq.broker import delivered_before
from sparrowmq.broker.config_saving import ConfigSaving
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.pending_replies import PendingReplies
from sparrowmq.broker.plan_register import PlanRegister
from sparrowmq.broker.processors import transaction
from sparrowmq.broker.queue_lock_table import QueueLockTable
from sparrowmq.broker.request_modes import RequestModes
from sparrowmq.broker.state import BrokerState
from sparrowmq.simulation.faulty_disk import SimulatedFile
from sparrowmq.store.journal import Journal

pytestmark = pytest.mark.slow


def test_cuts_that_lack_a_kind_prove_nothing() -> None:
    total = dict.fromkeys(power.KINDS, 1)

    assert power.find_missing(total) == []
    assert power.find_missing(total | {"locks": 0}) == ["locks"]


def test_what_was_confirmed_holds_wherever_the_power_goes() -> None:
    total = power.count(0, 4 * power.LIVES)

    assert total.pop("broken") == 0
    assert set(total) == set(power.KINDS)
    # A plan stays for 20 s, so few are taken.
    assert total.pop("plans")
    assert min(total.values()) > 10


def without_sync(_: SimulatedFile) -> None: ...


def answer_at_once(_: PendingReplies, reply: Any, **__: Any) -> tuple[Any]:
    return (reply,)


def say_at_once(_: BrokerState, outputs: Any, **__: Any) -> list[Any]:
    return list(outputs)


def count_on_topics(_: BrokerState, __: str) -> int:
    return 0


def forget_locks(_: QueueLockTable, *__: Any, **___: Any) -> None: ...


def never_before(*_: Any, **__: Any) -> bool:
    return False


def commit_twice(put: Callable[..., Any]) -> Callable[..., Any]:
    def twice(*arguments: Any) -> Any:
        put(*arguments)
        return put(*arguments)

    return twice


def forget(*_: Any, **__: Any) -> None: ...


def nothing_to_save(_: ConfigSaving, **__: Any) -> None: ...


def append_nothing(_: Journal, *__: Any) -> None: ...


def all_due(load: Callable[..., None]) -> Callable[..., None]:
    def load_late(schedule: DelaySchedule, table: Any, *, timestamp_ms: int) -> None:
        load(schedule, table, timestamp_ms=timestamp_ms)
        for level, offset in schedule.table().offset_table.items():
            schedule._offsets[level] = offset + 1

    return load_late


@pytest.mark.planted
@pytest.mark.parametrize(
    ("place", "name", "mistake", "seen"),
    [
        (SimulatedFile, "sync", without_sync, "StoreError"),
        (PendingReplies, "add", answer_at_once, "is lost|offset .* twice"),
        (BrokerState, "after_journal", say_at_once, "topics|is locked for"),
        (BrokerState, "round_of_topic", count_on_topics, "are gone"),
        (Journal, "append", append_nothing, "topics|is locked for"),
        (QueueLockTable, "restore", forget_locks, "is locked for|has lost"),
        (delivered_before.DeliveredBefore, "has", never_before, "is there twice"),
        (
            transaction,
            "_put_committed",
            commit_twice(transaction._put_committed),
            "half .* is there twice",
        ),
        (RequestModes, "replay", forget, "modes .* and not"),
        (PlanRegister, "restore", forget, "plan None, and not"),
        (ConfigSaving, "save_work", nothing_to_save, "was confirmed long ago"),
        (DelaySchedule, "load", all_due(DelaySchedule.load), "is lost"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistake_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: Any,
    name: str,
    mistake: Any,
    seen: str,
) -> None:
    monkeypatch.setattr(place, name, mistake)

    assert power.count(0, 6 * power.LIVES)["broken"]
    assert re.search(seen, capfd.readouterr().err)
