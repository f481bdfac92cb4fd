"""Access control on a running cluster: who may do what, and administrators who change that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpc_caller import GrpcCaller
from processor_time import measuring
from sparrowmq import Admin, Message, PollConsumer, Producer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke
from sparrowmq.errors import BrokerError, SparrowError
from sparrowmq.grpc_service.messages import Code, Resource
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.message_id import encode_offset_msg_id
from sparrowmq.protocol.record import HEAD_SIZE, Record, encode_record
from sparrowmq.protocol.signatures import Credentials, sign_request, signed
from sparrowmq.serving.access_control import AccessControl, Document
from sparrowmq.serving.connections import Aside, Reply
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow

ADMIN: dict[str, Any] = {"access_key": "administrator", "secret_key": "secret-of-the-administrator"}
USER: dict[str, Any] = {"access_key": "orders-user", "secret_key": "secret-of-the-user"}
QUEUE_START = RequestCode.GET_MIN_OFFSET
RULES = f"""\
accounts:
  - accessKey: {ADMIN["access_key"]}
    secretKey: {ADMIN["secret_key"]}
    admin: true
  - accessKey: {USER["access_key"]}
    secretKey: {USER["secret_key"]}
    topicPerms:
      - orders=PUB|SUB
    groupPerms:
      - GID_orders=SUB
