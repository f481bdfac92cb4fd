"""Bodies of clients that write values of another kind than Java's clients.

What is read was read by fastjson 1.2.69 with the classes of RocketMQ 4.9.7.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    CreateTopicListRequestBody,
    DataVersion,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchRequestBody,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigTable,
    UnlockBatchRequestBody,
    decode_body,
)

QUEUE = MessageQueue("T", "b", 3)


def heartbeat(consumer: str) -> bytes:
    return b'{"clientID":"c","consumerDataSet":[{"groupName":"g",%b}]}' % consumer.encode()


def consumer_of(text: str) -> dict[str, Any]:
    """Return the fields of a heartbeat's consumer that are not the default."""
    (consumer,) = decode_body(HeartbeatData, heartbeat(text)).consumer_data_set
    usual = structs.asdict(ConsumerData(group_name="g"))
    return {
        name: getattr(value, "name", value)
        for name, value in structs.asdict(consumer).items()
        if value != usual[name]
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"consumeType":0', {"consume_type": "CONSUME_ACTIVELY"}),
        ('"consumeType":1', {}),
        ('"consumeType":"consume_actively"', {"consume_type": "CONSUME_ACTIVELY"}),
        # A name of a later version, or none.
        ('"consumeType":"CONSUME_POP"', {}),
        ('"consumeType":"0"', {}),
        ('"consumeType":""', {}),
        ('"consumeType":null', {}),
        ('"messageModel":0', {"message_model": "BROADCASTING"}),
        ('"messageModel":1', {}),
        ('"messageModel":"Broadcasting"', {"message_model": "BROADCASTING"}),
        ('"consumeFromWhere":2', {"consume_from_where": "CONSUME_FROM_MIN_OFFSET"}),
        ('"consumeFromWhere":4', {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}),
        ('"consumeFromWhere":5', {"consume_from_where": "CONSUME_FROM_TIMESTAMP"}),
        ('"unitMode":1', {"unit_mode": True}),
        ('"unitMode":1.0', {"unit_mode": True}),
        ('"unitMode":2', {}),
        ('"unitMode":"true"', {"unit_mode": True}),
        ('"unitMode":"1"', {"unit_mode": True}),
        ('"unitMode":"Y"', {"unit_mode": True}),
        ('"unitMode":"FALSE"', {}),
        ('"unitMode":""', {}),
        ('"GroupName":"h"', {}),
        ('"subscriptionDataSet":null', {}),
        ("'unitMode':'true'", {"unit_mode": True}),
        ("unitMode:true,", {"unit_mode": True}),
        ('"more":{"x":[1]}', {}),
    ],
)
def test_a_consumer_of_a_heartbeat_is_read_as_java_reads_it(
    text: str, expected: dict[str, Any]
) -> None:
    assert consumer_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"subVersion":"12"', {"sub_version": 12}),
        ('"subVersion":"1,200"', {"sub_version": 1200}),
        ('"subVersion":1.9', {"sub_version": 1}),
        ('"subVersion":""', {}),
        ('"subVersion":"null"', {}),
        ('"subVersion":null', {}),
        ('"tagsSet":[1,true,null,"a"]', {"tags_set": frozenset({"1", "true", "a"})}),
        ('"codeSet":["5",6,null,7.9,true]', {"code_set": frozenset({1, 5, 6, 7})}),
        ('"subString":5', {"sub_string": "5"}),
        ('"classFilterMode":"false"', {}),
        ('"classFilterMode":"true"', {"class_filter_mode": True}),
    ],
)
def test_a_subscription_is_read_as_java_reads_it(text: str, expected: dict[str, Any]) -> None:
    data = heartbeat(f'"subscriptionDataSet":[{{"topic":"T",{text}}}]')
    (consumer,) = decode_body(HeartbeatData, data).consumer_data_set

    assert consumer.subscription_data_set == [SubscriptionData(topic="T", **expected)]


