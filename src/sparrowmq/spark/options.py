"""The options of the data source: one table, and the frozen values parsed from it.

A row of `OPTIONS` is the whole truth about an option: its name, where it applies, its default, its
parser and its help. Spark hands option names over in lower case, so names are compared without
case; a name that is not in the table is an error that offers the nearest right one. `SourceOptions`
is what readers hold: it is pickled to the executors, so it holds plain values only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparrowmq.client.name_servers import parse_name_servers
from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import check_group, check_topic
from sparrowmq.spark import schema
from sparrowmq.spark.bounds import OffsetChoice
from sparrowmq.spark.offsets import EARLIEST, LATEST, parse_offsets, parse_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read, checked. Each field is the option of the same name."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    assign: frozenset[MessageQueue] | None
    starting_offsets: OffsetChoice | None
    ending_offsets: OffsetChoice | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    min_rows_per_partition: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    group: str | None
    commit_offsets: bool
    pull_batch_size: int
    request_timeout_ms: int
    fetch_retries: int
    retry_interval_ms: int

    @property
    def name_server_text(self) -> str:
        """The name servers as the user writes them."""
        return ";".join(self.name_servers)


class Option(NamedTuple):
    """A row of the table.

    Args:
        name: as users write it.
        default: as users would write it, or None where there is none.
        parse: from text to value; raises ConfigError or ValueError.
        help: one sentence.
        scopes: "batch", "stream", or both.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    help: str
    scopes: tuple[str, ...] = ("batch", "stream")


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("no topic is named")
    return tuple(check_topic(topic) for topic in topics)


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("write true or false")
    return lowered == "true"


def _parse_whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"write a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return value

    return parse


def _parse_choice(stand_ins: Mapping[str, int], rest: int) -> Callable[[str], OffsetChoice]:
    def parse(text: str) -> OffsetChoice:
        lowered = text.strip().lower()
        if lowered in stand_ins:
            return OffsetChoice(stand_ins[lowered])
        if not lowered.startswith("{"):
            words = " or ".join(stand_ins)
            raise ValueError(f'write {words}, or JSON {{"topic": {{"broker": {{"0": 17}}}}}}')
        return OffsetChoice(rest, parse_offsets(text))

    return parse


_COUNT_MAX = 2**63 - 1

OPTIONS: tuple[Option, ...] = (
    Option(
        "nameServer", None, parse_name_servers, "name servers, host:port joined by ';'; required"
    ),
    Option("topic", None, _parse_topics, "topics to read, joined by ','; this or assign"),
    Option(
        "assign", None, parse_queues, 'exact queues, {"topic": {"broker": [0, 1]}}; this or topic'
    ),
    Option(
        "startingOffsets",
        None,
        _parse_choice({"earliest": EARLIEST, "latest": LATEST}, EARLIEST),
        "where to begin: earliest (default of a batch), latest (default of a stream without a "
        'checkpoint), or JSON {"topic": {"broker": {"0": 17}}} with -2 for earliest and -1 for '
        "latest; a queue that the JSON does not name begins at earliest",
    ),
    Option(
        "endingOffsets",
        "latest",
        _parse_choice({"latest": LATEST}, LATEST),
        "where a batch ends: latest, or JSON; a queue that the JSON does not name ends at latest",
        ("batch",),
    ),
    Option(
        "maxOffsetsPerTrigger",
        None,
        _parse_whole(1, _COUNT_MAX),
        "the most messages of one micro-batch, shared out among the queues pro rata",
        ("stream",),
    ),
    Option(
        "minPartitions",
        "0",
        _parse_whole(0, 100_000),
        "at least so many Spark partitions; queues are split where there are fewer",
    ),
    Option(
        "minRowsPerPartition",
        "20000",
        _parse_whole(1, _COUNT_MAX),
        "queues with fewer messages share a Spark partition until it has so many",
    ),
    Option(
        "failOnDataLoss",
        "true",
        _parse_bool,
        "fail when messages are gone before they were read; false skips them with a warning",
    ),
    Option(
        "profile",
        "default",
        schema.parse_profile,
        "which columns: " + ", ".join(schema.PROFILES),
    ),
    Option(
        "columns",
        None,
        schema.parse_columns,
        "the columns by name, joined by ','; instead of profile",
    ),
    Option("group", None, check_group, "consumer group under which offsets are committed"),
    Option(
        "commitOffsets",
        "false",
        _parse_bool,
        "commit what is safely processed to the brokers under the group, to be seen by monitors; "
        "the checkpoint alone decides where a query goes on",
        ("stream",),
    ),
    Option(
        "pullBatchSize",
        "2048",
        _parse_whole(1, 65_536),
        "messages to ask for in one pull; Apache's broker gives 32 at most by default",
    ),
    Option(
        "requestTimeoutMs", "10000", _parse_whole(1, 3_600_000), "patience for one answer, in ms"
    ),
    Option(
        "fetchRetries",
        "10",
        _parse_whole(0, 1_000_000),
        "further attempts after a request fails in a way that may pass",
    ),
    Option(
        "retryIntervalMs",
        "200",
        _parse_whole(1, 3_600_000),
        "pause before the first further attempt, in ms; it doubles each time, up to 3 s",
    ),
)

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}