"""


class Operator:
    """Sends single requests to one address, signed by an account."""

    def __init__(self, address: str, keys: dict[str, Any]) -> None:
        self._address = address
        self._driver = BlockingDriver(credentials=Credentials(**keys))

    def call(self, code: int, **fields: str) -> RemotingCommand:
        request = RemotingCommand(code=code, ext_fields=fields)
        return self._driver.run(invoke(self._address, request, timeout_ms=5_000))

    def close(self) -> None:
        self._driver.close()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    path.write_text(RULES)
    return path


@pytest.fixture(scope="module")
def cluster(rules: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(options=("--acl", str(rules))) as found:
        with Admin(name_server=found.name_server, **ADMIN) as admin:
            admin.create_topic("orders", 1)
            admin.create_topic("secret", 1)
        yield found


@pytest.fixture
def operator(cluster: EmbeddedCluster) -> Iterator[Operator]:
    found = Operator(cluster.broker, ADMIN)
    yield found
    found.close()


def test_an_account_does_what_it_may_and_no_more(cluster: EmbeddedCluster) -> None:
    with Producer("GID_p", name_server=cluster.name_server, **USER) as producer:
        producer.send(Message("orders", b"by the user"))
        with pytest.raises(SparrowError, match="No default permission for topic: secret"):
            producer.send(Message("secret", b"1"))
    with PollConsumer(
        "GID_orders", "orders", name_server=cluster.name_server, start="first", **USER
    ) as consumer:
        got: list[bytes] = []

        def has_come() -> bool:
            got.extend(message.body for message in consumer.poll(500))
            return b"by the user" in got

        wait_until("the message is there", has_come)
    with Admin(name_server=cluster.name_server, **USER) as admin:
        # `create_topic` asks for the topic first, `update_topic` only changes.
        with pytest.raises(BrokerError, match="No default permission for topic: more"):
            admin.create_topic("more", 1)
        with pytest.raises(BrokerError, match="Need admin permission for request code=17"):
            admin.update_topic("orders", read_queues=2)


def test_a_message_is_kept_from_accounts_without_its_topic(
    cluster: EmbeddedCluster, operator: Operator
) -> None:
    user = Operator(cluster.broker, USER)
    half = "TRAN_MSG\x01true\x02PGROUP\x01GID_p\x02UNIQ_KEY\x01U"

    def send(topic: str, properties: str) -> tuple[str, str]:
        fields = {"a": "GID_p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"}
        more = {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
        sent = operator.call(RequestCode.SEND_MESSAGE_V2, **fields, **more).ext_fields or {}
        return str(int(sent["msgId"][-16:], 16)), sent["queueOffset"]

    def back(position: str) -> RemotingCommand:
        fields = {"offset": position, "group": "GID_orders", "delayLevel": "1"}
        return user.call(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)

    def end(by: Operator, place: tuple[str, str]) -> RemotingCommand:
        fields = {"producerGroup": "GID_p", "tranStateTableOffset": place[1]}
        fields |= {"commitLogOffset": place[0], "commitOrRollback": "12", "msgId": "U"}
        return by.call(RequestCode.END_TRANSACTION, **fields)

    secret, own = send("secret", "")[0], send("orders", "")[0]
    secret_half, own_half = send("secret", half), send("orders", half)
    try:
        denied = [
            user.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=secret),
            back(secret),
            end(user, secret_half),
        ]
        waiting = user.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=secret_half[0])
        allowed = [
            user.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=own),
            back(own),
            end(user, own_half),
            end(operator, secret_half),
        ]
    finally:
        user.close()

    reason = "org.apache.rocketmq.acl.common.AclException: No default permission for topic: "
    assert [(reply.code, reply.remark) for reply in denied] == 3 * [(1, f"{reason}secret")]
    assert (waiting.code, waiting.remark) == (1, f"{reason}RMQ_SYS_TRANS_HALF_TOPIC")
    assert [reply.code for reply in allowed] == 4 * [0], [reply.remark for reply in allowed]


def test_a_record_in_a_body_is_not_a_message(rig: Any) -> None:
    rig.send(rig.connect(), body=b"")
    position = rig.store.readable_position + HEAD_SIZE
    # Without a body of its own, and with the messages behind it as its properties.
    inner = bytearray(encode_record(Record(topic="T", queue_id=0, body=b"", position=position)))
    inner[:4], inner[-2:] = (len(inner) + 32_760).to_bytes(4), (32_760).to_bytes(2)
    rig.send(rig.connect(), body=bytes(inner))
    for _ in range(8):
        rig.send(rig.connect(), "secret", 4_096 * b"s")
    fields = {"offset": str(position), "group": "GID_c", "delayLevel": "1"}
    msg_id = encode_offset_msg_id(rig.broker.state.store_host, position)
    asked = [
        (RequestCode.VIEW_MESSAGE_BY_ID, fields),
        (RequestCode.CONSUMER_SEND_MSG_BACK, fields),
        (RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id}),
    ]

    replies = [rig.call(rig.connect(), code, given) for code, given in asked]

    assert rig.store.records.read(position) is not None
    assert [(reply.code, reply.body) for reply in replies] == 3 * [(1, None)]


def test_a_reply_needs_the_reply_topic_whatever_it_names(cluster: EmbeddedCluster) -> None:
    user = Operator(cluster.broker, USER)
    fields = {"a": "GID_p", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"}
    more = {"h": "0", "i": "REPLY_TO_CLIENT\x01victim", "j": "0", "k": "false", "m": "false"}
    reply = user.call(RequestCode.SEND_REPLY_MESSAGE_V2, **fields, **more)
    user.close()

    assert "No default permission for topic: DefaultCluster_REPLY_TOPIC" in (reply.remark or "")


@pytest.mark.parametrize(
    "keys", [{}, {**USER, "secret_key": "another-secret"}, {**USER, "access_key": "nobody-known"}]
)
def test_whoever_signs_wrongly_learns_nothing(
    cluster: EmbeddedCluster, keys: dict[str, Any]
) -> None:
    with (
        Producer("GID_p", name_server=cluster.name_server, **keys) as producer,
        pytest.raises(SparrowError, match="AclException"),
    ):
        producer.send(Message("orders", b"1"))


def test_brokers_without_keys_cannot_register(cluster: EmbeddedCluster) -> None:
    operator = Operator(cluster.name_server, USER)
    reply = operator.call(RequestCode.REGISTER_BROKER, brokerName="intruder")
    operator.close()

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "Need admin permission for request code=103" in (reply.remark or "")


def test_administrators_change_the_rules(
    cluster: EmbeddedCluster, operator: Operator, rules: Path
) -> None:
    made = operator.call(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        accessKey="newcomer",
        secretKey="secret-of-the-newcomer",
        whiteRemoteAddress="",
        admin="false",
        defaultTopicPerm="DENY",
        defaultGroupPerm="SUB",
        topicPerms="orders=PUB,secret=SUB",
    )
    keys: dict[str, Any] = {"access_key": "newcomer", "secret_key": "secret-of-the-newcomer"}
    with Producer("GID_p", name_server=cluster.name_server, **keys) as producer:
        producer.send(Message("orders", b"2"))
    shown = json.loads(operator.call(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG).body or b"")
    version = operator.call(RequestCode.GET_BROKER_CLUSTER_ACL_INFO).ext_fields or {}
    wrong = operator.call(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        accessKey="newcomer",
        secretKey="secret-of-the-newcomer",
        topicPerms="orders",
    )
    gone = operator.call(RequestCode.DELETE_ACL_CONFIG, accessKey="newcomer")
    again = operator.call(RequestCode.DELETE_ACL_CONFIG, accessKey="newcomer")
    narrowed = operator.call(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="127.0.0.*,10.0.0.1"
    )
    elsewhere = operator.call(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        globalWhiteAddrs="*",
        aclFileFullPath="/etc/passwd",
    )

    assert made.code == 0, made.remark
    account = shown["plainAccessConfigs"][-1]
    assert (
        account["accessKey"],
        account["secretKey"],
        account["topicPerms"],
    ) == ("newcomer", "***", ["orders=PUB", "secret=SUB"])
    assert b"secret-of" not in json.dumps(shown).encode()
    assert json.loads(version["version"])["counter"] == 1
    assert cluster.broker == version["brokerAddr"]
    assert wrong.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert "'orders' in topicPerms is not a NAME=PERMISSION" in (wrong.remark or "")
    assert [gone.code, again.code] == [0, ResponseCode.DELETE_ACL_CONFIG_FAILED]
    assert [
        narrowed.code,
        elsewhere.code,
    ] == [0, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED]
    text = rules.read_text()
    assert "newcomer" not in text
    assert "- 10.0.0.1\n" in text
    assert "secret-of" not in cluster.log_path.read_text()


def test_an_account_is_changed_and_deleted_by_its_whole_key(rig: Any) -> None:
    admin = {"accessKey": "account-10", "secretKey": "secret-10", "admin": "true"}
    saved: list[Document] = []
    rig.broker.state.access = AccessControl({"accounts": [admin]}, saved.append)
    keys = Credentials(access_key="account-10", secret_key="secret-10")
    for code, key in (
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, "account-1"),
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, "account-100"),
        (RequestCode.DELETE_ACL_CONFIG, "account-1"),
    ):
        fields = {"accessKey": key, "secretKey": "another-secret"}
        reply = rig.call(rig.connect(), code, sign_request(fields, None, credentials=keys))
        assert reply.code == 0, reply.remark

    assert [account["accessKey"] for account in saved[-1]["accounts"]] == [
        "account-10",
        "account-100",
    ]
    assert saved[-1]["accounts"][0] == admin


def test_no_request_about_ten_thousand_accounts_holds_up_the_loop(rig: Any) -> None:
    accounts = [
        {"accessKey": f"account-{n}", "secretKey": f"secret-{n}", "topicPerms": ["T=PUB"]}
        for n in range(10_000)
    ]
    accounts[0]["admin"] = "true"
    saved: list[Document] = []
    rig.broker.state.access = AccessControl({"accounts": accounts}, saved.append)
    requests = {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: {
            "accessKey": "account-9999",
            "secretKey": "another-secret",
        },
        RequestCode.DELETE_ACL_CONFIG: {"accessKey": "account-9998"},
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: {},
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: {},
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: {"globalWhiteAddrs": "127.0.0.1"},
    }
    keys = Credentials(access_key="account-0", secret_key="secret-0")
    slow: dict[RequestCode, float] = {}
    for code, fields in requests.items():
        command = signed(RemotingCommand(code=code, ext_fields=dict(fields)), keys)
        with measuring() as taken:
            outputs = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)
        if taken.seconds > 0.05:
            slow[code] = taken.seconds
        (output,) = outputs
        (reply,) = output.serve() if isinstance(output, Aside) else outputs
        assert isinstance(reply, Reply)
        assert reply.command.code == 0, reply.command.remark

    assert slow == {}
    assert len(saved) == 3
    assert [len(saved[-1]["accounts"]), saved[-1]["accounts"][-1]["secretKey"]] == [
        9_999,
        "another-secret",
    ]


def test_rules_follow_their_file(cluster: EmbeddedCluster, rules: Path) -> None:
    text = rules.read_text()
    rules.write_text(text.replace("orders=PUB|SUB", "secret=PUB"))

    with Producer("GID_p", name_server=cluster.name_server, **USER) as producer:

        def is_taken() -> bool:
            try:
                producer.send(Message("secret", b"1"))
            except SparrowError:
                return False
            return True

        wait_until("the rules are taken", is_taken)
        rules.write_text("accounts: [")
        wait_until(
            "the mistake is logged", lambda: "stay as they were" in cluster.log_path.read_text()
        )
        producer.send(Message("secret", b"1"))
        rules.write_text(text)
        # The tests after this one may have the same cluster.
        wait_until("the first rules are taken again", lambda: not is_taken())


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def overwrite(path: Path, text: str) -> None:
    """Write in place, without a moment at which the file is empty."""
    with path.open("r+") as file:
        file.write(text)
        file.truncate()


def touch_back(path: Path, text: str) -> None:
    """Write a text of the same size, and let the file seem older than it was."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 3_600_000_000_000))
    assert path.stat().st_size == before.st_size


