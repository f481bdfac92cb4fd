"""A reset of a group: what each broker is asked, with members connected and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from play import Play
from sparrowmq import MessageQueue
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.reset import (
    QueueReset,
    ResetPlan,
    Target,
    apply_reset,
    plan_reset,
)
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.errors import UsageError
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]
PLAN = ResetPlan(
    group="G",
    topic="T",
    target=Target(is_earliest=True),
    queues=tuple(
        QueueReset(q, before, 0, 0, 9) for q, before in zip(QUEUES, (7, 0, None), strict=True)
    ),
    members=(),
    is_whole_topic=True,
)


def asked(plan: ResetPlan) -> list[tuple[int, str | None]]:
    """The codes of the requests, and which queues they are about."""

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        return response_to(request)

    directory, play = make_directory("n:1"), Play(answer)
    directory.routes.update(
        TopicRoute(
            topic="T",
            publish_queues=tuple(QUEUES),
            subscribe_queues=tuple(QUEUES),
            brokers={"b": {0: "b:1"}},
            is_template=False,
            fetched_ms=play.now_ms,
        )
    )
    play(apply_reset(directory, plan))
    return [(r.code, (r.ext_fields or {}).get("queueId")) for _, r in play.requests]


def test_without_members_every_offset_is_committed() -> None:
    commit = RequestCode.UPDATE_CONSUMER_OFFSET

    assert asked(PLAN) == [(commit, "0"), (commit, "1"), (commit, "2")]


def test_with_members_brokers_tell_them_once_every_queue_has_an_offset() -> None:
    commit, tell = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    # 4.x says 0 for nothing, and refuses to tell members while a queue has nothing.
    assert asked(replace(PLAN, members=("m",))) == [(commit, "1"), (commit, "2"), (tell, None)]


@pytest.mark.parametrize(
    ("target", "timestamp"),
    [
        (Target(is_earliest=True), 0),
        (Target(is_latest=True), -1),
        (Target(timestamp_ms=5), 5),
        (Target(offset=5), None),
    ],
)
def test_what_a_broker_is_told(target: Target, timestamp: int | None) -> None:
    assert timestamp == target.broker_timestamp


def test_a_time_that_means_the_end_to_brokers_is_refused() -> None:
    with pytest.raises(UsageError, match="to skip all messages, go on at latest"):
        Target(timestamp_ms=-1)


@pytest.mark.parametrize(
    ("before", "target", "after", "skipped"),
    [
        (None, Target(is_earliest=True), 100, 0),
        (None, Target(is_latest=True), 200, 100),
        (5, Target(is_earliest=True), 100, 0),
        (5, Target(offset=150), 150, 50),
        (150, Target(offset=160), 160, 10),
        (150, Target(is_earliest=True), 100, -50),
        # The broker has lost its newest messages.
        (300, Target(is_earliest=True), 100, -100),
        # Brokers of 4.x may answer a time with 0.
        (150, Target(timestamp_ms=5), 0, -50),
    ],
)
def test_messages_that_have_expired_are_neither_skipped_nor_come_again(
    before: int | None, target: Target, after: int, skipped: int
) -> None:
    broker = BrokerData(broker_name="b", broker_addrs={0: "b:1"})
    queue = QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)
    bodies = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_body(
            TopicRouteData(broker_datas=[broker], queue_datas=[queue])
        ),
        RequestCode.GET_BROKER_CLUSTER_INFO: encode_body(
            ClusterInfo(broker_addr_table={"b": broker})
        ),
        RequestCode.GET_CONSUME_STATS: b"{}",
    }
    offsets = {
        RequestCode.QUERY_CONSUMER_OFFSET: before,
        RequestCode.GET_MIN_OFFSET: 100,
        RequestCode.GET_MAX_OFFSET: 200,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 0,
    }

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        code = RequestCode(request.code)
        if code in bodies:
            return response_to(request, body=bodies[code])
        if (offset := offsets.get(code)) is not None:
            return response_to(request, ext_fields={"offset": str(offset)})
        has_none = code == RequestCode.QUERY_CONSUMER_OFFSET
        return response_to(
            request, ResponseCode.QUERY_NOT_FOUND if has_none else ResponseCode.SYSTEM_ERROR
        )

    plan = Play(answer)(plan_reset(make_directory("n:1"), "G", "T", target=target))

    (change,) = plan.queues
    assert (change.before, change.after, change.skipped) == (before, after, skipped)
