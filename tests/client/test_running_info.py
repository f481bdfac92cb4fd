"""What a consumer answers a broker that asks about it."""

from __future__ import annotations

import pytest

from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.snapshot import parse_strategy_name
from sparrowmq.client.running_info import answer_about
from sparrowmq.client.subscriber import RebalanceCallbacks, Subscriber
from sparrowmq.membership.actions import Acquire, Pull
from sparrowmq.membership.group_offset import KnownOffset
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.bodies import (
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.strategies import AllocateMessageQueueConsistentHash

QUEUE = MessageQueue("T", "b", 3)
NOW_MS, TIMESTAMP_MS = 5_000, 1_700_000_000_000


@pytest.fixture
def subscriber() -> Subscriber:
    """A consumer of one queue that has pulled offsets 10 and 11 and committed 10."""
    made = Subscriber(
        config=ConsumerConfig(group="GID_info", client_id="me"),
        name_servers=NameServers(("127.0.0.1:9876",)),
        subscriptions={"T": parse_subscription("T", "A || B", sub_version=7)},
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        report=lambda _: None,
        start_timestamp_ms=TIMESTAMP_MS - 1_000,
    )
    member = made.member
    member.due(0)
    member.routes_refreshed(found=["T"], has_changed=True, now_ms=0)
    member.due(0)
    member.heartbeat_done(reached=1, failed=0, now_ms=0)
    member.due(0)
    member.rebalanced([TopicShare("T", (QUEUE,), ("me",))], 0)
    (acquire,) = (action for action in member.due(0) if isinstance(action, Acquire))
    member.acquired(
        QUEUE, acquire.epoch, offset=10, is_committed=True, lock_sent_ms=4_000, now_ms=4_000
    )
    (pull,) = (action for action in member.due(4_500) if isinstance(action, Pull))
    messages = [
        MessageExt(
            topic="T",
            body=b"x",
            properties={},
            broker_name="b",
            queue_id=3,
            queue_offset=offset,
            commit_log_position=offset,
        )
        for offset in (10, 11)
    ]
    member.pulled(QUEUE, pull.epoch, offset=10, messages=messages, next_offset=12, now_ms=4_600)
    return made


def ask(subscriber: Subscriber, code: int, fields: dict[str, str], **more: object) -> object:
    request = RemotingCommand(code=code, ext_fields=fields, **more)  # type: ignore[arg-type]
    return answer_about(subscriber, request, now_ms=NOW_MS, timestamp_ms=TIMESTAMP_MS)


def test_running_info_shows_subscriptions_and_queues(subscriber: Subscriber) -> None:
    fields = {"consumerGroup": "GID_info", "clientId": "me", "jstackEnable": "false"}

    reply = ask(subscriber, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)

    assert isinstance(reply, RemotingCommand)
    info = decode_body(ConsumerRunningInfo, reply.body)
    assert [subscription.topic for subscription in info.subscription_set] == ["T"]
    shown = info.mq_table[QUEUE]
    assert (
        shown.commit_offset,
        shown.cached_msg_min_offset,
        shown.cached_msg_max_offset,
        shown.cached_msg_count,
    ) == (10, 10, 11, 2)
    assert (shown.locked, shown.last_lock_timestamp_ms) == (True, TIMESTAMP_MS - 1_000)
    assert shown.last_pull_timestamp_ms == TIMESTAMP_MS - 500
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert str(TIMESTAMP_MS - 1_000) == info.properties["PROP_CONSUMER_START_TIMESTAMP"]


def test_running_info_marks_a_strategy_with_settings_of_its_own(subscriber: Subscriber) -> None:
    subscriber.strategy = AllocateMessageQueueConsistentHash(virtual_node_cnt=100)
    fields = {"consumerGroup": "GID_info", "clientId": "me"}

    reply = ask(subscriber, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)

    assert isinstance(reply, RemotingCommand)
    properties = decode_body(ConsumerRunningInfo, reply.body).properties
    reported = parse_strategy_name(properties["allocateMessageQueueStrategy"])
    assert reported == "CONSISTENT_HASH (own settings)"


def test_status_gives_the_offsets_of_one_topic(subscriber: Subscriber) -> None:
    fields = {"topic": "T", "group": "GID_info"}

    reply = ask(subscriber, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)

    assert isinstance(reply, RemotingCommand)
    assert decode_body(GetConsumerStatusBody, reply.body).message_queue_table == {QUEUE: 10}


def test_reset_goes_on_at_the_offset_and_has_no_answer(subscriber: Subscriber) -> None:
    fields = {"topic": "T", "group": "GID_info", "timestamp": "0", "isForce": "true"}
    body = encode_body(ResetOffsetBody(offset_table={QUEUE: 2, MessageQueue("T", "b", 0): 9}))

    reply = ask(
        subscriber,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        fields,
        body=body,
        flag=ONEWAY_FLAG,
    )

    assert reply is None
    pulls = [action for action in subscriber.member.due(NOW_MS) if isinstance(action, Pull)]
    assert [pull.offset for pull in pulls] == [2]


def test_reset_holds_at_a_new_master_too(subscriber: Subscriber) -> None:
    queues = [QUEUE, MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)]
    for queue in queues:
        subscriber.known_offsets.note(queue, KnownOffset("10.0.0.1:1", 10, None))
    fields = {"topic": "T", "group": "GID_info", "timestamp": "0", "isForce": "true"}
    body = encode_body(ResetOffsetBody(offset_table=dict.fromkeys(queues[:2], 2)))

    ask(subscriber, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body=body, flag=ONEWAY_FLAG)

    newer = [subscriber.known_offsets.find_newer(queue, "10.0.0.9:1", 2) for queue in queues]
    assert [known is not None for known in newer] == [False, False, True]


def test_other_group_and_other_request_are_refused(subscriber: Subscriber) -> None:
    fields = {"consumerGroup": "GID_other", "clientId": "me"}

    other = ask(subscriber, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    directly = ask(subscriber, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    unknown = ask(subscriber, RequestCode.CHECK_TRANSACTION_STATE, fields)

    assert isinstance(unknown, RemotingCommand)
    for refused in (other, directly):
        assert isinstance(refused, RemotingCommand)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "GID_other" in (refused.remark or "")
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
