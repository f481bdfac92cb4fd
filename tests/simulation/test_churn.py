"""Live groups under MINIMAL_MOVE: no event moves more queues than the least, plus one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from churn import least_moves, run_churn, run_storm
from sparrowmq.broker import broker
from sparrowmq.broker.processors import clients
from sparrowmq.broker.state import BrokerState
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Request

EVENTS = 15
# A member is told of another at once; the rest is a look at the owners and a handover.
OWNED_MS_MAX = 500


@pytest.fixture
def brokers_tell_no_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers pass over what RocketMQ's do not know; members are asked instead."""

    def consumer_list(state: BrokerState, request: Request) -> Sequence[Output]:
        fields = dict(request.command.ext_fields or {})
        fields.pop("sparrowmqOwners", None)
        request.command.ext_fields = fields
        return clients.consumer_list(state, request)

    served = {**broker.PROCESSORS, RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list}
    monkeypatch.setattr(broker, "PROCESSORS", served)


def check_churn(*, seeds: int) -> None:
    moves = [move for seed in range(seeds) for move in run_churn(seed, event_count=EVENTS)]
    print("events", len(moves), "more than the least", [m for m in moves if m.moved > m.least])

    assert len(moves) == EVENTS * seeds
    assert sum(move.least for move in moves) > EVENTS * seeds
    assert [move for move in moves if move.moved > move.least + 1] == []
    assert {move.spread for move in moves} == {0, 1}
    assert max(move.owned_ms for move in moves) <= OWNED_MS_MAX


@pytest.mark.long
def test_live_members_move_the_least_plus_one_at_most() -> None:
    check_churn(seeds=15)


@pytest.mark.long
def test_the_same_holds_where_brokers_tell_no_owners(brokers_tell_no_owners: None) -> None:
    check_churn(seeds=15)


@pytest.mark.slow
def test_a_strategy_that_does_not_look_at_owners_moves_more() -> None:
    moves = run_churn(1, event_count=EVENTS, strategy="AVG_BY_CIRCLE")

    assert max(move.moved - move.least for move in moves) > 1


@pytest.mark.slow
def test_members_agree_after_a_storm_of_events() -> None:
    assert max(run_storm(seed, event_count=20) for seed in range(10)) <= 1_500


def test_the_least_is_the_queues_of_who_has_gone_and_those_beyond_a_part() -> None:
    queues = [MessageQueue("T", "b", number) for number in range(8)]
    before = dict.fromkeys(queues[:4], "a") | dict.fromkeys(queues[4:], "b")

    assert least_moves(before, queues, ["a", "b", "c"]) == 2
    assert least_moves(before, queues, ["a"]) == 4
    assert least_moves(before, queues, ["a", "b"]) == 0
