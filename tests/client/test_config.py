"""Settings are checked when they are given."""

from __future__ import annotations

import inspect
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    ConsumeFromWhere,
    Message,
    PollConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
    UnreadablePolicy,
)
from sparrowmq.client.config import (
    KINDS,
    NAMES_ELSEWHERE,
    ClientConfig,
    ClientTimes,
    ConsumerConfig,
    ProducerConfig,
)
from sparrowmq.config import Setting, rows_of
from sparrowmq.coordination.member_marker import HEARTBEATS_PER_EXPIRY, MARKED_EXPIRY_MS
from sparrowmq.errors import ConfigError
from sparrowmq.membership.member import ROUTE_WAIT_MAX_MS
from sparrowmq.model.consuming import Start


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group", ""),
        ("group", "bad name"),
        ("group", "DEFAULT_CONSUMER"),
        ("pull_batch_size", 0),
        ("pull_batch_size", 4096),
        ("consume_message_batch_max_size", 0),
        ("consume_thread_count", 1001),
        ("consume_thread_count", True),
        ("pull_timeout_ms", 15_000),
        ("drain_timeout_ms", -1),
        ("commit_interval_ms", 1),
        ("max_reconsume_times", -1),
        ("pull_threshold_for_queue", 0),
    ],
)
def test_wrong_consumer_setting_is_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"group": "G", "client_id": "c"} | {setting: value}

    with pytest.raises(ConfigError, match=setting):
        ConsumerConfig(**settings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group", "DEFAULT_PRODUCER"),
        ("send_timeout_ms", 0),
        ("retry_times", -1),
        ("retry_times", "2"),
        ("body_bytes_max", 2**30),
    ],
)
def test_wrong_producer_setting_is_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"group": "G", "client_id": "c"} | {setting: value}

    with pytest.raises(ConfigError, match=setting):
        ProducerConfig(**settings)


@pytest.mark.parametrize("kind", ["PushConsumer", "PollConsumer", "SimpleConsumer"])
def test_consumer_group_that_brokers_refuse_is_refused_at_once(kind: str) -> None:
    makers: dict[str, Any] = {
        "PushConsumer": partial(PushConsumer, listener=lambda *_: None),
        "PollConsumer": PollConsumer,
        "SimpleConsumer": SimpleConsumer,
    }
    make = partial(makers[kind], name_server="127.0.0.1:1")

    make("G" * 120).close()
    with pytest.raises(ConfigError, match="has 121 characters; the limit is 120"):
        make("G" * 121)
    # Brokers get it with its namespace.
    with pytest.raises(ConfigError, match="has 121 characters; the limit is 120"):
        make("G" * 119, namespace="n")


# --- the tables -------------------------------------------------------------------------------

# What a face makes of itself: the group with its namespace, the id, tables of other settings.
MADE = {"group", "client_id", "namespace", "consume_type", "client", "times"}
CLIENTS: dict[str, Any] = {
    "Producer": lambda **given: Producer("GID_s", name_server="127.0.0.1:1", **given),
    "PushConsumer": lambda **given: PushConsumer(
        "GID_s", name_server="127.0.0.1:1", listener=lambda *_: None, **given
    ),
    "PollConsumer": lambda **given: PollConsumer("GID_s", name_server="127.0.0.1:1", **given),
    "SimpleConsumer": lambda **given: SimpleConsumer("GID_s", name_server="127.0.0.1:1", **given),
    "Admin": lambda **given: Admin(name_server="127.0.0.1:1", **given),
}
ROWS = [(kind.name, row) for kind in KINDS.values() for row in kind.rows().values()]
RANGES = [(kind, row) for kind, row in ROWS if row.low is not None]


