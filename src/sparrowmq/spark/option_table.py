"""Tables of options: their rows, the checks of values, and the errors for wrong names. Pure.

Spark passes option names in lower case, so names are compared without case. A name that is not in
the table is an error that offers the nearest right name. Tests: test_options.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.model.names import check_topic
from sparrowmq.model.whole_number import read_whole_number

BATCH, STREAM, STORE = "batch", "stream", "store"
# Options of Spark's source and sink for Kafka that have another name here, or do not exist.
_KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "it is 'nameServer' here, the address of a name server",
    "kafka.group.id": "it is 'group' here",
    "groupIdPrefix": "leave it out: a read joins no group and needs no name of its own",
    "subscribe": "it is 'topic' here",
    "subscribePattern": "it is 'topicPattern' here, matched with whole names",
    "kafkaConsumer.pollTimeoutMs": "it is 'requestTimeoutMs' here",
    "fetchOffset.numRetries": "it is 'waitForBrokers' here, a time",
    "fetchOffset.retryIntervalMs": "leave it out: pauses grow from 0.2 s to 3 s",
    "kafka.acks": "leave it out: how safely messages are stored is a setting of the brokers",
    "kafka.security.protocol": "it is 'useTLS' here",
}
# The prefix of the options of a new table in Spark's catalog.
_TABLE_PREFIX = "option."
_NO_TABLES = (
    "Spark's catalog hands no options of a table to a source in Python; make a view instead: "
    "CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"
)
# The name of each scope in errors.
_NAMES = {
    BATCH: "a batch from brokers",
    STREAM: "a stream",
    STORE: "a batch from option 'storePath'",
}


class Option(NamedTuple):
    """A row of a table.

    Args:
        name: the name that users write.
        default: the default as users would write it, or None for no default.
        parse: turns the text into the value; raises ConfigError or ValueError.
        help: one sentence.
        applies_to: the scopes BATCH, STREAM and STORE (a batch from a store directory) of the
            option. In any other scope the option would be ignored, so it is an error there.
        is_secret: whether errors must not show the value.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    help: str
    applies_to: tuple[str, ...] = (BATCH, STREAM)
    is_secret: bool = False


def parse_given(
    table: Sequence[Option], options: Mapping[str, str], *, scope: str
) -> dict[str, Any]:
    """Return the values of the options given, by their names in the table.

    Args:
        options: the options that Spark passes; names in any case.
        scope: BATCH, STREAM or STORE, or "any" while the scope is not known yet.

    Raises: ConfigError that names the option, its value and the allowed values.
    """
    by_lower_name = {option.name.lower(): option for option in table}
    given: dict[str, Any] = {}
    for name, text in options.items():
        option = by_lower_name.get(name.lower())
        if option is None:
            raise ConfigError(_unknown(name, by_lower_name))
        if scope != "any" and scope not in option.applies_to:
            others = " and ".join(_NAMES[each] for each in option.applies_to)
            raise ConfigError(f"option {option.name!r} is for {others}; this is {_NAMES[scope]}")
        given[option.name] = _parse_value(option, text)
    return given


def require(given: Mapping[str, Any], name: str, example: str) -> None:
    """Raise a ConfigError unless an option is given."""
    if name not in given:
        raise ConfigError(
            f"option {name!r} is missing; write .option({name!r}, {example!r}); in SQL, "
            f"CREATE TEMPORARY VIEW name USING rocketmq OPTIONS ({name} {example!r}, ...), for "
            f"tables of Spark's catalog lose their options"
        )


def with_defaults(table: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each option, by Python's form of its name: `topic_pattern`."""
    values: dict[str, Any] = {}
    for option in table:
        value = given.get(option.name)
        if option.name not in given and option.default is not None:
            value = _parse_value(option, option.default)
        values[re.sub("([A-Z])", r"_\1", option.name).lower()] = value
    return values


def _unknown(name: str, by_lower_name: Mapping[str, Option]) -> str:
    if name.lower().startswith(_TABLE_PREFIX):
        return _NO_TABLES
    for kafka_name, answer in _KAFKA_OPTIONS.items():
        if name.lower() == kafka_name.lower():
            return f"option {kafka_name!r} is Kafka's; {answer}"
    known = [each.name for each in by_lower_name.values()]
    hint = did_you_mean(name, known, f"the options are {', '.join(known)}")
    return f"unknown option {name!r}{hint}"


def _parse_value(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except (ValueError, OverflowError) as error:  # ConfigError is one too
        shown = "" if option.is_secret else f" is {text!r}"
        raise ConfigError(f"option {option.name!r}{shown}: {error}") from error
    except RecursionError:
        raise ConfigError(
            f"option {option.name!r} has {len(text):,} characters, which are nested too deeply"
        ) from None


def parse_topics(text: str) -> tuple[str, ...]:
    """Parse topic names joined by commas."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("no topic is named")
    return tuple(check_topic(topic) for topic in topics)


def parse_pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is not a regular expression ({error})") from error
    return text


def parse_text(text: str) -> str:
    """Parse any text except an empty one."""
    if not text.strip():
        raise ValueError("it is empty")
    return text


def parse_bool(text: str) -> bool:
    """Parse true or false, in any case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("write true or false")
    return lowered == "true"


def parse_whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds, both included."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"write a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return value

    return parse


def parse_choice(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of these words, in any case."""

    def parse(text: str) -> str:
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise ValueError(f"write {' or '.join(choices)}")

    return parse


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Parse `90s`, `15m` or `250ms` into milliseconds."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]+)\s*", text.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError(f"write a number and a unit of {', '.join(_UNITS_MS)}, such as 15m")
    return int(match[1]) * _UNITS_MS[match[2]]


# Milliseconds within these are from 1973 to 5138, seconds from before 1973, and microseconds from
# after 5138; 0 is the beginning.
_TIMESTAMP_MS_MIN, _TIMESTAMP_MS_MAX = 10**11, 10**14
_EPOCH = datetime.fromtimestamp(0, UTC)


def check_timestamp_ms(value: int) -> int:
    """Return a time in milliseconds since 1970.

    Raises: ValueError for a number that is one of seconds or microseconds.
    """
    if value == 0 or _TIMESTAMP_MS_MIN <= value < _TIMESTAMP_MS_MAX:
        return value
    unit, factor = ("seconds", 1000) if value < _TIMESTAMP_MS_MIN else ("microseconds", 0.001)
    raise ValueError(
        f"milliseconds since 1970 are needed, and this looks like {unit}; "
        f"write {int(value * factor)} if it is"
    )


def parse_timestamp_ms(text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601; a time without a zone is UTC.

    Within a millisecond, the time is the next whole one: no message of before is at or after it.
    """
    text = text.strip()
    if (number := read_whole_number(text)) is not None:
        return check_timestamp_ms(number)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "write milliseconds since 1970, or a time such as 2026-03-01T00:00:00Z"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return -((_EPOCH - instant) // timedelta(milliseconds=1))
