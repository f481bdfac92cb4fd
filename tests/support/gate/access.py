"""Ask servers with accounts in every wrong way: `python -m gate.access`.

Each code of the protocol, and more that nobody has, goes to the name server and the broker in each
of `FORGED`, and each method of gRPC in each of `FORGED_CALLS`: unsigned, forged, changed after it
was signed; and by an account without permissions. Each wrong one must be refused by an answer: a
connection that ends says nothing. Only the stranger may be served, and only what shows no message.
At the end the state must be what it was: what an administrator is shown, locks, members, offsets,
messages that nobody may have taken, and the file of accounts. The same requests signed by an
administrator must be served, or they would prove nothing.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gate import grpc_wire, wire
from gate.grpc_wire import Value, message, resource
from gate.server import Server

CODES = (
    *(*range(1, 60), *range(100, 130), *range(200, 420), 900, 901, *range(2_000, 2_020)),
    *(*range(200_050, 200_080), 200_151, *range(770_000, 770_004)),
)
# What shows an administrator the state of a server.
SHOWING = (
    *(14, 21, 26, 30, 38, 43, 45, 54, 101, 105, 106, 201, 203, 204, 206, 219, 225, 305, 319),
    *(402, 2_010),
)
# Topics whose ends show what was sent, sent back, prepared, delayed or popped.
ENDS = (
    *("orders", "%RETRY%GID_orders", "%DLQ%GID_orders", "RMQ_SYS_TRANS_HALF_TOPIC"),
    *("RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102"),
)
# What of the requests that a server knows an administrator is served at the least.
SERVED_PERCENT_MIN = 80
NOT_SUPPORTED = 3
# What an administrator asks last: nothing is left to serve to others.
REMOVING = (42, 35, 51, 102, 104, 205, 207, 216, 215)
# A group consumes a topic by pulls or by pops.
POPPING, POPPING_CODES = "GID_popping", (*range(200_050, 200_056), 200_151)
TOPIC, GROUP, MARK = "orders", "GID_orders", b"only for who may read it"
Fields: TypeAlias = dict[str, str]


class Account(NamedTuple):
    """An account's keys."""

    access_key: str
    secret_key: str


ADMIN = Account("administrator", "secret-of-the-admin")
STRANGER = Account("stranger-key", "secret-of-the-stranger")
ACCOUNTS = f"""\
accounts:
  - accessKey: {ADMIN.access_key}
    secretKey: {ADMIN.secret_key}
    admin: true
  - accessKey: {STRANGER.access_key}
    secretKey: {STRANGER.secret_key}
"""


def signed(fields: Mapping[str, str], body: bytes, account: Account) -> Fields:
    """Return the fields with key and signature (AclClientRPCHook.java of 4.9.7)."""
    found = {**fields, "AccessKey": account.access_key}
    content = "".join(found[name] for name in sorted(found)).encode() + body
    return {**found, "Signature": signature(content, account.secret_key)}


