"""What the service refuses before a broker sees it."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparrowmq.grpc_service.callers import CLIENT_ID_LENGTH_MAX, Caller, identify
from sparrowmq.grpc_service.checks import check_group, check_message, check_topic
from sparrowmq.grpc_service.client_table import BrokerPort, Clients
from sparrowmq.grpc_service.messages import (
    AckMessageEntry,
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    Code,
    Duration,
    Endpoints,
    Message,
    MessageQueue,
    MessageType,
    QueryAssignmentRequest,
    ReceiveMessageRequest,
    Resource,
    SendMessageRequest,
    SystemProperties,
)
from sparrowmq.grpc_service.receive_calls import ReceiveService
from sparrowmq.grpc_service.renewals import Renewals
from sparrowmq.grpc_service.route_calls import Routes
from sparrowmq.grpc_service.send_calls import SendService
from sparrowmq.grpc_service.statuses import Rejected
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.serving.access_control import AccessControl

CALLER = Caller("tester@1", "127.0.0.1:5", LanguageCode.OTHER, None)
T, GROUP = Resource(name="T"), Resource(name="GID")


def made(
    body: bytes = b"x", properties: dict[str, str] | None = None, topic: Resource = T, **system: Any
) -> Message:
    given: dict[str, Any] = {"message_id": "ID"} | system
    found = SystemProperties(**given)
    return Message(topic=topic, body=body, user_properties=properties, system_properties=found)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (made(b"0123456789"), None),
        (made(b"0123456789a"), Code.MESSAGE_BODY_TOO_LARGE),
        (made(b""), Code.MESSAGE_BODY_EMPTY),
        (made(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (made(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (made(message_group=63 * "g"), None),
        (made(message_group=64 * "g"), Code.ILLEGAL_MESSAGE_GROUP),
        (made(properties={str(n): "v" for n in range(128)}), None),
        (made(properties={str(n): "v" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (made(properties={"TAGS": "a"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(properties={"POP_CK": "a"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(properties={"a": "\x01"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(properties={"a": 16_380 * "v"}, tag="t", keys=["kk"]), None),
        (
            made(properties={"a": 16_380 * "v"}, tag="t", keys=["kkk"]),
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
        ),
        (made(orphaned_transaction_recovery_duration=Duration(seconds=3_600)), None),
        (made(orphaned_transaction_recovery_duration=Duration(seconds=3_601)), Code.BAD_REQUEST),
    ],
)
def test_a_message_is_checked_as_by_apaches_proxy(message: Message, code: Code | None) -> None:
    assert code_of(message, type_of_topic="MIXED") == code


def code_of(message: Message, *, type_of_topic: str) -> Code | None:
    try:
        check_message(
            message, body_bytes_max=10, delay_ms_max=0, type_of_topic=type_of_topic, timestamp_ms=0
        )
    except Rejected as rejected:
        return rejected.code
    return None


def test_a_topic_takes_messages_of_its_type_alone() -> None:
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    fifo = made(message_group="g")
    half = made(message_type=MessageType.TRANSACTION)
    types = ("NORMAL", "FIFO", "TRANSACTION", "MIXED")

    found = [[code_of(each, type_of_topic=kind) for kind in types] for each in (made(), fifo, half)]

    assert found == [
        [None, conflict, conflict, None],
        [conflict, None, conflict, None],
        [conflict, conflict, None, None],
    ]


@pytest.mark.parametrize("name", ["TOOLS_CONSUMER", "CID_RMQ_SYS_x", " ", "a b", 121 * "g"])
def test_a_group_is_one_of_users(name: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_group(Resource(name=name))
    assert raised.value.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_wheel_timer", " ", "a b", 128 * "t"])
def test_a_topic_is_one_of_users(name: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_topic(Resource(name=name))
    assert raised.value.code == Code.ILLEGAL_TOPIC


def test_a_client_id_has_a_bound() -> None:
    longest = CLIENT_ID_LENGTH_MAX * "c"
    assert identify({"x-mq-client-id": longest}, "ipv4:1.2.3.4:5", None).client_id == longest
    with pytest.raises(Rejected) as raised:
        identify({"x-mq-client-id": longest + "c"}, "ipv4:1.2.3.4:5", None)
    assert raised.value.code == Code.BAD_REQUEST


def test_a_signature_may_have_capital_letters() -> None:
    keys = {"accessKey": "somebody", "secretKey": "12345678"}
    signature = hmac.new(b"12345678", b"now", "sha1").hexdigest().upper()
    metadata = {
        "x-mq-client-id": "tester@1",
        "x-mq-date-time": "now",
        "authorization": f"MQv2-HMAC-SHA1 Credential=somebody/cn, Signature={signature}",
    }
    access = AccessControl({"accounts": [keys]}, lambda _: None)

    credentials = identify(metadata, "ipv4:1.2.3.4:5", access).credentials

    assert credentials == Credentials(access_key="somebody", secret_key="12345678")


def test_a_client_of_another_account_is_another_client() -> None:
    clients = Clients(cast(BrokerPort, None))
    keys = [Credentials(access_key=name, secret_key="12345678") for name in ("one", "two")]
    one, two = (clients.find(CALLER._replace(credentials=each)) for each in keys)

    assert one is not two
    assert clients.known(CALLER._replace(credentials=keys[0])) is one


def port(**found: Any) -> BrokerPort:
    given = {"broker_name": "broker-a", "find_topic": lambda _: None, "find_group": lambda _: None}
    return cast(BrokerPort, SimpleNamespace(**given | found))


def receives(broker: BrokerPort) -> ReceiveService:
    clients = Clients(broker)
    return ReceiveService(
        broker, clients, Renewals(clients, now_ms=lambda: 0), timestamp_ms=lambda: 0
    )


async def refused(call: Awaitable[object]) -> Code:
    with pytest.raises(Rejected) as raised:
        await call
    return raised.value.code


async def test_requests_beyond_a_bound_are_refused() -> None:
    entry = AckMessageEntry(receipt_handle="x")
    many = AckMessageRequest(group=GROUP, topic=T, entries=1_025 * [entry])
    day = ChangeInvisibleDurationRequest(
        group=GROUP, topic=T, invisible_duration=Duration(seconds=12 * 3_600 + 1)
    )
    two_topics = SendMessageRequest(messages=[made(), made(topic=Resource(name="U"))])
    closed = port(find_topic=lambda _: TopicConfig(topic_name="T", perm=2))
    assignment = QueryAssignmentRequest(topic=T, group=GROUP, endpoints=Endpoints())
    sends = SendService(port(), Clients(port()), timestamp_ms=lambda: 0)

    codes = [
        await refused(receives(port()).acknowledge(CALLER, many)),
        await refused(receives(port()).change_invisible(CALLER, day)),
        await refused(sends.send(CALLER, two_topics)),
        await refused(Routes(closed).query_assignment(CALLER, assignment)),
    ]

    assert codes == [
        Code.BAD_REQUEST,
        Code.ILLEGAL_INVISIBLE_TIME,
        Code.MESSAGE_CORRUPTED,
        Code.FORBIDDEN,
    ]


def test_a_receive_pops_in_order_for_a_group_in_order_and_asks_for_1_to_32_messages() -> None:
    queue = MessageQueue(topic=T)
    for is_orderly in (True, False, None):
        group = SubscriptionGroupConfig(group_name="GID", consume_message_orderly=bool(is_orderly))
        service = receives(
            port(find_group=lambda _, g=group, o=is_orderly: None if o is None else g)
        )
        headers = [
            service._pop_of(
                CALLER,
                ReceiveMessageRequest(
                    group=GROUP, message_queue=queue, batch_size=count, auto_renew=True
                ),
                None,
            )
            for count in (0, 7, 33)
        ]
        assert [each.max_msg_nums for each in headers] == [1, 7, 32]
        assert {each.order for each in headers} == {bool(is_orderly)}