def name_of(value: object) -> str:
    return value.name if isinstance(value, Setting) else str(value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_not_made_can_be_set(kind: str) -> None:
    for table in KINDS[kind].tables:
        assert set() == {each.name for each in fields(table)} - rows_of(table).keys() - MADE


@pytest.mark.parametrize(("kind", "row"), RANGES, ids=name_of)
def test_range_of_a_setting_holds_at_the_face(kind: str, row: Setting) -> None:
    assert row.low is not None
    assert row.high is not None
    for value in (row.low - 1, row.high + 1, "7", True):
        with pytest.raises(ConfigError, match=f"{row.name} is {value!r}; it must be"):
            CLIENTS[kind](**{row.name: value})


def test_help_names_the_bounds_that_a_member_adds() -> None:
    rows = rows_of(ClientTimes)
    heartbeat_ms = MARKED_EXPIRY_MS // HEARTBEATS_PER_EXPIRY

    assert f"every {ROUTE_WAIT_MAX_MS // 1000} s" in rows["route_refresh_ms"].help
    assert f"up to {ROUTE_WAIT_MAX_MS // 1000} s" in rows["route_retry_max_ms"].help
    assert f"every {heartbeat_ms // 1000} s" in rows["heartbeat_ms"].help


def test_setting_arrives_where_it_is_used() -> None:
    with Producer("GID_s", name_server="127.0.0.1:1", heartbeat_ms=7_000) as producer:
        assert producer._publisher.config.times.heartbeat_ms == 7_000
    with PollConsumer(
        "GID_s",
        name_server="127.0.0.1:1",
        pull_threshold_size_for_queue=3,
        consume_concurrently_max_span=9,
        rebalance_interval_ms=500,
        unreadable_policy=UnreadablePolicy.SKIP,
    ) as consumer:
        member = consumer._state.subscriber.member._config
        assert (member.flow.size_mib_max, member.flow.span_max, member.rebalance_ms) == (3, 9, 500)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("PushConsumer", "drain_timeout", "did you mean drain_timeout_ms"),
        ("PushConsumer", "pullBatchSize", "did you mean pull_batch_size"),
        ("PushConsumer", "consume_from_where", "did you mean start"),
        ("PushConsumer", "auto_commit", "PushConsumer has no setting 'auto_commit'"),
        ("PollConsumer", "orderly", "PollConsumer has no setting 'orderly'"),
        ("Producer", "zzz", "there are access_key, avoid_slow_brokers, batch_bytes_max"),
        ("Admin", "timeout", "did you mean timeout_ms"),
        ("Producer", "bootstrap_servers", "did you mean name_server"),
        ("Producer", "bootstrap.servers", "did you mean name_server"),
        ("PushConsumer", "on_message_callback", "did you mean listener"),
        ("PollConsumer", "group_id", "did you mean group"),
        ("PollConsumer", "auto_offset_reset", "did you mean start"),
        ("PushConsumer", "topic", "did you mean topics"),
        ("PushConsumer", "model", "did you mean message_model"),
        ("PushConsumer", "broadcasting", "did you mean message_model"),
        ("PushConsumer", "thread", "did you mean consume_thread_count"),
        ("Admin", "group_id", "Admin has no setting 'group_id'; there are"),
    ],
)
def test_unknown_setting_is_refused_with_the_nearest(kind: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CLIENTS[kind](**{name: 1})

    assert words in str(caught.value)


def test_names_of_other_clients_lead_to_what_there_is() -> None:
    ours = {name for kind in KINDS.values() for name in (*kind.rows(), *kind.arguments)}

    methods = {
        name
        for client in (Producer, PollConsumer, SimpleConsumer, Admin)
        for _, method in inspect.getmembers(client, inspect.isfunction)
        for name in inspect.signature(method).parameters
    }

    assert set(NAMES_ELSEWHERE.values()) <= ours | methods | {*Message.__struct_fields__}
    assert not ours & NAMES_ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("start", "where"),
    [
        ("first", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        ("last", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        (datetime(2026, 1, 1), ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
        (ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET, ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET),
    ],
    ids=str,
)
def test_start_stands_in_heartbeats_as_rocketmq_names_it(
    start: Start, where: ConsumeFromWhere
) -> None:
    config = ConsumerConfig(group="G", client_id="c", start=start)

    assert config.consume_from_where is where


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="pull_timeout_ms is 9000; it must be more than"):
        CLIENTS["PushConsumer"](pull_timeout_ms=9_000)
    with pytest.raises(ConfigError, match="compress_level is 10; ZLIB has the levels 1 to 9"):
        CLIENTS["Producer"](compress_level=10)


# --- access control ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_keys_reach_the_driver_and_show_nowhere(kind: str) -> None:
    keys: dict[str, Any] = {
        "access_key": "me",
        "secret_key": "do-not-show",
        "security_token": "nor-this",
    }
    config = ClientConfig(**keys)

    with CLIENTS[kind](**keys) as client:
        driver = client._member.driver if hasattr(client, "_member") else client._driver
        found = driver._network.channels._credentials
        assert keys == {name: getattr(found, name) for name in keys}

    shown = f"{config} {found} {vars(client)}"
    assert "do-not-show" not in shown
    assert "nor-this" not in shown


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"access_key": "me"}, "access_key is given without secret_key"),
        ({"secret_key": "s3cret"}, "secret_key is given without access_key"),
        ({"security_token": "s3cret"}, "security_token is given without access_key"),
        ({"access_key": "me", "secret_key": b"s3cret"}, "secret_key must be a str"),
    ],
)
def test_half_of_a_key_is_refused_without_showing_it(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        CLIENTS["Admin"](**keys)

    assert "s3cret" not in str(caught.value)


# --- the environment --------------------------------------------------------------------------


def test_name_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")

    with Admin() as admin, Producer("GID_s", name_server="127.0.0.1:1") as producer:
        assert admin._directory.name_servers.addresses == ("10.0.0.1:9876", "10.0.0.2:9876")
        assert producer._publisher.name_servers.addresses == ("127.0.0.1:1",)
    monkeypatch.setenv("NAMESRV_ADDR", "nonsense")
    with pytest.raises(ConfigError, match="'nonsense' is not an address"):
        Admin()