def parse_options(options: Mapping[str, str], *, scope: str) -> SourceOptions:
    """Check the options of a read.

    Args:
        options: as Spark hands them over; names in any case.
        scope: "batch" or "stream", or "any" while Spark does not yet say which.

    Raises: ConfigError naming the option, its value and what is allowed.
    """
    given: dict[str, Any] = {}
    for name, text in options.items():
        option = _find_option(name)
        if scope != "any" and scope not in option.scopes:
            (other,) = option.scopes
            raise ConfigError(f"option {option.name!r} is for a {other} read, this is a {scope}")
        given[option.name] = _parse_value(option, text)
    values: dict[str, Any] = {
        option.name: given[option.name]
        if option.name in given
        else (None if option.default is None else _parse_value(option, option.default))
        for option in OPTIONS
    }
    _check_together(given)
    assign: frozenset[MessageQueue] | None = values["assign"]
    topics: tuple[str, ...] = values["topic"] or tuple(
        sorted({queue.topic for queue in assign or ()})
    )
    return SourceOptions(
        name_servers=values["nameServer"],
        topics=topics,
        assign=assign,
        starting_offsets=values["startingOffsets"],
        ending_offsets=values["endingOffsets"],
        max_offsets_per_trigger=values["maxOffsetsPerTrigger"],
        min_partitions=values["minPartitions"],
        min_rows_per_partition=values["minRowsPerPartition"],
        fail_on_data_loss=values["failOnDataLoss"],
        columns=values["columns"] or values["profile"],
        group=values["group"],
        commit_offsets=values["commitOffsets"],
        pull_batch_size=values["pullBatchSize"],
        request_timeout_ms=values["requestTimeoutMs"],
        fetch_retries=values["fetchRetries"],
        retry_interval_ms=values["retryIntervalMs"],
    )


def _find_option(name: str) -> Option:
    option = _BY_LOWER_NAME.get(name.lower())
    if option is not None:
        return option
    near = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_LOWER_NAME[near[0]].name!r}? " if near else ""
    known = ", ".join(each.name for each in OPTIONS)
    raise ConfigError(f"unknown option {name!r}; {hint}The options are {known}")


def _parse_value(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:  # ConfigError is one too
        raise ConfigError(f"option {option.name!r} is {text!r}: {error}") from error


def _check_together(given: Mapping[str, Any]) -> None:
    if "nameServer" not in given:
        raise ConfigError(
            'option \'nameServer\' is missing; write .option("nameServer", "host:9876")'
        )
    if ("topic" in given) == ("assign" in given):
        what = "both are given" if "topic" in given else "neither is given"
        raise ConfigError(f"give either option 'topic' or option 'assign'; {what}")
    if "profile" in given and "columns" in given:
        raise ConfigError("give either option 'profile' or option 'columns', not both")
    if given.get("commitOffsets") and "group" not in given:
        raise ConfigError("option 'commitOffsets' needs option 'group', under which to commit")