def signature(content: bytes, secret_key: str) -> str:
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def _unsigned(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return fields, body


def _key_alone(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return {**fields, "AccessKey": ADMIN.access_key}, body


def _unknown_key(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return signed(fields, body, Account("administratos", ADMIN.secret_key)), body


def _secret_of_another(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return signed(fields, body, Account(ADMIN.access_key, STRANGER.secret_key)), body


def _key_of_another(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    own = signed(fields, body, STRANGER)
    return {**own, "AccessKey": ADMIN.access_key}, body


def _changed_field(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return {**signed(fields, body, ADMIN), "topic": "others"}, body


def _added_field(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return {**signed(fields, body, ADMIN), "more": "1"}, body


def _changed_body(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    return signed(fields, body, ADMIN), body + b" "


def _cut_signature(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    found = signed(fields, body, ADMIN)
    return {**found, "Signature": found["Signature"][:-2]}, body


def _signature_of_nothing(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    own = {**fields, "AccessKey": ADMIN.access_key}
    return {**own, "Signature": signature(b"", ADMIN.secret_key)}, body


def _empty_secret(fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    own = {**fields, "AccessKey": ADMIN.access_key}
    content = "".join(own[name] for name in sorted(own)).encode() + body
    return {**own, "Signature": base64.b64encode(hmac.digest(b"", content, "sha1")).decode()}, body


FORGED: Mapping[str, Callable[[Fields, bytes], tuple[Fields, bytes]]] = {
    "unsigned": _unsigned,
    "a key and no signature": _key_alone,
    "an unknown key": _unknown_key,
    "another account's secret": _secret_of_another,
    "another account's signature": _key_of_another,
    "a field changed": _changed_field,
    "a field added": _added_field,
    "the body changed": _changed_body,
    "the signature cut": _cut_signature,
    "a signature of nothing": _signature_of_nothing,
    "an empty secret": _empty_secret,
}


_ZERO = (
    *("queueId", "queueOffset", "offset", "commitOffset", "suspendTimeoutMillis"),
    *("flag", "reconsumeTimes", "delayLevel", "timestamp", "beginTimestamp", "topicSysFlag"),
    *("brokerId", "index", "pollTime", "initMode", "bornTime", "subVersion", "born"),
)
_FIELDS: Fields = {
    **dict.fromkeys(_ZERO, "0"),
    **dict.fromkeys(("group", "consumerGroup", "producerGroup", "groupName"), GROUP),
    **dict.fromkeys(("cluster", "clusterName"), "DefaultCluster"),
    **dict.fromkeys(("clientID", "clientId"), "a@1"),
    **dict.fromkeys(("maxMsgNums", "maxNum", "count", "bornTimestamp"), "1"),
    **dict.fromkeys(("order", "isForce", "unitMode", "batch", "isC"), "false"),
    **dict.fromkeys(("readQueueNums", "writeQueueNums", "defaultTopicQueueNums"), "4"),
    **dict.fromkeys(("properties", "globalWhiteAddrs"), ""),
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "key": "k",
    "namespace": "N",
    "value": "v",
    "subscription": "*",
    "sysFlag": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:1",
    "haServerAddr": "127.0.0.1:2",
    "endTimestamp": "9999999999999",
    "invisibleTime": "10000",
    "accessKey": "planted-key",
    "secretKey": "planted-secret",
    "admin": "true",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "srcGroup": GROUP,
    "destGroup": "GID_planted",
}
# Only members are given locks, so these are an administrator's: one holds, another tries.
HOLDER, TRIER = "holder@1", "trier@1"
_PLANTED = {"brokerName": "planted", "brokerId": "0"}
# Where a code reads a field in another way than most.
_OTHER_FIELDS: Mapping[int, Fields] = {
    10: {"sysFlag": "0"},
    35: {"clientID": HOLDER},
    103: _PLANTED,
    104: _PLANTED,
    205: _PLANTED,
    322: _PLANTED,
    324: {"sysFlag": "0"},
    361: {"sysFlag": "0"},
    **{code: {"consumerGroup": POPPING} for code in POPPING_CODES},
}
_QUEUES = [{"topic": TOPIC, "brokerName": "broker-a", "queueId": each} for each in range(4)]
_SUBSCRIPTION = {
    "topic": TOPIC,
    "subString": "*",
    "subVersion": 0,
    "classFilterMode": False,
    "tagsSet": [],
    "codeSet": [],
    "expressionType": "TAG",
}
_TOPIC_CONFIG = {
    "topicName": "planted",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}
_LOCK = {"consumerGroup": GROUP, "clientId": HOLDER, "mqSet": _QUEUES}
_VERSION = {"timestamp": 0, "counter": 0}


def _heartbeat(client_id: str) -> dict[str, object]:
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [_SUBSCRIPTION],
        "unitMode": False,
    }
    return {
        "clientID": client_id,
        "producerDataSet": [{"groupName": GROUP}],
        "consumerDataSet": [consumer],
    }


_BODIES: Mapping[int, object] = {
    18: {"topicConfigList": [_TOPIC_CONFIG]},
    34: _heartbeat("a@1"),
    41: _LOCK,
    42: _LOCK,
    46: {"clientId": "a@1", "group": GROUP, "subscriptionData": _SUBSCRIPTION},
    103: {
        "topicConfigSerializeWrapper": {"topicConfigTable": {}, "dataVersion": _VERSION},
        "filterServerList": [],
    },
    200: {"groupName": "GID_planted"},
    225: {"groupConfigList": [{"groupName": "GID_planted"}]},
    322: _VERSION,
    400: {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "clientId": "a@1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    401: {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0},
}


class Requests:
    """The requests of all codes: whoever may is served most of them.

    Args:
        places: by code, fields that say where messages are.
    """

    def __init__(self, places: Mapping[int, Fields]) -> None:
        self._places = places

    def of(self, code: int) -> tuple[Fields, bytes]:
        """Return the fields and the body of a code."""
        if code in {wire.SEND_MESSAGE_V2, wire.SEND_BATCH, 325}:
            return dict(SENDING), wire.batch_body([b"planted"]) if code == wire.SEND_BATCH else b"x"
        fields = {**_FIELDS, **_OTHER_FIELDS.get(code, {}), **self._places.get(code, {})}
        if code == 25:
            return fields, b"fileReservedTime=72"
        # Codes without a body of their own do not read this one.
        return fields, json.dumps(_BODIES.get(code, {"groupName": "GID_planted"})).encode()


SENDING: Fields = {
    name: str(value) for name, value in wire.send_fields(TOPIC, 0, {"KEYS": "k"}).items()
}


# --- gRPC -----------------------------------------------------------------------------------------

_DATE = "20261124T000000Z"


def calls(port: int) -> dict[str, bytes]:
    """Return a request of each method that a service can read; handles are not of a message."""
    group, topic = resource(POPPING), resource(TOPIC)
    queue = message((1, topic), (2, 0), (4, message((1, "broker-a"))))
    settings = message((1, 2), (6, message((1, group), (2, message((1, topic))))))
    return {
        "QueryRoute": message((1, topic), (2, grpc_wire.endpoints(port))),
        "Heartbeat": message((1, group), (2, 3)),
        "SendMessage": message((1, sent(b"planted", "A"))),
        "QueryAssignment": message((1, topic), (2, group), (3, grpc_wire.endpoints(port))),
        "ReceiveMessage": message(
            *((1, group), (2, queue), (3, message((1, 1), (2, "*"))), (4, 1)),
            *((5, message((1, 600))), (7, message((1, 1)))),
        ),
        **with_handles(["handle"] * 3),
        "EndTransaction": message((1, topic), (2, "M"), (3, "T"), (4, 1), (5, 1)),
        "Telemetry": message((2, settings)),
        "NotifyClientTermination": message((1, group)),
        "RecallMessage": message((1, topic), (2, "handle")),
    }


def with_handles(handles: Sequence[Value]) -> dict[str, bytes]:
    """Return the requests of the methods that need the handle of a received message each."""
    group, topic = resource(POPPING), resource(TOPIC)
    acknowledged, dead, changed = handles
    return {
        "AckMessage": message((1, group), (2, topic), (3, message((1, "M"), (2, acknowledged)))),
        "ForwardMessageToDeadLetterQueue": message(
            (1, group), (2, topic), (3, dead), (4, "M"), (5, 1), (6, 1)
        ),
        "ChangeInvisibleDuration": message(
            (1, group), (2, topic), (3, changed), (4, message((1, 30))), (5, "M")
        ),
    }


def sent(body: bytes, name: str) -> bytes:
    """Return a Message; its id ends with a letter's repetition."""
    system = message((3, "01" + 32 * name), (5, 1), (6, 1), (13, 0))
    return message((1, resource(TOPIC)), (3, system), (4, body))


def credentials(account: Account, *, date: str = _DATE, signed_date: str | None = None) -> Fields:
    """Return the metadata of a signed call (the official clients' signatures of 5.x)."""
    content = (date if signed_date is None else signed_date).encode()
    value = hmac.digest(account.secret_key.encode(), content, "sha1").hex()
    return {"x-mq-date-time": date, "authorization": _authorization(account.access_key, value)}


def _authorization(access_key: str, value: str) -> str:
    return (
        f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={value}"
    )


def _changed(part: str, other: str) -> Fields:
    """Return an administrator's credentials in which a part is another."""
    valid = credentials(ADMIN)
    return {**valid, "authorization": valid["authorization"].replace(part, other)}


# The signature covers the date alone, which may be any: an old one is not wrong.
FORGED_CALLS: Mapping[str, Fields] = {
    "unsigned": {},
    "a date alone": {"x-mq-date-time": _DATE},
    "a key and no signature": _changed(", Signature=", ", Nothing="),
    "an unknown key": credentials(Account("administratos", ADMIN.secret_key)),
    "no key": _changed(ADMIN.access_key, ""),
    "another account's secret": credentials(Account(ADMIN.access_key, STRANGER.secret_key)),
    "another account's signature": {
        **credentials(STRANGER),
        "authorization": credentials(STRANGER)["authorization"].replace(
            STRANGER.access_key, ADMIN.access_key
        ),
    },
    "the date changed": credentials(ADMIN, date="20261124T000001Z", signed_date=_DATE),
    "no date": {"authorization": credentials(ADMIN)["authorization"]},
    "the signature cut": {
        **credentials(ADMIN),
        "authorization": credentials(ADMIN)["authorization"][:-2],
    },
    "a signature of nothing": credentials(ADMIN, signed_date=""),
    "an empty secret": credentials(Account(ADMIN.access_key, "")),
    "another scheme": _changed("MQv2-HMAC-SHA1", "Basic"),
    "remoting's fields": {"accesskey": ADMIN.access_key, "signature": "x"},
}


def is_call_refused(outcome: grpc_wire.Outcome) -> bool:
    """Return whether a call was refused for its signature, by the service or by gRPC."""
    return outcome.code in (grpc_wire.UNAUTHORIZED, grpc_wire.UNAUTHENTICATED)


class Asker:
    """Asks one server, over a new connection where the server has ended one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = wire.Connection(port)

    def close(self) -> None:
        self._connection.close()

    def ask(self, code: int, fields: Fields, body: bytes = b"") -> wire.Answer | None:
        """Return the answer; None if the server hung up instead."""
        try:
            return self._connection.call(code, fields, body)
        except OSError:
            self._connection.close()
            self._connection = wire.Connection(self._port)
            return None


def is_refused(answer: wire.Answer) -> bool:
    return answer.code == 1 and "AclException" in answer.remark


@dataclass(slots=True)
class Tally:
    """What came of the wrong requests, and of the administrator's.

    Args:
        served: wrong requests that were not refused.
        hung_up: wrong requests whose connection ended without an answer.
        known: the administrator's requests that a server knows; `allowed` were served.
        failed: what the others of them were answered.
    """

    requests: int = 0
    served: list[str] = field(default_factory=list)
    hung_up: list[str] = field(default_factory=list)
    known: int = 0
    allowed: int = 0
    failed: list[str] = field(default_factory=list)


class Service:
    """The gRPC service, as one client after another calls it."""

    def __init__(self, port: int) -> None:
        self.requests = calls(port)
        self._caller = grpc_wire.Caller(port)

    def close(self) -> None:
        self._caller.close()

    def call(self, method: str, keys: Fields) -> grpc_wire.Outcome:
        metadata = {**grpc_wire.identity("a@1"), **keys}
        return self._caller.call(method, self.requests[method], tuple(metadata.items()))


class Askers(NamedTuple):
    """Connections to the servers; `holder`'s is the broker's too, `trier` is another member's."""

    name_server: Asker
    broker: Asker
    trier: Asker

    def close(self) -> None:
        for each in self:
            each.close()


def open_askers(server: Server) -> Askers:
    """Connect to a server."""
    ports = server.name_server_port, server.broker_port, server.broker_port
    return Askers(*map(Asker, ports))


def state_of(askers: Askers, rules: Path, *, is_held: bool) -> list[object]:
    """Return what an administrator is shown, and what no command shows.

    Args:
        is_held: whether the lock of queue 0 cannot have ended by its time.
    """
    found: list[object] = [rules.read_bytes()]
    for asker in askers[:2]:
        for code in SHOWING:
            found.append((code, _ask_as_admin(asker, code, _FIELDS)))
    for topic in ENDS:
        for queue_id in range(4):
            fields = {**_FIELDS, "topic": topic, "queueId": str(queue_id)}
            found.append(
                (topic, queue_id, _ask_as_admin(askers.broker, wire.GET_MAX_OFFSET, fields))
            )
    # Whoever else holds a lock keeps this member from it.
    body = json.dumps({**_LOCK, "clientId": TRIER}).encode()
    answer = askers.trier.ask(LOCK, signed({}, body, ADMIN), body)
    granted = json.loads(answer.body)["lockOKMQSet"] if answer is not None else []
    found.append(
        ("locks", sorted(each["queueId"] for each in granted if each["queueId"] or is_held))
    )
    askers.trier.ask(UNLOCK, signed({}, body, ADMIN), body)
    return found


HEARTBEAT, LOCK, UNLOCK = 34, 41, 42
# Less than the time that a broker keeps a lock (RebalanceLockManager: 60 s).
HELD_S_MAX = 50.0


def _ask_as_admin(asker: Asker, code: int, fields: Fields) -> object:
    answer = asker.ask(code, signed(fields, b"", ADMIN))
    return None if answer is None else (answer.code, answer.fields, answer.body)


def run(
    codes: Sequence[int], *, seed: int, directory: Path, has_accounts: bool = True
) -> dict[str, Any]:
    """Ask each code and method in each way; return the figures.

    Args:
        has_accounts: False to have servers that serve everybody, which breaks the promise.
    """
    choice, tally = random.Random(seed), Tally()
    rules = directory / "plain_acl.yml"
    rules.write_text(ACCOUNTS)
    options = ("--acl", str(rules)) if has_accounts else ()
    server = Server(directory / "data", *options, more=("gRPC",))
    server.start()
    try:
        askers = open_askers(server)
        service = Service(server.ports["gRPC"])
        requests = prepare(askers)
        begun_s = time.monotonic()
        before = state_of(askers, rules, is_held=True)
        cases = [
            (place, code, way)
            for place in range(2)
            for code in codes
            for way in (*FORGED, "no permission")
        ]
        choice.shuffle(cases)
        for place, code, way in cases:
            ask_wrongly(askers[place], PLACES[place], code, way, requests.of(code), tally)
        wrong_calls = [
            (method, way) for method in service.requests for way in (*FORGED_CALLS, "no permission")
        ]
        choice.shuffle(wrong_calls)
        for method, way in wrong_calls:
            call_wrongly(service, method, way, tally)
        is_held = time.monotonic() - begun_s < HELD_S_MAX
        after = state_of(askers, rules, is_held=is_held)
        changed = [
            (was, now)
            for was, now in zip(before, after, strict=True)
            if was != now and (is_held or not _is_lock(was))
        ]
        changed += [] if is_message_there(askers.broker) else [("the message", "is taken")]
        ask_rightly(askers, codes, service, requests, tally)
        askers.close()
        service.close()
    finally:
        server.kill()
    return {
        "codes": len(codes),
        "ways": len(FORGED) + 1,
        "methods": len(service.requests),
        "ways_of_calls": len(FORGED_CALLS) + 1,
        "requests": tally.requests,
        "served": len(tally.served),
        "hung_up": len(tally.hung_up),
        "examples": tally.served[:5]
        + tally.hung_up[:5]
        + [repr(pair)[:500] for pair in changed[:2]],
        "changed": len(changed),
        "known": tally.known,
        "served_to_administrator": tally.allowed,
        "not_served_to_administrator": tally.failed,
    }


PLACES = ("name server", "broker")


def _is_lock(shown: object) -> bool:
    return isinstance(shown, tuple) and shown[0] == "locks"


def prepare(askers: Askers) -> Requests:
    """Create the topic, send the message that nobody may see, prepare one, and lock a queue."""
    lock = json.dumps({**_LOCK, "mqSet": _QUEUES[:1]}).encode()
    half = {**SENDING, "i": f"TRAN_MSG\1true\2PGROUP\1{GROUP}\2UNIQ_KEY\1U\2", "f": "4"}
    answers = []
    members = [json.dumps(_heartbeat(each)).encode() for each in (HOLDER, TRIER)]
    for asker, code, fields, body in (
        (askers.broker, wire.CREATE_TOPIC, _FIELDS, b""),
        (askers.broker, wire.SEND_MESSAGE_V2, SENDING, MARK),
        (askers.broker, wire.SEND_MESSAGE_V2, half, b"half"),
        (askers.broker, HEARTBEAT, {}, members[0]),
        (askers.trier, HEARTBEAT, {}, members[1]),
        (askers.broker, LOCK, {}, lock),
    ):
        answer = asker.ask(code, signed(fields, body, ADMIN), body)
        if answer is None or answer.code:
            raise RuntimeError(f"an administrator's {code} is refused: {answer}")
        answers.append(answer.fields)
    position, half_position = (str(int(each["msgId"][-16:], 16)) for each in answers[1:3])
    end = {
        "tranStateTableOffset": answers[2]["queueOffset"],
        "commitLogOffset": half_position,
        "commitOrRollback": "12",
        "msgId": "U",
    }
    return Requests({33: {"offset": position}, 36: {"offset": position}, wire.END_TRANSACTION: end})


def receive_handles(service: Service) -> None:
    """Send and receive messages as an administrator; later calls have their handles."""
    for name in "BCD":
        service.requests["SendMessage"] = message((1, sent(b"received", name)))
        service.call("SendMessage", credentials(ADMIN))
    handles: list[Value] = []
    for _ in range(20):
        received = service.call("ReceiveMessage", credentials(ADMIN)).data
        # Fields of several answers lie one behind the other, as those of one would.
        handle = grpc_wire.first(received, 2, 3, 12)
        handles += [] if handle is None else [handle]
        if len(handles) == 3:
            service.requests |= with_handles(handles)
            return


def is_message_there(broker: Asker) -> bool:
    """Return whether a member is given the message, which others may have popped."""
    fields = {**_FIELDS, "consumerGroup": POPPING, "maxMsgNums": "32"}
    fields |= {"expType": "TAG", "exp": "*"}
    answer = broker.ask(wire.POP, signed(fields, b"", ADMIN))
    return answer is not None and MARK in answer.body


def ask_wrongly(
    asker: Asker, place: str, code: int, way: str, asked: tuple[Fields, bytes], tally: Tally
) -> None:
    """Ask once; note if more came than a refusal, or than a stranger may see."""
    tally.requests += 1
    fields, body = asked
    if way in FORGED:
        answer = asker.ask(code, *FORGED[way](fields, body))
    else:
        answer = asker.ask(code, signed(fields, body, STRANGER), body)
    if answer is None:
        tally.hung_up.append(f"{code} {way} at the {place}")
    elif MARK in answer.body or (way in FORGED and not is_refused(answer)):
        tally.served.append(f"{code} {way} at the {place}")


def call_wrongly(service: Service, method: str, way: str, tally: Tally) -> None:
    """Call once; note if more came than a refusal, or than a stranger may see."""
    tally.requests += 1
    outcome = service.call(method, FORGED_CALLS.get(way, credentials(STRANGER)))
    if not outcome.has_ended:
        tally.hung_up.append(f"{method} {way}")
    elif MARK in outcome.data or (way in FORGED_CALLS and not is_call_refused(outcome)):
        tally.served.append(f"{method} {way}")


def ask_rightly(
    askers: Askers,
    codes: Sequence[int],
    service: Service,
    requests: Requests,
    tally: Tally,
) -> None:
    """Ask the same as an administrator; note what is served of what the servers know."""
    receive_handles(service)
    for method in service.requests:
        outcome = service.call(method, credentials(ADMIN))
        tally.known += 1
        # A stream of telemetry has no status before it ends.
        if outcome.code in (0, grpc_wire.OK):
            tally.allowed += 1
        else:
            tally.failed.append(f"{method}: {outcome.code} {outcome.data[:80]!r}")
    for code in sorted(codes, key=lambda each: (each in REMOVING, each)):
        for place, asker in enumerate(askers[:2]):
            fields, body = requests.of(code)
            answer = asker.ask(code, signed(fields, body, ADMIN), body)
            if answer is not None and answer.code == NOT_SUPPORTED:
                continue
            tally.known += 1
            if answer is not None and answer.code == 0:
                tally.allowed += 1
            else:
                said = "hung up" if answer is None else f"{answer.code} {answer.remark[:80]}"
                tally.failed.append(f"{code} at the {PLACES[place]}: {said}")


def is_kept(figures: Mapping[str, Any]) -> bool:
    """Return whether the figures keep the promise, and prove it."""
    proves = figures["served_to_administrator"] * 100 >= figures["known"] * SERVED_PERCENT_MIN
    return proves and not (figures["served"] or figures["hung_up"] or figures["changed"])


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.access", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-access-") as directory:
        figures = run(CODES, seed=options.seed, directory=Path(directory))
    print(json.dumps(figures))
    return 0 if is_kept(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
