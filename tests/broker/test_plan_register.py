"""The plan register: who gets the loads, which offer is taken, and what a restart keeps."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import pytest

from sparrowmq.broker import plan_register
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.broker.journal_records import PlanChange, decode_changes
from sparrowmq.broker.plan_register import (
    CAPACITY_KEPT_MS,
    KEPT_MS,
    LOADS_AGAIN_MS,
    PERIOD_MS,
    RATE_SPAN_MIN_MS,
    REST_MS,
    PlanRegister,
)
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import GroupPlan, GroupPlanAnswer, decode_body, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Fact

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


def join(rig: Any, client_id: str, connection: Any = None) -> Any:
    connection = connection or rig.connect()
    topic = {"topic": "T", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
    consumer = {"groupName": "GID_c", "subscriptionDataSet": [topic]}
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    reply = rig.call(connection, RequestCode.HEART_BEAT, None, json.dumps(body).encode())
    assert reply.code == 0, reply.remark
    return connection


def pair_of(rig: Any) -> tuple[Any, Any]:
    """Make a topic of four queues with two members, `a` and `b`."""
    rig.create_topic("T", 4)
    return join(rig, "a"), join(rig, "b")


def look(rig: Any, connection: Any, **fields: str) -> GroupPlanAnswer:
    header = {"consumerGroup": "GID_c", **fields}
    reply = rig.call(connection, RequestCode.GET_GROUP_PLAN, header)
    assert reply.code == 0, reply.remark
    return decode_body(GroupPlanAnswer, reply.body)


def a_plan(epoch: int = 0, **changes: Any) -> GroupPlan:
    plan = GroupPlan(
        epoch=epoch,
        client_ids=["a", "b"],
        owners={"a": QUEUES[:2], "b": QUEUES[2:]},
        moved=QUEUES[:1],
        load_before=0.93,
        load_after=0.71,
    )
    return msgspec.structs.replace(plan, **changes)


def ask(
    register: PlanRegister, now_ms: int, progress: dict[MessageQueue, tuple[int, int]]
) -> GroupPlanAnswer:
    """Ask a register as a member of group G, whose queues have come so far."""
    return register.look(
        "G",
        client_id="a",
        capacity_per_s=1,
        known_epoch=0,
        needs_loads=False,
        listed=["a", "b"],
        progress=lambda: progress,
        now_ms=now_ms,
    )


def offer(rig: Any, connection: Any, plan: GroupPlan) -> Any:
    header = {"consumerGroup": "GID_c"}
    return rig.call(connection, RequestCode.OFFER_GROUP_PLAN, header, encode_body(plan))


def wait(rig: Any, duration_ms: int, *connections: Any) -> None:
    """Let time pass; the members stay listed."""
    for _ in range(0, duration_ms, 5_000):
        rig.advance(min(5_000, duration_ms))
        for connection, client_id in zip(connections, "ab", strict=False):
            join(rig, client_id, connection)


class TestLoads:
    def test_rates_lags_and_capacities_are_measured_once_asked_for(self, rig: Any) -> None:
        a, b = pair_of(rig)
        assert look(rig, a, capacityPerMinute="3030").loads is None
        look(rig, b, capacityPerMinute="6000")
        commit = {"consumerGroup": "GID_c", "topic": "T", "queueId": "1", "commitOffset": "5"}
        for _ in range(40):
            rig.send(rig.connect(), queue_id=1)
        # The group has committed nothing of this queue: nothing of it counts as its lag.
        rig.send(rig.connect(), queue_id=2)
        rig.call(a, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        wait(rig, RATE_SPAN_MIN_MS, a, b)

        loads = look(rig, a).loads

        assert loads is not None
        by_queue = {each.queue: (each.rate_per_s, each.lag) for each in loads.queues}
        assert by_queue == {
            QUEUES[0]: (0, 0),
            QUEUES[1]: (4.0, 35),
            QUEUES[2]: (0.1, 0),
            QUEUES[3]: (0, 0),
        }
        assert loads.capacities == {"a": 50.5, "b": 100.0}

    def test_a_capacity_that_is_measured_no_more_is_forgotten(self, rig: Any) -> None:
        a, b = pair_of(rig)
        look(rig, a, capacityPerMinute="600")
        wait(rig, CAPACITY_KEPT_MS, a, b)
        kept = look(rig, b, capacityPerMinute="6000", needsLoads="true").loads
        wait(rig, 5_000, a, b)
        left = look(rig, b, capacityPerMinute="6000", needsLoads="true").loads

        assert kept is not None
        assert kept.capacities == {"a": 10.0, "b": 100.0}
        assert left is not None
        assert left.capacities == {"b": 100.0}

    def test_the_capacity_of_a_member_that_is_gone_is_forgotten(self, rig: Any) -> None:
        a, b = pair_of(rig)
        look(rig, a, capacityPerMinute="600")
        look(rig, b, capacityPerMinute="600")
        rig.broker.connection_closed(b, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
        c = join(rig, "c")
        look(rig, c, capacityPerMinute="600")
        wait(rig, RATE_SPAN_MIN_MS, a)

        loads = look(rig, a, needsLoads="true").loads

        assert loads is not None
        assert loads.capacities == {"a": 10.0, "c": 10.0}

    def test_one_member_gets_them_and_the_next_if_it_dies(self, rig: Any) -> None:
        a, b = pair_of(rig)
        look(rig, a)
        wait(rig, RATE_SPAN_MIN_MS, a, b)

        assert look(rig, a).loads is not None
        assert look(rig, b).loads is None
        wait(rig, LOADS_AGAIN_MS, a, b)
        assert look(rig, b).loads is not None

    def test_a_member_that_plans_elsewhere_gets_them_at_once(self, rig: Any) -> None:
        a, b = pair_of(rig)
        look(rig, a)
        wait(rig, RATE_SPAN_MIN_MS, a, b)

        assert look(rig, a).loads is not None
        assert look(rig, b, needsLoads="true").loads is not None

    def test_who_plans_elsewhere_takes_them_from_nobody(self, rig: Any) -> None:
        a, b = pair_of(rig)
        look(rig, a)
        wait(rig, RATE_SPAN_MIN_MS, a, b)

        assert look(rig, b, needsLoads="true").loads is not None
        assert look(rig, a).loads is not None

    def test_a_queue_that_is_new_to_the_group_has_no_rate_yet(self) -> None:
        register = PlanRegister()
        ask(register, 0, {QUEUES[0]: (0, 0)})
        both = {QUEUES[0]: (100, 0), QUEUES[1]: (1_000_000, 0)}
        loads = ask(register, RATE_SPAN_MIN_MS, both).loads

        assert loads is not None
        assert [each.rate_per_s for each in loads.queues] == [10.0, 0]

    def test_nobody_gets_them_in_a_plans_first_period(self, rig: Any) -> None:
        a, b = pair_of(rig)
        assert offer(rig, a, a_plan()).code == 0
        wait(rig, PERIOD_MS - 5_000, a, b)
        look(rig, a)

        assert look(rig, b).loads is None
        wait(rig, 5_000, a, b)
        assert look(rig, b).loads is None
        wait(rig, 5_000, a, b)
        assert look(rig, b).loads is not None

    def test_a_moved_queue_rests_for_two_periods(self, rig: Any) -> None:
        a, b = pair_of(rig)
        assert offer(rig, a, a_plan()).code == 0
        look(rig, a)
        wait(rig, PERIOD_MS, a, b)
        first = look(rig, a).loads
        wait(rig, REST_MS - PERIOD_MS + 5_000, a, b)
        second = look(rig, a).loads

        assert first is not None
        assert second is not None
        assert (first.resting, second.resting) == ([QUEUES[0]], [])

    def test_a_moved_queue_rests_though_others_move_after_it(self, rig: Any) -> None:
        a, b = pair_of(rig)
        assert offer(rig, a, a_plan()).code == 0
        look(rig, a)
        wait(rig, PERIOD_MS, a, b)
        assert offer(rig, a, a_plan(look(rig, a).epoch, moved=QUEUES[1:2])).code == 0

        loads = look(rig, b, needsLoads="true").loads

        assert loads is not None
        assert loads.resting == QUEUES[:2]

    def test_a_tool_reads_the_plan_and_never_plans(self, rig: Any) -> None:
        a, b = pair_of(rig)
        assert offer(rig, a, a_plan()).code == 0
        tool = rig.connect()
        assert look(rig, tool, capacityPerMinute="5").plan is not None
        wait(rig, PERIOD_MS, a, b)

        assert look(rig, tool).loads is None
        loads = look(rig, tool, needsLoads="true").loads
        assert loads is not None
        assert loads.capacities == {}


class TestOffers:
    def test_the_first_is_taken_and_every_member_is_notified(self, rig: Any) -> None:
        a, b = pair_of(rig)
        before = len(rig.outputs)

        first = offer(rig, a, a_plan())
        pushes = rig.pushes(rig.outputs[before:])
        facts = [output.text for output in rig.outputs[before:] if isinstance(output, Fact)]
        second = offer(rig, b, a_plan())

        assert (first.code, second.code) == (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        assert second.remark.startswith("the plan has epoch ")
        assert facts == [
            "group 'GID_c': 1 queue moves for load: the fullest member's falls from 0.93 to 0.71"
        ]
        assert [at for at, _ in pushes] == [a, b]
        found = look(rig, b)
        assert found.plan == a_plan(found.epoch)
        assert found.epoch >= rig.timestamp_ms - 1
        assert look(rig, b, knownEpoch=str(found.epoch)).plan is None

    def test_one_period_has_one_plan_unless_members_change(self, rig: Any) -> None:
        a, b = pair_of(rig)
        offer(rig, a, a_plan())
        epoch = look(rig, a).epoch

        assert "stays for 20 s" in offer(rig, a, a_plan(epoch)).remark
        join(rig, "c")
        grown = a_plan(epoch, client_ids=["a", "b", "c"])
        assert offer(rig, b, grown).code == 0
        assert look(rig, a).epoch > epoch

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            pytest.param({"client_ids": ["a"]}, "other members", id="a member is missing"),
            pytest.param({"client_ids": ["b", "a"]}, "other members", id="unsorted"),
            pytest.param({"owners": {"z": QUEUES}}, "not a member", id="a stranger"),
            pytest.param({"owners": {"a": QUEUES, "b": QUEUES[:1]}}, "two owners", id="two owners"),
            pytest.param({"epoch": 7}, "epoch 0, not 7", id="another epoch"),
            pytest.param({"moved": QUEUES * 2}, "the limit is", id="more moved than planned"),
        ],
    )
    def test_another_plan_is_refused(self, rig: Any, changes: dict[str, Any], words: str) -> None:
        a, _ = pair_of(rig)

        assert words in offer(rig, a, a_plan(**changes)).remark
        assert look(rig, a).plan is None

    def test_a_stranger_offers_nothing(self, rig: Any) -> None:
        pair_of(rig)

        assert "does not list" in offer(rig, rig.connect(), a_plan()).remark

    def test_all_plans_together_are_bounded(
        self, rig: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, _ = pair_of(rig)
        monkeypatch.setattr(plan_register, "PLANNED_QUEUES_MAX", 3)

        assert "may have 3 queues" in offer(rig, a, a_plan()).remark

    def test_groups_beyond_a_bound_get_no_loads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_register, "PLANS_MAX", 1)
        register = PlanRegister()

        def loads(group: str, now_ms: int) -> object:
            return register.look(
                group,
                client_id="a",
                capacity_per_s=1,
                known_epoch=0,
                needs_loads=True,
                listed=["a"],
                progress=lambda: {QUEUES[0]: (1, 1)},
                now_ms=now_ms,
            ).loads

        found = [loads(group, now_ms) for now_ms in (0, 10_000) for group in ("first", "second")]
        assert [each is not None for each in found] == [False, False, True, False]

    def test_a_forgotten_plan_leaves_its_room_to_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_register, "PLANNED_QUEUES_MAX", 4)
        register = PlanRegister()
        take = partial(register.offer, offer=a_plan(), listed=["a", "b"], now_ms=0, timestamp_ms=1)

        assert take("first") is None
        assert take("second") is not None
        assert register.drop_unasked(KEPT_MS + 1)
        assert take("second") is None

    def test_a_plan_leaves_its_room_to_the_next_of_its_group(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_register, "PLANNED_QUEUES_MAX", 4)
        register = PlanRegister()
        take = partial(register.offer, "G", listed=["a", "b"], timestamp_ms=1)

        assert take(offer=a_plan(), now_ms=0) is None
        epoch = register.table().plans["G"].epoch
        assert take(offer=a_plan(epoch), now_ms=PERIOD_MS) is None

    def test_a_plan_that_is_asked_for_is_kept(self) -> None:
        register = PlanRegister()
        assert register.offer("G", a_plan(), listed=["a", "b"], now_ms=0, timestamp_ms=1) is None
        kept = []
        for now_ms in range(0, 3 * KEPT_MS, KEPT_MS // 2):
            ask(register, now_ms, {})
            register.drop_unasked(now_ms)
            kept.append(register.find("G") is not None)

        assert all(kept)

    def test_a_plan_that_was_put_back_has_room_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_register, "PLANNED_QUEUES_MAX", 4)
        register = PlanRegister()
        register.restore("first", a_plan(), now_ms=0)

        refused = register.offer("second", a_plan(), listed=["a", "b"], now_ms=0, timestamp_ms=1)

        assert refused == "the plans of all groups may have 4 queues"


class TestTheDisk:
    def test_a_plan_is_acknowledged_once_the_journal_has_it(self, rig: Any) -> None:
        a, _ = pair_of(rig)
        rig.holds_work = True
        before = len(rig.outputs)
        header = {"consumerGroup": "GID_c"}
        command = RemotingCommand(
            code=RequestCode.OFFER_GROUP_PLAN, ext_fields=header, body=encode_body(a_plan())
        )
        rig.handle(a, command)
        assert rig.replies(rig.outputs[before:]) == []

        journal = rig.broker.journal_work(now_ms=rig.now_ms)
        (change,) = (c for c in decode_changes(journal.encode()) if isinstance(c, PlanChange))
        replies = rig.replies(rig.broker.journaled(journal, None))

        assert change.group == "GID_c"
        assert change.plan is not None
        assert change.plan.owners == a_plan().owners
        assert [reply.code for reply in replies] == [0]

    def test_a_failed_append_is_written_again(self, rig: Any) -> None:
        a, _ = pair_of(rig)
        rig.holds_work = True
        header = {"consumerGroup": "GID_c"}
        rig.handle(
            a,
            RemotingCommand(
                code=RequestCode.OFFER_GROUP_PLAN, ext_fields=header, body=encode_body(a_plan())
            ),
        )
        work = rig.broker.journal_work(now_ms=rig.now_ms)
        (failed,) = rig.replies(rig.broker.journaled(work, OSError("no space")))
        rig.broker.state.journal.ask()
        again = rig.broker.journal_work(now_ms=rig.now_ms)

        assert failed.code != 0
        assert any(isinstance(c, PlanChange) for c in decode_changes(again.encode()))

    def test_a_restart_keeps_the_plan_and_begins_its_age_anew(
        self, rig: Any, tmp_path: Any
    ) -> None:
        a, _ = pair_of(rig)
        offer(rig, a, a_plan())
        epoch = look(rig, a).epoch
        table = rig.broker.state.plans.table()
        again = type(rig)(
            tmp_path / "again",
            rig.config,
            saved=SavedTables(topics=rig.broker.state.topics.table(), plans=table),
            now_ms=rig.now_ms + 100_000,
        )
        c, d = join(again, "a"), join(again, "b")

        found = look(again, c)
        assert found.epoch == epoch
        assert found.plan == a_plan(epoch)
        assert "stays for 20 s" in offer(again, d, a_plan(epoch)).remark

    def test_a_plan_that_nobody_asks_for_is_dropped(self, rig: Any) -> None:
        a, _ = pair_of(rig)
        offer(rig, a, a_plan())

        rig.advance(KEPT_MS + 2_000)

        assert rig.broker.state.plans.find("GID_c") is None
        assert rig.broker.state.plans.table().plans == {}
