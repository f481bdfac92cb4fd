"""Ask servers with accounts in every wrong way: `python -m gate.access`.

Each code of the protocol, and more that nobody has, goes to the name server and the broker in each
of `WAYS`: unsigned, forged, changed after it was signed, or by an account without permissions. Only
the last may be served, and only what shows no message. At the end the state must be what it was,
and the same requests signed by an administrator must be served, or they would prove nothing.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gate import wire
from gate.server import Server

CODES = (*range(1, 60), *range(200, 420), 900, 901, *range(2_000, 2_020), *range(200_050, 200_080))
# What shows an administrator the state of a server.
SHOWING = (21, 26, 30, 43, 45, 50, 54, 201, 206, 225, 305, 2_010)
# What of the same requests an administrator is served at the least.
SERVED_MIN = 50
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


def fields_of(code: int) -> Fields:
    """Return fields in which most codes find what they need."""
    if code in {wire.SEND_MESSAGE_V2, wire.SEND_BATCH}:
        return {name: str(value) for name, value in wire.send_fields(TOPIC, 0, {}).items()}
    return dict(_FIELDS)


_ZERO = (
    *("queueId", "queueOffset", "offset", "commitOffset", "suspendTimeoutMillis"),
    *("flag", "reconsumeTimes", "delayLevel", "timestamp", "beginTimestamp", "topicSysFlag"),
    *("brokerId", "index", "pollTime", "initMode", "bornTime", "subVersion"),
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
}
BODY = b'{"groupName":"GID_planted","consumerGroup":"GID_orders","clientId":"a@1","mqSet":[]}'


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


def is_refused(answer: wire.Answer | None) -> bool:
    return answer is None or (answer.code == 1 and "AclException" in answer.remark)


def is_answered(answer: wire.Answer | None) -> bool:
    return answer is not None and answer.code == 0


def state_of(askers: Sequence[Asker]) -> list[object]:
    """Return what an administrator is shown: topics, groups, offsets, accounts, settings."""
    found: list[object] = []
    for asker in askers:
        for code in SHOWING:
            answer = asker.ask(code, signed(_FIELDS, b"", ADMIN))
            found.append(
                None if answer is None else (code, answer.code, answer.fields, answer.body)
            )
    return found


def run(codes: Sequence[int], *, seed: int, directory: Path) -> dict[str, Any]:
    """Ask each code in each way; return the figures."""
    choice = random.Random(seed)
    rules = directory / "plain_acl.yml"
    rules.write_text(ACCOUNTS)
    server = Server(directory / "data", "--acl", str(rules))
    server.start()
    try:
        askers = [Asker(server.name_server_port), Asker(server.broker_port)]
        prepare(askers[1])
        before = state_of(askers)
        cases = [(code, way) for code in codes for way in (*FORGED, "no permission")]
        choice.shuffle(cases)
        served = [
            f"{code} {way} at the {name}"
            for code, way in cases
            for name, asker in zip(("name server", "broker"), askers, strict=True)
            if is_served(asker, code, way)
        ]
        changed = [
            (was, now) for was, now in zip(before, state_of(askers), strict=True) if was != now
        ]
        allowed = sum(
            is_answered(asker.ask(code, signed(fields_of(code), BODY, ADMIN), BODY))
            for code in codes
            for asker in askers
        )
        for asker in askers:
            asker.close()
    finally:
        server.kill()
    return {
        "codes": len(codes),
        "ways": len(FORGED) + 1,
        "requests": 2 * len(cases),
        "served": len(served),
        "examples": served[:5] + [repr(pair)[:500] for pair in changed[:2]],
        "changed": len(changed),
        "served_to_administrator": allowed,
    }


def prepare(broker: Asker) -> None:
    """Create the topic and send the message that nobody may see."""
    for code, fields, body in (
        (wire.CREATE_TOPIC, _FIELDS, b""),
        (wire.SEND_MESSAGE_V2, fields_of(wire.SEND_MESSAGE_V2), MARK),
    ):
        answer = broker.ask(code, signed(fields, body, ADMIN), body)
        if answer is None or answer.code:
            raise RuntimeError(f"an administrator's {code} is refused: {answer}")


def is_served(asker: Asker, code: int, way: str) -> bool:
    """Ask once; return whether more came than a refusal, or than a stranger may see."""
    if way in FORGED:
        fields, body = FORGED[way](fields_of(code), BODY)
        return not is_refused(asker.ask(code, fields, body))
    answer = asker.ask(code, signed(fields_of(code), BODY, STRANGER), BODY)
    return answer is not None and MARK in answer.body


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.access", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-access-") as directory:
        figures = run(CODES, seed=options.seed, directory=Path(directory))
    print(json.dumps(figures))
    is_kept = not figures["served"] and not figures["changed"]
    return 0 if is_kept and figures["served_to_administrator"] >= SERVED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
