"""A transcript of requests and answers of a real name server and broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from batches import decode_batch
from golden import each_case
from sparrowmq.protocol import bodies, headers
from sparrowmq.protocol.bodies import decode_body, encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.record import decode_messages, encode_batch
from sparrowmq.protocol.register_body import decode_register_body, encode_register_body
from steps import run_steps

R = RequestCode
H = headers
B = bodies

REQUEST_HEADERS: dict[int, type[msgspec.Struct]] = {
    R.SEND_MESSAGE: H.SendMessageRequestHeader,
    R.SEND_MESSAGE_V2: H.SendMessageRequestHeaderV2,
    R.SEND_BATCH_MESSAGE: H.SendMessageRequestHeaderV2,
    R.PULL_MESSAGE: H.PullMessageRequestHeader,
    R.QUERY_MESSAGE: H.QueryMessageRequestHeader,
    R.QUERY_CONSUMER_OFFSET: H.QueryConsumerOffsetRequestHeader,
    R.UPDATE_CONSUMER_OFFSET: H.UpdateConsumerOffsetRequestHeader,
    R.UPDATE_AND_CREATE_TOPIC: H.CreateTopicRequestHeader,
    R.SEARCH_OFFSET_BY_TIMESTAMP: H.SearchOffsetRequestHeader,
    R.GET_MAX_OFFSET: H.GetMaxOffsetRequestHeader,
    R.GET_MIN_OFFSET: H.GetMinOffsetRequestHeader,
    R.GET_EARLIEST_MSG_STORETIME: H.GetEarliestMsgStoretimeRequestHeader,
    R.VIEW_MESSAGE_BY_ID: H.ViewMessageRequestHeader,
    R.UNREGISTER_CLIENT: H.UnregisterClientRequestHeader,
    R.CONSUMER_SEND_MSG_BACK: H.ConsumerSendMsgBackRequestHeader,
    R.END_TRANSACTION: H.EndTransactionRequestHeader,
    R.GET_CONSUMER_LIST_BY_GROUP: H.GetConsumerListByGroupRequestHeader,
    R.NOTIFY_CONSUMER_IDS_CHANGED: H.NotifyConsumerIdsChangedRequestHeader,
    R.PUT_KV_CONFIG: H.PutKVConfigRequestHeader,
    R.GET_KV_CONFIG: H.GetKVConfigRequestHeader,
    R.DELETE_KV_CONFIG: H.DeleteKVConfigRequestHeader,
    R.GET_KVLIST_BY_NAMESPACE: H.GetKVListByNamespaceRequestHeader,
    R.REGISTER_BROKER: H.RegisterBrokerRequestHeader,
    R.UNREGISTER_BROKER: H.UnRegisterBrokerRequestHeader,
    R.QUERY_DATA_VERSION: H.QueryDataVersionRequestHeader,
    R.GET_ROUTEINFO_BY_TOPIC: H.GetRouteInfoRequestHeader,
    R.WIPE_WRITE_PERM_OF_BROKER: H.WipeWritePermOfBrokerRequestHeader,
    R.ADD_WRITE_PERM_OF_BROKER: H.WipeWritePermOfBrokerRequestHeader,
    R.GET_TOPICS_BY_CLUSTER: H.GetTopicsByClusterRequestHeader,
    R.GET_TOPIC_STATS_INFO: H.GetTopicStatsInfoRequestHeader,
    R.GET_CONSUME_STATS: H.GetConsumeStatsRequestHeader,
    R.GET_CONSUMER_CONNECTION_LIST: H.GetConsumerConnectionListRequestHeader,
    R.GET_PRODUCER_CONNECTION_LIST: H.GetProducerConnectionListRequestHeader,
    R.QUERY_TOPIC_CONSUME_BY_WHO: H.QueryTopicConsumeByWhoRequestHeader,
    R.QUERY_CONSUME_TIME_SPAN: H.QueryConsumeTimeSpanRequestHeader,
    R.QUERY_CONSUME_QUEUE: H.QueryConsumeQueueRequestHeader,
    R.GET_CONSUMER_RUNNING_INFO: H.GetConsumerRunningInfoRequestHeader,
    R.CONSUME_MESSAGE_DIRECTLY: H.ConsumeMessageDirectlyResultRequestHeader,
    R.INVOKE_BROKER_TO_RESET_OFFSET: H.ResetOffsetRequestHeader,
    R.RESET_CONSUMER_CLIENT_OFFSET: H.ResetOffsetRequestHeader,
    R.CLONE_GROUP_OFFSET: H.CloneGroupOffsetRequestHeader,
    R.DELETE_SUBSCRIPTIONGROUP: H.DeleteSubscriptionGroupRequestHeader,
    R.DELETE_TOPIC_IN_BROKER: H.DeleteTopicRequestHeader,
    R.DELETE_TOPIC_IN_NAMESRV: H.DeleteTopicFromNamesrvRequestHeader,
}
REQUEST_BODIES: dict[int, type[msgspec.Struct]] = {
    R.HEART_BEAT: B.HeartbeatData,
    R.LOCK_BATCH_MQ: B.LockBatchRequestBody,
    R.UNLOCK_BATCH_MQ: B.UnlockBatchRequestBody,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: B.SubscriptionGroupConfig,
    R.QUERY_DATA_VERSION: B.DataVersion,
    R.CHECK_CLIENT_CONFIG: B.CheckClientRequestBody,
    R.RESET_CONSUMER_CLIENT_OFFSET: B.ResetOffsetBody,
}
RESPONSE_HEADERS: dict[int, type[msgspec.Struct]] = {
    R.SEND_MESSAGE: H.SendMessageResponseHeader,
    R.SEND_MESSAGE_V2: H.SendMessageResponseHeader,
    R.SEND_BATCH_MESSAGE: H.SendMessageResponseHeader,
    R.PULL_MESSAGE: H.PullMessageResponseHeader,
    R.QUERY_MESSAGE: H.QueryMessageResponseHeader,
    R.QUERY_CONSUMER_OFFSET: H.QueryConsumerOffsetResponseHeader,
    R.SEARCH_OFFSET_BY_TIMESTAMP: H.SearchOffsetResponseHeader,
    R.GET_MAX_OFFSET: H.GetMaxOffsetResponseHeader,
    R.GET_MIN_OFFSET: H.GetMinOffsetResponseHeader,
    R.GET_EARLIEST_MSG_STORETIME: H.GetEarliestMsgStoretimeResponseHeader,
    R.GET_KV_CONFIG: H.GetKVConfigResponseHeader,
    R.REGISTER_BROKER: H.RegisterBrokerResponseHeader,
    R.QUERY_DATA_VERSION: H.QueryDataVersionResponseHeader,
    R.WIPE_WRITE_PERM_OF_BROKER: H.WipeWritePermOfBrokerResponseHeader,
    R.ADD_WRITE_PERM_OF_BROKER: H.AddWritePermOfBrokerResponseHeader,
}
RESPONSE_BODIES: dict[int, type[msgspec.Struct]] = {
    R.GET_ROUTEINFO_BY_TOPIC: B.TopicRouteData,
    R.GET_BROKER_CLUSTER_INFO: B.ClusterInfo,
    R.GET_KVLIST_BY_NAMESPACE: B.KVTable,
    R.REGISTER_BROKER: B.KVTable,
    R.QUERY_DATA_VERSION: B.DataVersion,
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: B.TopicList,
    R.GET_TOPICS_BY_CLUSTER: B.TopicList,
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: B.TopicList,
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: B.TopicList,
    R.GET_CONSUMER_LIST_BY_GROUP: B.ConsumerListBody,
    R.LOCK_BATCH_MQ: B.LockBatchResponseBody,
    R.GET_CONSUMER_CONNECTION_LIST: B.ConsumerConnection,
    R.GET_PRODUCER_CONNECTION_LIST: B.ProducerConnection,
    R.GET_CONSUME_STATS: B.ConsumeStats,
    R.GET_TOPIC_STATS_INFO: B.TopicStatsTable,
    R.QUERY_TOPIC_CONSUME_BY_WHO: B.GroupList,
    R.QUERY_CONSUME_TIME_SPAN: B.QueryConsumeTimeSpanBody,
    R.QUERY_CONSUME_QUEUE: B.QueryConsumeQueueResponseBody,
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: B.SubscriptionGroupTable,
    R.GET_ALL_TOPIC_CONFIG: B.TopicConfigTable,
    R.GET_ALL_CONSUMER_OFFSET: B.ConsumerOffsetTable,
    R.GET_ALL_DELAY_OFFSET: B.DelayOffsetTable,
    R.GET_BROKER_RUNTIME_INFO: B.KVTable,
    R.GET_CONSUMER_RUNNING_INFO: B.ConsumerRunningInfo,
    R.CONSUME_MESSAGE_DIRECTLY: B.ConsumeMessageDirectlyResult,
    R.INVOKE_BROKER_TO_RESET_OFFSET: B.ResetOffsetBody,
}
RECORDS = {R.PULL_MESSAGE, R.VIEW_MESSAGE_BY_ID, R.QUERY_MESSAGE}
# Bodies that are the user's, records, or of a form of their own.
OTHER_REQUEST_BODIES = {
    R.SEND_MESSAGE,
    R.SEND_MESSAGE_V2,
    R.SEND_BATCH_MESSAGE,
    R.REGISTER_BROKER,
    R.CONSUME_MESSAGE_DIRECTLY,
}


def sides(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (case[name] for name in ("request", "response", "push", "clientReply") if case.get(name))


def decode(side: dict[str, Any]) -> RemotingCommand:
    (command,) = FrameDecoder().receive_data(bytes.fromhex(side["frameHex"]))
    return command


def requests(case: dict[str, Any]) -> Iterator[RemotingCommand]:
    return (decode(case[name]) for name in ("request", "push") if case.get(name))


def answers(case: dict[str, Any]) -> Iterator[tuple[int, RemotingCommand]]:
    for asked, answered in (("request", "response"), ("push", "clientReply")):
        if case.get(asked) and case.get(answered):
            yield decode(case[asked]).code, decode(case[answered])


def assert_header_survives(header_type: type[msgspec.Struct], command: RemotingCommand) -> None:
    header = decode_header(header_type, command.ext_fields)

    written = encode_header(header)
    known = set(header_type.__struct_encode_fields__)
    expected = {name: text for name, text in (command.ext_fields or {}).items() if name in known}
    assert {name: written[name] for name in expected} == expected
    assert header == decode_header(header_type, written)


@each_case("wire.jsonl")
def test_every_frame_decodes_and_survives_encoding(case: dict[str, Any]) -> None:
    for side in sides(case):
        command = decode(side)

        fields = side["fields"]
        assert fields["code"] == command.code
        assert fields["opaque"] == command.opaque
        assert fields["flag"] == command.flag
        assert fields["remark"] == command.remark
        assert fields["extFields"] == command.ext_fields
        assert (fields["bodyHex"] or "") == (command.body or b"").hex()
        assert FrameDecoder().receive_data(encode_frame(command)) == [command]


@each_case("wire.jsonl")
def test_request_has_its_typed_header_and_body(case: dict[str, Any]) -> None:
    for command in requests(case):
        header_type = REQUEST_HEADERS.get(command.code)
        if header_type is not None:
            if command.ext_fields:
                assert_header_survives(header_type, command)
        else:
            assert not command.ext_fields
        if command.body is None:
            continue
        body_type = REQUEST_BODIES.get(command.code)
        if body_type is None:
            assert command.code in OTHER_REQUEST_BODIES
            continue
        body = decode_body(body_type, command.body)
        assert body == decode_body(body_type, encode_body(body))


@each_case("wire.jsonl")
def test_answer_has_its_typed_header_and_body(case: dict[str, Any]) -> None:
    for code, command in answers(case):
        header_type = RESPONSE_HEADERS.get(code)
        is_send_failed = header_type is H.SendMessageResponseHeader and command.code != 0
        if header_type is not None and command.ext_fields and not is_send_failed:
            assert_header_survives(header_type, command)
        if command.body is None:
            continue
        if code in RECORDS:
            messages = decode_messages(command.body, broker_name="broker-a").messages
            assert len(command.body) == sum(message.store_size for message in messages)
            continue
        body = decode_body(RESPONSE_BODIES[code], command.body)
        assert body == decode_body(RESPONSE_BODIES[code], encode_body(body))


@each_case("wire.jsonl")
def test_registered_broker_and_batches_can_be_read(case: dict[str, Any]) -> None:
    for command in requests(case):
        if command.code == R.REGISTER_BROKER:
            header = decode_header(H.RegisterBrokerRequestHeader, command.ext_fields)
            body, _ = run_steps(decode_register_body(command.body, compressed=header.compressed))
            assert body == run_steps(decode_register_body(encode_register_body(body)))[0]
        if command.code == R.SEND_BATCH_MESSAGE:
            assert command.body is not None
            assert command.body == encode_batch(decode_batch(command.body))
