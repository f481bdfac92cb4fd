"""QUERY_MESSAGE: messages by key."""

from __future__ import annotations

from typing import Any

import pytest

from small_stores import split_records
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Reply
from sparrowmq.store.key_hash import hash_text
from steps import make_in_steps


def query(rig: Any, key: str, **fields: str) -> Any:
    wanted = {"topic": "T", "key": key, "maxNum": "10", "beginTimestamp": "0"}
    return rig.call(
        rig.connect(), RequestCode.QUERY_MESSAGE, wanted | {"endTimestamp": str(1 << 62)} | fields
    )


def bodies(reply: Any) -> list[bytes]:
    return [record.body for record in split_records(reply.body)]


def test_messages_are_found_as_soon_as_they_can_be_read(rig: Any) -> None:
    rig.send(rig.connect(), body=b"1", properties="KEYS\x01a b\x02UNIQ_KEY\x01U1")
    rig.send(rig.connect(), body=b"2", properties="KEYS\x01b\x02UNIQ_KEY\x01U2")

    reply = query(rig, "b")

    assert reply.code == ResponseCode.SUCCESS
    assert bodies(reply) == [b"1", b"2"]
    assert str(rig.timestamp_ms) == reply.ext_fields["indexLastUpdateTimestamp"]
    last = rig.records("T")[-1].position
    assert str(last) == reply.ext_fields["indexLastUpdatePhyoffset"]
    assert bodies(query(rig, "U2", _UNIQUE_KEY_QUERY="true")) == [b"2"]


def test_an_id_may_have_more_messages_than_were_asked_for(rig: Any) -> None:
    for number in range(70):
        rig.send(rig.connect(), body=b"%d" % number, properties="UNIQ_KEY\x01U")

    assert len(bodies(query(rig, "U", maxNum="1000"))) == 64
    assert len(bodies(query(rig, "U", maxNum="1"))) == 1
    assert len(bodies(query(rig, "U", maxNum="1", _UNIQUE_KEY_QUERY="true"))) == 32
    assert len(bodies(query(rig, "U", maxNum="1", _UNIQUE_KEY_QUERY="false"))) == 1


def test_nothing_is_found_outside_the_time_or_topic(rig: Any) -> None:
    rig.send(rig.connect(), properties="KEYS\x01a")

    for fields in ({"endTimestamp": "5"}, {"topic": "U"}, {"key": "b"}):
        reply = query(rig, **{"key": "a", **fields})
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
        assert reply.remark == "can not find message, maybe time range not correct"


def test_a_key_of_the_same_hash_shows_nothing_of_another_topic(rig: Any) -> None:
    rig.send(rig.connect(), "secret", properties="KEYS\x01order-1")
    key = key_of_hash("U#", hash_text("secret#order-1"))

    assert hash_text("secret#order-1") == hash_text(f"U#{key}")
    assert query(rig, key, topic="U").code == ResponseCode.QUERY_NOT_FOUND
    assert query(rig, "order-1", topic="secret").code == ResponseCode.SUCCESS


def test_a_topic_of_the_same_hash_shows_nothing_of_another(rig: Any) -> None:
    rig.send(rig.connect(), "Aa", properties="KEYS\x01k\x02UNIQ_KEY\x01U")

    assert hash_text("Aa#k") == hash_text("BB#k")
    assert [query(rig, key, topic="BB").code for key in ("k", "U")] == [
        ResponseCode.QUERY_NOT_FOUND
    ] * 2
    assert query(rig, "k", topic="Aa").code == ResponseCode.SUCCESS


def test_keys_of_the_same_hash_hide_no_message(rig: Any) -> None:
    rig.send(rig.connect(), body=b"wanted", properties="KEYS\x01order-1 x\x02UNIQ_KEY\x01U1")
    key, uniq_key = (key_of_hash("T#", hash_text(f"T#{each}")) for each in ("order-1", "U1"))
    for _ in range(70):
        rig.send(rig.connect(), body=b"other", properties=f"KEYS\x01{key}")
        rig.send(rig.connect(), body=b"other", properties=f"UNIQ_KEY\x01{uniq_key}")

    assert bodies(query(rig, "order-1", maxNum="1")) == [b"wanted"]
    assert bodies(query(rig, "U1", _UNIQUE_KEY_QUERY="true")) == [b"wanted"]
    assert len(bodies(query(rig, key, maxNum="64"))) == 64


