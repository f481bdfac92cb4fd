"""A reset of a group: what each broker is asked, with members connected and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from play import Play
from sparrowmq import MessageQueue
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.reset import QueueReset, ResetPlan, Target, apply_reset
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]
PLAN = ResetPlan(
    group="G",
    topic="T",
    target=Target(is_earliest=True),
    queues=tuple(
        QueueReset(q, before, 0, 9) for q, before in zip(QUEUES, (7, 0, None), strict=True)
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
