"""Who may come, and what accounts may do."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from golden import each_case
from processor_time import takes_less_than
from sparrowmq.broker.broker import PROCESSORS as BROKER_CODES
from sparrowmq.nameserver.name_server import PROCESSORS as NAME_SERVER_CODES
from sparrowmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentBody,
    SubscriptionData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.signatures import Credentials, sign_request
from sparrowmq.serving import access_control
from sparrowmq.serving.access_control import (
    ADMIN_CODES,
    AccessControl,
    AccessFault,
    Document,
    Need,
    Permission,
)
from sparrowmq.serving.addresses import AddressFault, parse_addresses

OWN = Credentials(access_key="own-broker", secret_key="own-secret")
RULES: Document = {
    "globalWhiteRemoteAddresses": ["10.0.*.*", "192.168.1.{1,2}"],
    "accounts": [
        {
            "accessKey": "RocketMQ",
            "secretKey": "12345678",
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["A=DENY", "B=PUB|SUB", "C=SUB", "D=PUB"],
            "groupPerms": ["g=DENY", "h=PUB|SUB"],
        },
        {
            "accessKey": "rocketmq2",
            "secretKey": "12345678",
            "whiteRemoteAddress": "10.0.0.*",
            "admin": "true",
        },
    ],
}
ADDRESS = "10.0.0.7:40000"


def control(rules: Document = RULES) -> AccessControl:
    return AccessControl(rules, lambda _: None, own=OWN)


def refusal(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes | None = None,
    *,
    key: str | None = "RocketMQ",
    secret: str = "12345678",
    address: str = ADDRESS,
) -> str | None:
    if key is not None:
        credentials = Credentials(access_key=key, secret_key=secret)
        fields = sign_request(fields, body, credentials=credentials)
    command = RemotingCommand(code=code, ext_fields=fields, body=body)
    return control().find_refusal(command, address)


@each_case("acl.jsonl", "acl-")
def test_what_java_signs_is_let_in(case: dict[str, Any]) -> None:
    keys = {"accessKey": case["accessKey"], "secretKey": case["secretKey"], "admin": "true"}
    if min(len(keys["accessKey"]), len(keys["secretKey"])) < 7:
        return
    access = control({"accounts": [keys]})
    body = None if case["bodyHex"] is None else bytes.fromhex(case["bodyHex"])
    command = RemotingCommand(code=9999, ext_fields=case["allExtFieldsOnWire"], body=body)

    is_valid = case["serverSideSignature"] == case["signature"]
    assert is_valid is (access.find_refusal(command, ADDRESS) is None)


def test_only_a_right_signature_lets_in() -> None:
    code = RequestCode.GET_BROKER_CONFIG

    assert refusal(code) is None
    assert refusal(code, key=None) == "No accessKey is configured"
    assert refusal(code, key="nobody") == "No acl config for nobody"
    assert refusal(code, secret="12345679") == "Check signature failed for accessKey=RocketMQ"
    signed = sign_request(
        {}, b"x", credentials=Credentials(access_key="RocketMQ", secret_key="12345678")
    )
    changed = RemotingCommand(code=code, ext_fields=signed, body=b"y")
    assert "Check signature failed" in str(control().find_refusal(changed, ADDRESS))


def test_addresses_narrow_who_may_come_and_let_nobody_in_unsigned() -> None:
    code = RequestCode.GET_BROKER_CONFIG

    assert refusal(code, address="192.168.1.2:1") is None
    assert "may not come from 192.168.1.3" in str(refusal(code, address="192.168.1.3:1"))
    assert "may not come from 10.0.1.7" in str(refusal(code, key="rocketmq2", address="10.0.1.7:1"))
    assert "No accessKey" in str(refusal(code, key=None, address="10.0.0.1:1"))
    own = refusal(code, key=OWN.access_key, secret=OWN.secret_key, address="127.0.0.1:1")
    assert own is None
    assert "Check signature" in str(refusal(code, key=OWN.access_key, address="127.0.0.1:1"))


PULL = ("topic", Permission.SUB, "consumerGroup")
LOOK = ("topic", Permission.ANY, "")
OF_GROUP = ("", Permission.ANY, "group")
OF_CONSUMER_GROUP = ("", Permission.ANY, "consumerGroup")
# The fields that name a topic and a group, and the permission for the topic; any one of the flag.
NEEDS = {
    RequestCode.SEND_MESSAGE: ("topic", Permission.PUB, ""),
    RequestCode.SEND_MESSAGE_V2: ("b", Permission.PUB, ""),
    RequestCode.SEND_BATCH_MESSAGE: ("b", Permission.PUB, ""),
    RequestCode.RECALL_MESSAGE: ("topic", Permission.PUB, ""),
    RequestCode.SEND_REPLY_MESSAGE: ("topic", Permission.PUB, ""),
    RequestCode.SEND_REPLY_MESSAGE_V2: ("b", Permission.PUB, ""),
    RequestCode.CONSUMER_SEND_MSG_BACK: OF_GROUP,
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
    RequestCode.POP_MESSAGE: PULL,
    RequestCode.ACK_MESSAGE: PULL,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: PULL,
    RequestCode.PEEK_MESSAGE: PULL,
    RequestCode.NOTIFICATION: PULL,
    RequestCode.POLLING_INFO: PULL,
    RequestCode.QUERY_CONSUMER_OFFSET: PULL,
    RequestCode.UPDATE_CONSUMER_OFFSET: PULL,
    RequestCode.QUERY_MESSAGE: ("topic", Permission.SUB, ""),
    RequestCode.QUERY_CONSUME_QUEUE: ("topic", Permission.SUB, ""),
    RequestCode.QUERY_CONSUME_TIME_SPAN: ("topic", Permission.ANY, "group"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: LOOK,
    RequestCode.GET_MAX_OFFSET: LOOK,
    RequestCode.GET_MIN_OFFSET: LOOK,
    RequestCode.GET_EARLIEST_MSG_STORETIME: LOOK,
    RequestCode.GET_TOPIC_STATS_INFO: LOOK,
    RequestCode.GET_TOPIC_CONFIG: LOOK,
    RequestCode.QUERY_CORRECTION_OFFSET: LOOK,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: OF_GROUP,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: OF_GROUP,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: OF_GROUP,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: OF_GROUP,
    RequestCode.UNREGISTER_CLIENT: OF_CONSUMER_GROUP,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: OF_CONSUMER_GROUP,
    RequestCode.GET_GROUP_PLAN: OF_CONSUMER_GROUP,
    RequestCode.OFFER_GROUP_PLAN: OF_CONSUMER_GROUP,
    RequestCode.GET_CONSUMER_RUNNING_INFO: OF_CONSUMER_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: OF_CONSUMER_GROUP,
    RequestCode.GET_CONSUME_STATS: OF_CONSUMER_GROUP,
}


@pytest.mark.parametrize("code", NEEDS)
def test_a_code_needs_a_permission_for_each_name_in_it(code: RequestCode) -> None:
    topic, permission, group = NEEDS[code]

    def denied(topic_name: str, group_name: str) -> str | None:
        return refusal(code, {topic or "-": topic_name, group or "-": group_name})

    assert denied("B", "h") is None
    if topic:
        for name, owned in (("A", Permission.DENY), ("C", Permission.SUB), ("D", Permission.PUB)):
            words = None if owned & permission else f"No default permission for topic: {name}"
            assert denied(name, "h") == words
    if group:
        assert denied("B", "g") == "No default permission for group: g"


def test_every_code_that_needs_a_permission_is_tried() -> None:
    of_bodies = {
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.QUERY_ASSIGNMENT,
        # Its test is in test_pop_questions.py.
        RequestCode.BATCH_ACK_MESSAGE,
    }
    assert access_control._NEEDS.keys() == NEEDS.keys() | of_bodies


@pytest.mark.parametrize(
    ("code", "fields", "denied"),
    [
        (RequestCode.SEND_MESSAGE_V2, {"b": "other"}, "topic: other"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "RMQ_SYS_TRACE_TOPIC"}, None),
        (RequestCode.PULL_MESSAGE, {"topic": "RMQ_SYS_TRACE_TOPIC"}, "topic: RMQ_SYS_TRACE_TOPIC"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%h"}, None),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%g"}, "group: g"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "x%RETRY%h"}, "topic: x%RETRY%h"),
        (RequestCode.PULL_MESSAGE, {"topic": "C", "consumerGroup": "any"}, None),
        (RequestCode.UNREGISTER_CLIENT, {"producerGroup": "g"}, None),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "A"}, None),
    ],
)
def test_a_code_needs_what_it_is_about(
    code: int, fields: dict[str, str], denied: str | None
) -> None:
    assert (denied and f"No default permission for {denied}") == refusal(code, fields)


def test_a_retry_topic_of_a_message_is_its_groups() -> None:
    denied = [
        control().find_denial("RocketMQ", f"%RETRY%{group}", Permission.SUB) for group in "gh"
    ]
    assert denied == ["No default permission for group: g", None]


@pytest.mark.parametrize(
    ("account", "topic", "is_denied"),
    [
        # Messages of all topics wait in these.
        ({"defaultTopicPerm": "PUB|SUB"}, "any", False),
        ({"defaultTopicPerm": "PUB|SUB"}, "RMQ_SYS_TRANS_HALF_TOPIC", True),
        ({"defaultTopicPerm": "PUB|SUB"}, "TRANS_CHECK_MAX_TIME_TOPIC", True),
        ({"defaultTopicPerm": "PUB|SUB"}, "SCHEDULE_TOPIC_XXXX", True),
        ({"defaultTopicPerm": "PUB|SUB"}, "rmq_sys_wheel_timer", True),
        ({"defaultTopicPerm": "SUB", "topicPerms": ["SCHEDULE_TOPIC_XXXX=SUB"]}, None, False),
        # An administrator with permissions has these alone.
        ({"admin": "true"}, "RMQ_SYS_TRANS_HALF_TOPIC", False),
        ({"admin": "true", "topicPerms": ["other=SUB"]}, "any", True),
        ({"admin": "true", "groupPerms": ["other=SUB"]}, "any", True),
    ],
)
def test_defaults_cover_no_waiting_messages_and_lists_narrow_administrators(
    account: Document, topic: str | None, is_denied: bool
) -> None:
    keys = {"accessKey": "somebody", "secretKey": "12345678"}
    rules = control({"accounts": [keys | account]})
    topic = topic or "SCHEDULE_TOPIC_XXXX"

    denial = rules.find_denial("somebody", topic, Permission.SUB)

    assert denial == (f"No default permission for topic: {topic}" if is_denied else None)


def test_bodies_say_what_heartbeats_and_locks_are_about() -> None:
    def beat(group: str, topic: str) -> bytes:
        data = ConsumerData(
            group_name=group, subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")]
        )
        return encode_body(HeartbeatData(client_id="c", consumer_data_set=[data]))

    def asking(topic: str, group: str) -> bytes:
        body = QueryAssignmentBody(topic=topic, consumer_group=group, client_id="c")
        return encode_body(body)

    lock = encode_body(LockBatchRequestBody(client_id="c", consumer_group="g"))

    assert refusal(RequestCode.HEART_BEAT, body=beat("h", "C")) is None
    assert "topic: A" in str(refusal(RequestCode.HEART_BEAT, body=beat("h", "A")))
    assert "group: g" in str(refusal(RequestCode.HEART_BEAT, body=beat("g", "C")))
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert "group: g" in str(refusal(code, body=lock))
    assert [
        refusal(RequestCode.QUERY_ASSIGNMENT, body=asking(*of)) for of in ("Bh", "Ah", "Bg")
    ] == [
        None,
        "No default permission for topic: A",
        "No default permission for group: g",
    ]
    assert refusal(RequestCode.HEART_BEAT, body=b"{") is not None


def test_change_that_cannot_be_saved_leaves_the_old_rules() -> None:
    def have_no_space(document: Document) -> None:
        raise OSError(errno.ENOSPC, "no space left on this disk")

    rules = AccessControl(RULES, have_no_space, own=OWN)

    with pytest.raises(OSError, match="no space"):
        rules.change(lambda document: {**document, "accounts": document["accounts"][:1]})

    assert rules.document == RULES
    assert list(rules.table.accounts) == ["RocketMQ", "rocketmq2"]


@pytest.mark.parametrize("code", sorted(ADMIN_CODES))
def test_only_administrators_change_what_others_have(code: int) -> None:
    assert f"Need admin permission for request code={code}" in str(refusal(code))
    assert refusal(code, key="rocketmq2") is None


def test_every_code_is_checked() -> None:
    for code in {*BROKER_CODES, *NAME_SERVER_CODES, 4711}:
        assert refusal(code, key=None) == "No accessKey is configured"


@pytest.mark.parametrize(
    ("rules", "path", "words"),
    [
        ({"acounts": []}, ("acounts",), "unknown key 'acounts'; there are accounts"),
        ({"accounts": "x"}, ("accounts",), "accounts is not a list"),
        (
            {"accounts": [{"secretKey:hush": ""}]},
            ("accounts", 0, "secretKey:hush"),
            "unknown key 'secretKey'; write a space behind ':'",
        ),
        ({"accounts": ["x"]}, ("accounts", 0), "must be a mapping with accessKey"),
        (
            {"accounts": [{"accessKey": "1234567", "secretKey": "123456"}]},
            ("accounts", 0, "secretKey"),
            "secretKey must be given and have 7",
        ),
        (
            {"accounts": [{"accessKey": "1234567", "secretKey": "1234567", "admin": "y"}]},
            ("accounts", 0, "admin"),
            "admin is 'y'; give true or false",
        ),
        (
            {"accounts": [{"accessKey": "1234567", "secretKey": "1234567", "topicPerms": ["A"]}]},
            ("accounts", 0, "topicPerms", 0),
            "'A' in topicPerms is not a NAME=PERMISSION",
        ),
        (
            {"accounts": 2 * [{"accessKey": "1234567", "secretKey": "1234567"}]},
            ("accounts", 1, "accessKey"),
            "'1234567' is there twice",
        ),
        ({"globalWhiteRemoteAddresses": ["1.2.3"]}, ("globalWhiteRemoteAddresses", 0), "'1.2.3'"),
    ],
)
def test_rules_that_make_no_sense_are_refused_with_their_place(
    rules: Document, path: tuple[str | int, ...], words: str
) -> None:
    with pytest.raises(AccessFault) as caught:
        control(rules)

    assert path == caught.value.path
    assert words in str(caught.value)


def test_accounts_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "ACCOUNTS_MAX", 2)
    accounts = [{"accessKey": f"account{n}", "secretKey": "1234567"} for n in range(3)]
    control({"accounts": accounts[:2]})

    with pytest.raises(AccessFault, match="more than 2 accounts") as caught:
        control({"accounts": accounts})

    assert caught.value.path == ("accounts", 2)
    assert "secret" not in str(caught.value) or "must be" in str(caught.value)


def test_secrets_are_not_shown() -> None:
    assert "12345678" not in repr(control().table)


@pytest.mark.parametrize(
    ("text", "ip", "matches"),
    [
        ("*", "8.8.8.8", True),
        ("*", "::1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.*.*", "10.0.9.9", True),
        ("10.0.*.*", "10.1.9.9", False),
        ("10.0.0-3.*", "10.0.3.200", True),
        ("10.0.0-3.*", "10.0.4.0", False),
        ("10.0.0.{1,5}", "10.0.0.5", True),
        ("10.0.0.{1,5}", "10.0.0.3", False),
        ("10.0.0.1,10.0.0.{2,3}", "10.0.0.3", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("1050::5:600:300c:*", "1050:0:0:0:5:600:300c:1", True),
        ("1050::5:600:300c:1-3", "1050::5:600:300c:4", False),
        ("::1", "::1", True),
    ],
)
def test_patterns_match_addresses(text: str, ip: str, matches: bool) -> None:
    assert matches is any(pattern.matches(ip) for pattern in parse_addresses(text))


@pytest.mark.parametrize(
    "text", ["10.0.0", "10.0.0.256", "10.0.0.9-1", "10.0.0.a", "10.0.0.-1", "1:2:3", "10.0.0.{1"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(AddressFault, match="is not a pattern of addresses"):
        parse_addresses(text)


def test_many_patterns_are_refused_in_linear_time() -> None:
    for text in ("1," * 50_000, "{" * 50_000 + "," * 50_000, "}," * 50_000):
        with takes_less_than(0.2), pytest.raises(AddressFault, match="the limit is 1000"):
            parse_addresses(text)


def test_a_blank_text_is_no_pattern() -> None:
    assert parse_addresses("  ") == ()


def test_an_account_comes_only_from_where_all_may_come_and_it_itself() -> None:
    keys = {"accessKey": "somebody", "secretKey": "12345678"}
    rules = control(
        {
            "globalWhiteRemoteAddresses": ["10.0.*.*"],
            "accounts": [keys | {"whiteRemoteAddress": "*.*.0.7"}],
        }
    )

    found = [rules.find_stranger("somebody", f"{ip}:1") for ip in ("10.0.0.7", "10.1.0.7")]
    other = rules.find_stranger("somebody", "10.0.0.8:1")

    assert (found[0], "10.1.0.7" in str(found[1]), "10.0.0.8" in str(other)) == (None, True, True)


def test_the_default_for_topics_opens_no_group_and_the_one_for_groups_no_topic() -> None:
    needs = [Need("n", is_group, Permission.SUB) for is_group in (False, True)]
    keys = {"accessKey": "somebody", "secretKey": "12345678"}

    def may(**given: str) -> list[bool]:
        account = control({"accounts": [keys | given]}).table.accounts["somebody"]
        return [account.may(need) for need in needs]

    assert may(defaultTopicPerm="SUB") == [True, False]
    assert may(defaultGroupPerm="SUB") == [False, True]


def test_an_account_without_permissions_is_no_administrator() -> None:
    keys = {"accessKey": "somebody", "secretKey": "12345678"}
    rules = control({"accounts": [keys]})
    fields = sign_request(
        {}, None, credentials=Credentials(access_key="somebody", secret_key="12345678")
    )
    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    command = RemotingCommand(code=code, ext_fields=fields)

    assert "Need admin permission" in str(rules.find_refusal(command, ADDRESS))