def test_a_key_of_the_same_hash_shows_no_message_that_lacks_the_key(rig: Any) -> None:
    for key in ("order-1", ""):
        other = key_of_hash("T#", hash_text(f"T#{key}"))
        rig.send(rig.connect(), properties=f"KEYS\x01{other} {key}x")

    assert query(rig, "order-1").code == ResponseCode.QUERY_NOT_FOUND
    assert query(rig, "").code == ResponseCode.QUERY_NOT_FOUND
    assert query(rig, "order-1x").code == ResponseCode.SUCCESS


def test_a_search_among_keys_of_the_same_hash_has_a_bound(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of_hash("T#", hash_text("T#order-1"))
    rig.send(rig.connect(), body=b"wanted", properties="KEYS\x01order-1")
    for _ in range(130):
        rig.send(rig.connect(), body=b"other", properties=f"KEYS\x01{key}")
    fields = {"topic": "T", "key": "order-1", "maxNum": "10", "beginTimestamp": "0"}
    command = RemotingCommand(
        code=RequestCode.QUERY_MESSAGE, ext_fields=fields | {"endTimestamp": str(1 << 62)}
    )

    (output,) = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)
    output, steps = make_in_steps(output)
    assert isinstance(output, Reply)
    assert bodies(output.command) == [b"wanted"]
    # 131 short records at 4 KiB each, 256 KiB in a step.
    assert steps == 3

    monkeypatch.setattr("sparrowmq.store.key_search.COMPARED_BYTES_MAX", 130 * 4096)
    refused = query(rig, "order-1")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "ask for a shorter time" in refused.remark
    assert bodies(query(rig, key, maxNum="1")) == [b"other"]


def key_of_hash(prefix: str, wanted: int) -> str:
    """Return a key that has this hash behind a prefix: seven digits of base 31, from "A" on."""
    rest = wanted - hash_text(prefix + "A" * 7)
    digits = []
    rest %= 1 << 32
    for exponent in reversed(range(7)):
        digit, rest = divmod(rest, 31**exponent)
        digits.append(chr(ord("A") + digit))
    return "".join(digits)


def test_a_query_is_refused_while_the_index_is_built(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send(rig.connect(), properties="KEYS\x01a")
    monkeypatch.setattr("sparrowmq.store.message_store._INDEX_REST_BYTES_MAX", 0)

    refused = query(rig, "a")
    rig.advance(100)

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "ask again later" in refused.remark
    assert query(rig, "a").code == ResponseCode.SUCCESS


def test_the_index_is_built_in_ticks_with_few_messages(rig: Any) -> None:
    connection = rig.connect()
    for _ in range(300):
        rig.send(connection, properties="KEYS\x01a")
    rig.outputs += rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    busy = rig.store._index.built_position
    rig.advance(100)

    assert busy == 0
    assert rig.store.appended_position == rig.store._index.built_position


def test_key_of_many_messages_lets_others_be_served_in_between(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.store.index_file.ENTRIES_PER_STEP", 8)
    for number in range(100):
        rig.send(rig.connect(), body=b"%d" % number, properties="KEYS\x01all")
        rig.timestamp_ms += 1_000
    fields = {"topic": "T", "key": "all", "maxNum": "10", "beginTimestamp": "0"}
    first_ms = rig.records("T")[0].store_timestamp_ms
    command = RemotingCommand(
        code=RequestCode.QUERY_MESSAGE, ext_fields=fields | {"endTimestamp": str(first_ms)}
    )

    (output,) = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)
    output, steps = make_in_steps(output)

    assert steps > 100 // 8
    assert isinstance(output, Reply)
    assert bodies(output.command) == [b"0"]
