"""Messages for later: what the broker is asked, and what is sent where it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from play import make_idle_subscriber
from sparrowmq.client.operations import member_loop
from sparrowmq.client.operations.send_back import (
    AGAIN_BROKERS_MAX,
    queues_for_again,
    send_again,
    send_back,
)
from sparrowmq.client.route_cache import route_from
from sparrowmq.errors import BrokerError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.bodies import PERM_WRITE, BrokerData, QueueData, TopicRouteAnswer
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
    decode_header,
)
from sparrowmq.protocol.properties import parse_properties

MESSAGE = MessageExt(
    topic="T",
    body=b"body",
    properties={
        "UNIQ_KEY": "U",
        "TAGS": "A",
        "TRAN_MSG": "true",
        "RECONSUME_TIME": "2",
        "WAIT": "false",
    },
    broker_name="b",
    queue_id=3,
    queue_offset=7,
    commit_log_position=4_096,
    flag=5,
    reconsume_times=2,
    store_host="10.0.0.1:10911",
)


def answer(code: int) -> Callable[[str, RemotingCommand], RemotingCommand]:
    return lambda _, request: response_to(request, code)


def test_broker_is_asked_by_the_place_in_its_log(play: Callable[..., Any]) -> None:
    run = play(answer(ResponseCode.SUCCESS))

    run(send_back("b:1", "G", message=MESSAGE, delay_level=3, max_reconsume_times=40))

    ((address, request),) = run.requests
    header = decode_header(ConsumerSendMsgBackRequestHeader, request.ext_fields)
    assert (address, request.code) == ("b:1", RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (
        header.position,
        header.group,
        header.delay_level,
        header.origin_msg_id,
        header.origin_topic,
        header.max_reconsume_times,
    ) == (4_096, "G", 3, "U", "T", 40)


def test_message_sent_as_a_new_one_keeps_its_origin_and_counts_on(play: Callable[..., Any]) -> None:
    run = play(answer(ResponseCode.SUCCESS))

    run(
        send_again(
            "c:1",
            "%RETRY%G",
            message=MESSAGE,
            queue_id=0,
            max_reconsume_times=16,
            timestamp_ms=99,
        )
    )

    ((address, request),) = run.requests
    header = decode_header(SendMessageRequestHeaderV2, request.ext_fields)
    assert (address, request.code, request.body) == ("c:1", RequestCode.SEND_MESSAGE_V2, b"body")
    assert (
        header.topic,
        header.queue_id,
        header.reconsume_times,
        header.max_reconsume_times,
        header.born_timestamp_ms,
        header.flag,
    ) == ("%RETRY%G", 0, 3, 16, 99, 5)
    # Level 3 for the first retry, and one more for each time.
    assert parse_properties(header.properties or "") == {
        "UNIQ_KEY": "U",
        "TAGS": "A",
        "ORIGIN_MESSAGE_ID": "U",
        "RETRY_TOPIC": "T",
        "DELAY": "5",
    }


def test_message_sent_as_a_new_one_once_more_keeps_its_first_topic_and_id(
    play: Callable[..., Any],
) -> None:
    first = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "O"}
    message = msgspec.structs.replace(MESSAGE, topic="%RETRY%G", properties=first)
    run = play(answer(ResponseCode.SUCCESS))

    run(
        send_again(
            "c:1", "%RETRY%G", message=message, queue_id=0, max_reconsume_times=16, timestamp_ms=99
        )
    )

    ((_, request),) = run.requests
    header = decode_header(SendMessageRequestHeaderV2, request.ext_fields)
    assert parse_properties(header.properties or "") == {**first, "DELAY": "5"}


def test_messages_sent_as_new_ones_spread_over_the_retry_topic() -> None:
    queues = [MessageQueue("%RETRY%G", f"b{number % 5}", number // 5) for number in range(10)]
    messages = [msgspec.structs.replace(MESSAGE, queue_offset=offset) for offset in range(10)]

    chosen = [queues_for_again(message, queues) for message in messages]

    assert set(queues) == {first for first, *_ in chosen}
    assert {len({q.broker_name for q in tried}) for tried in chosen} == {AGAIN_BROKERS_MAX}
    assert queues_for_again(MESSAGE, []) == []


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
def test_refusals_are_errors(play: Callable[..., Any], code: int) -> None:
    run = play(answer(code))

    with pytest.raises(BrokerError):
        run(send_back("b:1", "G", message=MESSAGE, delay_level=0, max_reconsume_times=16))
    with pytest.raises(BrokerError):
        run(
            send_again(
                "b:1",
                "%RETRY%G",
                message=MESSAGE,
                queue_id=0,
                max_reconsume_times=16,
                timestamp_ms=0,
            )
        )


@pytest.mark.parametrize(("times", "is_dead"), [(14, False), (15, True)])
def test_message_sent_as_a_new_one_counts_its_attempt_before_it_is_a_dead_letter(
    play: Callable[..., Any], times: int, is_dead: bool
) -> None:
    def refuse_back(_: str, request: RemotingCommand) -> RemotingCommand:
        is_back = request.code == RequestCode.CONSUMER_SEND_MSG_BACK
        return response_to(request, ResponseCode.SYSTEM_ERROR if is_back else ResponseCode.SUCCESS)

    subscriber = make_idle_subscriber()
    data = TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: "b:1"})],
        queue_datas=[
            QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=PERM_WRITE)
        ],
    )
    subscriber.routes.update(route_from("%RETRY%G", data, now_ms=0))
    message = msgspec.structs.replace(MESSAGE, reconsume_times=times)

    sent = play(refuse_back)(member_loop._send_back_one(subscriber, message, delay_level=0))
    assert sent == is_dead