QUEUES = b'{"clientId":"c","consumerGroup":"g","mqSet":[%b]}'


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"clientID":5}', HeartbeatData(client_id="5")),
        (
            QUEUES % b'{"topic":"T","brokerName":"b","queueId":"3"}',
            LockBatchRequestBody(client_id="c", consumer_group="g", mq_set=[QUEUE]),
        ),
        (
            QUEUES % b'{"topic":"T","brokerName":"b","queueId":3.0,"more":1}',
            LockBatchRequestBody(client_id="c", consumer_group="g", mq_set=[QUEUE]),
        ),
        (
            QUEUES % b'{"topic":"T","brokerName":"b"},null',
            UnlockBatchRequestBody(
                client_id="c", consumer_group="g", mq_set=[MessageQueue("T", "b", 0)]
            ),
        ),
        (
            b'{"clientId":"c","consumerGroup":"g","mqSet":null}',
            UnlockBatchRequestBody(client_id="c", consumer_group="g"),
        ),
        (
            b'{"clientId":5,"group":"g","subscriptionData":{"topic":"T","subVersion":"5"}}',
            CheckClientRequestBody(
                client_id="5",
                group="g",
                subscription_data=SubscriptionData(topic="T", sub_version=5),
            ),
        ),
        (
            b'{"groupName":"g","consumeEnable":"false","brokerId":"1","retryMaxTimes":-1.5}',
            SubscriptionGroupConfig(
                group_name="g", consume_enable=False, broker_id=1, retry_max_times=-1
            ),
        ),
        (
            b'{"groupConfigList":[{"groupName":5,"retryMaxTimes":true,"retryQueueNums":""}]}',
            SubscriptionGroupList(
                group_config_list=[SubscriptionGroupConfig(group_name="5", retry_max_times=1)]
            ),
        ),
        (
            b'{"topicConfigList":[{"topicName":"T","perm":"6","topicFilterType":1,"order":"1"}]}',
            CreateTopicListRequestBody(
                topic_config_list=[
                    TopicConfig(topic_name="T", topic_filter_type="MULTI_TAG", order=True)
                ]
            ),
        ),
        (
            b'{"dataVersion":{"counter":"5","timestamp":"7"}}',
            TopicConfigTable(data_version=DataVersion(counter=5, timestamp_ms=7)),
        ),
        (
            b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":"3"}:"5"}}',
            ResetOffsetBody(offset_table={QUEUE: 5}),
        ),
        (
            b'{"messageQueueTable":{{"topic":"T","brokerName":"b","queueId":3}:5.0}}',
            GetConsumerStatusBody(message_queue_table={QUEUE: 5}),
        ),
        (
            b'{"consumeResult":0,"order":1,"spentTimeMills":"5"}',
            ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS", order=True, spent_time_ms=5),
        ),
        (
            b'{"properties":{"PROP_THREADPOOL_CORE_SIZE":20,"PROP_CONSUMEORDERLY":false}}',
            ConsumerRunningInfo(
                properties={"PROP_THREADPOOL_CORE_SIZE": "20", "PROP_CONSUMEORDERLY": "false"}
            ),
        ),
    ],
)
def test_a_body_is_read_as_java_reads_it(data: bytes, expected: Any) -> None:
    assert decode_body(type(expected), data) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"consumeType":2',
        '"consumeType":-1',
        '"consumeType":1.0',
        '"consumeType":true',
        '"consumeType":{}',
        '"consumeFromWhere":9',
        '"unitMode":"x"',
        '"subscriptionDataSet":[{"topic":"T","subVersion":true}]',
        '"subscriptionDataSet":[{"topic":"T","subVersion":"x"}]',
        '"subscriptionDataSet":[{"topic":"T","subVersion":" 12"}]',
        '"subscriptionDataSet":[{"topic":"T","codeSet":[99999999999]}]',
        '"subscriptionDataSet":[{"topic":"T","tagsSet":{}}]',
        '"subscriptionDataSet":[{"topic":"T","tagsSet":"a"}]',
        '"subscriptionDataSet":"x"',
    ],
)
def test_what_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(HeartbeatData, heartbeat(text))
