"""The options of a write and its columns: two tables, and the checks of both. Pure.

Tests: test_sink.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.client.name_servers import parse_name_servers
from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.model.names import NOT_ALLOWED_SEND_TOPICS, check_group, check_topic
from sparrowmq.spark.connection_options import CONNECTION_OPTIONS, ClusterOptions, take_connection
from sparrowmq.spark.option_table import (
    Option,
    parse_bool,
    parse_given,
    parse_whole,
    require,
    with_defaults,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ClusterOptions):
    """The options of a write, checked. Each field is the option of the same name.

    `request_timeout_ms` is `send_timeout_ms`.
    """

    topic: str | None
    create_topic: bool
    group: str
    exactly_once: bool
    max_in_flight: int
    send_timeout_ms: int
    retry_times: int


def _parse_topic(text: str) -> str:
    topic = check_topic(text.strip())
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise ValueError("it belongs to the broker; clients cannot send to it")
    return topic


SINK_OPTIONS: tuple[Option, ...] = (
    Option(
        "nameServer",
        None,
        parse_name_servers,
        "the addresses of name servers, host:port joined by ';'; required",
    ),
    Option("topic", None, _parse_topic, "the topic of rows that name none in the column topic"),
    Option(
        "createTopic",
        "false",
        parse_bool,
        "create a missing topic, with 8 queues on each broker; false fails the write",
    ),
    Option("group", "GID_SPARK_SINK", check_group, "the producer group"),
    Option(
        "exactlyOnce",
        "false",
        parse_bool,
        "give each message the property WRITE_ID, which stays the same when Spark repeats a "
        "task or a micro-batch; readers drop duplicates by exactly_once(rows)",
    ),
    Option(
        "maxInFlight",
        "4",
        parse_whole(1, 256),
        "the most requests of one task that are under way at once",
    ),
    Option(
        "sendTimeoutMs",
        "60000",
        parse_whole(1, 3_600_000),
        "the time limit of one request with all its attempts, in ms",
    ),
    Option(
        "retryTimes",
        "10",
        parse_whole(0, 100),
        "the number of further attempts after a request has failed",
    ),
    *CONNECTION_OPTIONS,
)


class SinkColumn(NamedTuple):
    """A column of a write: its name, its allowed types, and its meaning for the message."""

    name: str
    types: tuple[str, ...]
    help: str


SINK_COLUMNS: tuple[SinkColumn, ...] = (
    SinkColumn("body", ("binary", "string"), "the payload, 1 byte to 4 MiB; required"),
    SinkColumn("topic", ("string",), "the topic; a null stands for option topic"),
    SinkColumn("tags", ("string",), "the tag"),
    SinkColumn("keys", ("string", "array<string>"), "the keys; a string joins them by blanks"),
    SinkColumn(
        "properties",
        ("map<string,string>",),
        "the user's own properties; RocketMQ carries none with an empty name or value",
    ),
    SinkColumn("shardingKey", ("string",), "rows of one key go to one queue, in their order"),
    SinkColumn("queueId", ("int",), "the queue; needs brokerName, and overrides shardingKey"),
    SinkColumn("brokerName", ("string",), "the broker of queueId"),
    SinkColumn("delayTimeLevel", ("int",), "the level of the broker's delay before delivery, 1-18"),
    SinkColumn("flag", ("int",), "the producer's own 32 bits"),
)


def parse_sink_options(options: Mapping[str, str], *, scope: str) -> SinkOptions:
    """Check the options of a write.

    Raises: ConfigError that names the option, its value and the allowed values.
    """
    given = parse_given(SINK_OPTIONS, options, scope=scope)
    require(given, "nameServer", "host:9876")
    values = with_defaults(SINK_OPTIONS, given)
    return SinkOptions(
        request_timeout_ms=values["send_timeout_ms"],
        **take_connection(values, given),
        **values,
    )


# Columns of Spark's sink for Kafka that have another name here.
_KAFKA_COLUMNS = {"value": "body", "key": "keys", "headers": "properties", "partition": "queueId"}


def check_columns(types: Mapping[str, str], *, topic: str | None) -> None:
    """Check the columns of the rows to write.

    Args:
        types: the types by column name, in the form of Spark's `simpleString`.

    Raises: ConfigError that names a wrong column and the allowed ones.
    """
    by_name = {column.name: column for column in SINK_COLUMNS}
    for name, kind in types.items():
        column = by_name.get(name)
        if column is None:
            raise ConfigError(_unknown(name, by_name))
        if kind not in column.types:
            raise ConfigError(
                f"column {name!r} is {kind}, but {' or '.join(column.types)} is needed; "
                f"cast it before the write"
            )
    if "body" not in types:
        raise ConfigError(
            f"column 'body' is missing; the rows have {', '.join(types) or 'no column'}; "
            f'rename the payload, such as .withColumnRenamed("value", "body")'
        )
    if topic is None and "topic" not in types:
        raise ConfigError("give option 'topic', or a column 'topic'")
    if ("queueId" in types) != ("brokerName" in types):
        raise ConfigError("columns 'queueId' and 'brokerName' name a queue together; give both")


def _unknown(name: str, by_name: Mapping[str, SinkColumn]) -> str:
    then = f"drop or rename it; the columns are {', '.join(by_name)}"
    hint = did_you_mean(_KAFKA_COLUMNS.get(name, name), by_name, then)
    return f"a write takes no column {name!r}{hint}"
