"""The columns that a read can return, and the profiles that choose among them. Pure.

Spark 4.3 does not pass the columns that a query needs to a Python data source. Users therefore
choose the columns, by a profile or by a list of names. A column that is not chosen costs nothing.
Tests: test_options.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparrowmq.errors import ConfigError, did_you_mean


class Column(NamedTuple):
    """A column: its name, its type in Spark's DDL, and its content."""

    name: str
    ddl: str
    help: str


COLUMNS: tuple[Column, ...] = (
    Column("topic", "string", "the topic"),
    Column("brokerName", "string", "the broker on which the queue lies"),
    Column("queueId", "int", "the queue's number on its broker"),
    Column("queueOffset", "bigint", "the message's number in its queue, from 0"),
    Column(
        "commitLogOffset",
        "bigint",
        "the position of the message in the broker's commit log, in bytes",
    ),
    Column("msgId", "string", "the id that the producer gave, else offsetMsgId"),
    Column("offsetMsgId", "string", "the id made of the broker's address and commitLogOffset"),
    Column("keys", "string", "the keys, joined by a blank; null where there are none"),
    Column("tags", "string", "the tag; null where there is none"),
    Column("body", "binary", "the payload, inflated"),
    Column(
        "bodyFields",
        "struct",
        "the fields of a body that is one JSON value of option bodySchema; null for other bodies",
    ),
    Column(
        "bodyError",
        "string",
        "why the body is not one JSON value of option bodySchema; null for a body that is",
    ),
    Column("flag", "int", "the producer's own 32 bits"),
    Column("sysFlag", "int", "RocketMQ's bits: compression, transaction, host versions"),
    Column(
        "bornTimestamp",
        "timestamp",
        "when the producer made the message; null for a time before the year 1 or after 9999",
    ),
    Column("storeTimestamp", "timestamp", "when the broker stored the message"),
    Column("bornHost", "string", "the producer's address, ip:port"),
    Column("storeHost", "string", "the broker's address, ip:port"),
    Column("reconsumeTimes", "int", "how often consumers sent the message back"),
    Column("storeSize", "int", "the size of the message's record in the commit log, in bytes"),
    Column("properties", "map<string,string>", "all properties, keys and tags among them"),
    Column(
        "userProperties",
        "map<string,string>",
        "the properties without RocketMQ's own, as a write takes them",
    ),
    # The columns of Spark's source for Kafka, with its names.
    Column("key", "binary", "the keys, as bytes"),
    Column("value", "binary", "the payload, the same as body"),
    Column("partition", "int", "the queue's number from 0, over sorted broker names and queue ids"),
    Column("offset", "bigint", "the same as queueOffset"),
    Column("timestamp", "timestamp", "the same as bornTimestamp"),
    Column("timestampType", "int", "0: the timestamp is when the producer made the message"),
    Column(
        "headers",
        "array<struct<key:string,value:binary>>",
        "userProperties as Kafka's headers; null where there are none",
    ),
)

# The columns that option bodySchema makes.
BODY_COLUMNS = ("bodyFields", "bodyError")

PROFILES: dict[str, tuple[str, ...]] = {
    "minimal": ("brokerName", "queueId", "queueOffset", "body"),
    "default": (
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "msgId",
        "keys",
        "tags",
        "body",
        "bornTimestamp",
        "storeTimestamp",
        "reconsumeTimes",
        "properties",
    ),
    "full": tuple(column.name for column in COLUMNS[:21] if column.name not in BODY_COLUMNS),
    "kafka": ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
}

_BY_NAME = {column.name: column for column in COLUMNS}


def parse_profile(text: str) -> tuple[str, ...]:
    """Return the column names of a profile.

    Raises: ConfigError for an unknown profile.
    """
    names = PROFILES.get(text.strip().lower())
    if names is None:
        raise ConfigError(f"there is no profile {text!r}; choose one of {', '.join(PROFILES)}")
    return names


def parse_columns(text: str) -> tuple[str, ...]:
    """Return column names from a comma list; their order is the order of the columns.

    Raises: ConfigError if a name is unknown or repeated, or the list is empty.
    """
    by_lower_name = {name.lower(): name for name in _BY_NAME}
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        name = by_lower_name.get(part.lower())
        if name is None:
            hint = did_you_mean(part, _BY_NAME, f"the columns are {', '.join(_BY_NAME)}")
            raise ConfigError(f"there is no column {part!r}{hint}")
        if name in names:
            raise ConfigError(f"column {name!r} is named twice")
        names.append(name)
    return tuple(names)


def check_declared(types: Mapping[str, str], body_type: str) -> None:
    """Check the columns of a user's schema.

    Args:
        types: the types by column name, in the form of Spark's `simpleString`.
        body_type: the type of `bodyFields`.

    Raises: ConfigError that names a wrong column and its right type.
    """
    for name, kind in types.items():
        (known,) = parse_columns(name)
        right = body_type if known == "bodyFields" else _BY_NAME[known].ddl
        if (name, kind) != (known, right):
            raise ConfigError(
                f"column {name!r} is declared as {kind}; write {columns_ddl((known,), body_type)}, "
                f"and cast it in the query"
            )


def columns_ddl(names: tuple[str, ...], body_ddl: str) -> str:
    """Return the schema of these columns as Spark's DDL, where `bodyFields` is of this type."""
    types = {name: body_ddl if name == "bodyFields" else _BY_NAME[name].ddl for name in names}
    # The name `timestamp` alone would be what the session takes for it.
    return ", ".join(
        f"`{name}` {'timestamp_ltz' if ddl == 'timestamp' else ddl}" for name, ddl in types.items()
    )