def rename_over(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def swap_link(path: Path, text: str) -> None:
    """Let the file be a link to another file, as a first or a later change."""
    target = path.with_name(f"{time.monotonic_ns()}.yml")
    target.write_text(text)
    link = path.with_suffix(".link")
    link.symlink_to(target)
    link.replace(path)


def test_revoked_account_is_refused_within_two_seconds_however_its_file_is_changed(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "plain_acl.yml"
    swap_link(rules, RULES)
    revoked = RULES.replace(USER["access_key"], "x" * len(USER["access_key"]))
    took_s: dict[str, float] = {}
    with EmbeddedCluster(options=("--acl", str(rules)), serves_grpc=True) as cluster:
        with Admin(name_server=cluster.name_server, **ADMIN) as admin:
            admin.create_topic("orders", 1)
        keys = USER["access_key"], USER["secret_key"]
        broker, names = Operator(cluster.broker, USER), Operator(cluster.name_server, USER)
        grpc = GrpcCaller(cluster.grpc, keys=keys)

        def served() -> list[str]:
            """Return what still serves the account."""
            queue = {"topic": "orders", "queueId": "0"}
            asked = [
                *((broker, code, queue) for code in (RequestCode.GET_MAX_OFFSET, QUEUE_START)),
                (broker, RequestCode.GET_ALL_TOPIC_CONFIG, {}),
                (names, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
                (names, RequestCode.GET_BROKER_CLUSTER_INFO, {}),
            ]
            found = [code.name for by, code, fields in asked if by.call(code, **fields).code == 0]
            topic = Resource(name="orders")
            route = grpc.call("QueryRoute", topic=topic, endpoints=grpc.endpoints)
            return [*found, *(["QueryRoute"] if route.status.code == Code.OK else [])]

        assert len(served()) == 6
        for change in (swap_link, swap_link, rename_over, rewrite, overwrite, touch_back):
            change(rules, revoked)
            name = f"{change.__name__} {len(took_s)}"
            took_s[name] = wait_until("refused", lambda: not served())
            change(rules, RULES)
            wait_until("served again", lambda: len(served()) == 6)
        for each in (broker, names):
            each.close()
        grpc.__exit__()

    assert {name: s for name, s in took_s.items() if s > 2} == {}
    assert rules.is_symlink() is False


def test_a_broker_of_another_process_signs_by_a_file(tmp_path: Path) -> None:
    rules, keys = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    rules.write_text(RULES)
    keys.write_text(f"accessKey: {ADMIN['access_key']}\nsecretKey: {ADMIN['secret_key']}\n")
    names = _start("nameserver", "--port", "0", "--data", tmp_path / "n", "--acl", rules)
    address = _ready(names)["nameserver"]
    options = ("--port", "0", "--nameserver", address, "--acl", rules)
    broker = _start("broker", "--data", tmp_path / "b", *options, "--acl-credentials", keys)
    try:
        _ready(broker)
        with Admin(name_server=address, **ADMIN) as admin:
            admin.create_topic("T", 1)
    finally:
        for process in (broker, names):
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def _start(command: str, *options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sparrowmq", command, *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
    )


def _ready(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), line
    return dict(part.split("=", 1) for part in line.split() if "=" in part)
