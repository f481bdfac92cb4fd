"""The options of a read: one table, and the frozen values parsed from it.

A row of `OPTIONS` defines an option completely: its name, its scopes, its default, its parser and
its help. Readers keep a `SourceOptions`, which is pickled to the executors and so has plain values
only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparrowmq.client.name_servers import parse_name_servers
from sparrowmq.errors import ConfigError, LocalProtocolError
from sparrowmq.model import MessageQueue, UnreadablePolicy
from sparrowmq.model.names import check_consumer_group, is_system_topic
from sparrowmq.protocol.sql92 import parse_condition
from sparrowmq.protocol.subscription import (
    EXPRESSION_TYPE_SQL92,
    EXPRESSION_TYPE_TAG,
    SUBSCRIBE_ALL,
    find_odd_tag,
    parse_subscription,
)
from sparrowmq.spark import option_table, schema
from sparrowmq.spark.body_schema import parse_schema
from sparrowmq.spark.bounds import GroupChoice, OffsetChoice, StartChoice, TimestampChoice
from sparrowmq.spark.checkpoint_offsets import (
    EARLIEST,
    LATEST,
    parse_offsets,
    parse_queues,
    parse_timestamps,
)
from sparrowmq.spark.connection_options import CONNECTION_OPTIONS, ClusterOptions, take_connection
from sparrowmq.spark.narrowing import ALL, Narrowing
from sparrowmq.spark.option_table import (
    Option,
    parse_bool,
    parse_choice,
    parse_duration_ms,
    parse_given,
    parse_pattern,
    parse_text,
    parse_timestamp_ms,
    parse_topics,
    parse_whole,
    require,
    with_defaults,
)

if TYPE_CHECKING:
    from sparrowmq.spark.body_reader import BodyReader


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ClusterOptions):
    """The options of a read, checked. Each field is the option of the same name.

    Only `narrowing` comes from elsewhere: it is what the conditions of the query leave.
    """

    store_path: str | None
    broker_name: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    assign: frozenset[MessageQueue] | None
    starting: StartChoice
    ending: StartChoice
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_bytes_per_trigger: int | None
    min_partitions: int
    max_records_per_partition: int | None
    min_rows_per_partition: int
    fail_on_data_loss: bool
    unreadable_policy: UnreadablePolicy
    columns: tuple[str, ...]
    body_schema: str | None
    sub_expression: str
    filter_type: str
    group: str | None
    commit_offsets: bool
    pull_batch_size: int
    pull_max_bytes: int | None
    wait_for_brokers_ms: int
    narrowing: Narrowing = ALL

    def __post_init__(self) -> None:
        for name in schema.BODY_COLUMNS:
            if name in self.columns and self.body_schema is None:
                raise ConfigError(f"column {name!r} needs option 'bodySchema'")

    @property
    def bodies(self) -> BodyReader | None:
        """The reader of bodies by `body_schema`."""
        if self.body_schema is None:
            return None
        # What only plans a read needs no PyArrow.
        from sparrowmq.spark.body_reader import body_reader

        return body_reader(self.body_schema)

    @property
    def pull_group(self) -> str | None:
        """The group that pulls; None for the default one.

        A group that is there to begin where it stands, or for dead letters, is left alone: pulls
        would be refused while it consumes by messages, and would keep it from that otherwise.
        """
        is_start = isinstance(self.starting, GroupChoice)
        is_for_letters = self.unreadable_policy is UnreadablePolicy.DEAD_LETTER
        is_left_alone = (is_start or is_for_letters) and not self.commit_offsets
        return None if is_left_alone else self.group

    @property
    def is_filtered(self) -> bool:
        """Whether brokers leave messages out."""
        return self.sub_expression != SUBSCRIBE_ALL

    def matches(self, topic: str) -> bool:
        """Return whether the given `topicPattern` chooses a topic.

        The pattern never chooses RocketMQ's own topics. It chooses retry and dead letter topics
        only if it begins with %.
        """
        pattern = self.topic_pattern
        assert pattern is not None
        is_hidden = is_system_topic(topic) or (topic[:1] == "%" and pattern[:1] != "%")
        return not is_hidden and re.fullmatch(pattern, topic) is not None

    def others_of(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Return the queues that `assign`, `topicPattern` or `topic` does not choose, in order."""
        if self.assign is not None:
            return sorted(set(queues) - self.assign)
        topics = {queue.topic for queue in queues}
        is_read = self.topics.__contains__ if self.topic_pattern is None else self.matches
        others = {topic for topic in topics if not is_read(topic)}
        return sorted(queue for queue in queues if queue.topic in others)

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags to read, None without a tag expression."""
        if not self.is_filtered or self.filter_type != EXPRESSION_TYPE_TAG:
            return None
        return frozenset(parse_subscription("", self.sub_expression, sub_version=0).tags_set)


def _parse_start(text: str) -> StartChoice:
    words: dict[str, StartChoice] = {
        "earliest": OffsetChoice(EARLIEST),
        "latest": OffsetChoice(LATEST),
        "group": GroupChoice(EARLIEST),
        "group-or-latest": GroupChoice(LATEST),
    }
    return _parse_offset_choice(text, words, rest=EARLIEST)


def _parse_end(text: str) -> StartChoice:
    return _parse_offset_choice(text, {"latest": OffsetChoice(LATEST)}, rest=LATEST)


def _parse_offset_choice(text: str, words: Mapping[str, StartChoice], *, rest: int) -> StartChoice:
    word = text.strip().lower()
    if word in words:
        return words[word]
    if not word.startswith("{"):
        listed = ", ".join(words)
        raise ValueError(f'write {listed}, or JSON {{"topic": {{"broker": {{"0": 17}}}}}}')
    return OffsetChoice(rest, parse_offsets(text))


def _parse_timestamps(rest: int) -> Callable[[str], TimestampChoice]:
    return lambda text: TimestampChoice(None, parse_timestamps(text), rest)


def _parse_timestamp(rest: int) -> Callable[[str], TimestampChoice]:
    return lambda text: TimestampChoice(parse_timestamp_ms(text), {}, rest)


def _check_condition(text: str | None) -> None:
    if text is None:
        raise ConfigError("option 'filterType' is 'SQL92', so 'subExpression' must be a condition")
    try:
        parse_condition(text)
    except LocalProtocolError as error:
        raise ConfigError(f"option 'subExpression': {error}") from error


def _parse_filter(text: str) -> str:
    text = text.strip()
    try:
        parse_subscription("", text, sub_version=0)
    except LocalProtocolError as error:
        raise ValueError(str(error)) from error
    return text or SUBSCRIBE_ALL


def _parse_policy(text: str) -> UnreadablePolicy:
    word = parse_choice(("stop", "skip", "dead-letter"))(text)
    return UnreadablePolicy[word.upper().replace("-", "_")]


_COUNT_MAX = 2**63 - 1
_STRATEGY = "startingOffsetsByTimestampStrategy"
_STREAM = (option_table.STREAM,)
_EVERYWHERE = (option_table.BATCH, option_table.STREAM, option_table.STORE)
_BATCHES = (option_table.BATCH, option_table.STORE)
_STORE = (option_table.STORE,)

OPTIONS: tuple[Option, ...] = (
    Option(
        "nameServer",
        None,
        parse_name_servers,
        "the addresses of name servers, host:port joined by ';'; give this or storePath",
    ),
    Option(
        "storePath",
        None,
        parse_text,
        "the directory of a broker's store, ours or Apache's; the read takes its files and asks "
        "no broker; every machine that reads must have the directory",
        _STORE,
    ),
    Option(
        "brokerName",
        "broker-a",
        parse_text,
        "the name of the broker whose store is read, for the column brokerName and for offsets "
        "by queue",
        _STORE,
    ),
    Option(
        "topic",
        None,
        parse_topics,
        "the topics to read, joined by ','; give this, topicPattern or assign",
        _EVERYWHERE,
    ),
    Option(
        "topicPattern",
        None,
        parse_pattern,
        "a regular expression for the whole names of the topics to read; RocketMQ's own topics "
        "never match, retry and dead-letter topics only if the expression begins with %",
        _EVERYWHERE,
    ),
    Option(
        "assign",
        None,
        parse_queues,
        'the queues to read, {"topic": {"broker": [0, 1]}}; give this, topic or topicPattern',
        _EVERYWHERE,
    ),
    Option(
        "startingOffsets",
        None,
        _parse_start,
        "where a read begins: earliest (default of a batch), latest (default of a stream "
        "without a checkpoint), group (the offset that the group has committed, else earliest), "
        'group-or-latest (the same, else latest), or JSON {"topic": {"broker": {"0": 17}}} '
        "with -2 for earliest and -1 for latest; a queue that the JSON does not name begins at "
        "earliest",
        _EVERYWHERE,
    ),
    Option(
        "startingTimestamp",
        None,
        _parse_timestamp(LATEST),
        "the read begins at the first message stored at or after this time, in milliseconds "
        "since 1970 or as ISO 8601; a queue without such a message begins at its end",
        _EVERYWHERE,
    ),
    Option(
        "startingOffsetsByTimestamp",
        None,
        _parse_timestamps(EARLIEST),
        'as startingTimestamp, with a time for each queue: JSON {"topic": {"broker": {"0": '
        "1767225600000}}}; a queue that the JSON does not name begins at earliest",
        _EVERYWHERE,
    ),
    Option(
        _STRATEGY,
        "latest",
        parse_choice(("latest", "error")),
        "what becomes of a queue without a message stored at or after its time: latest begins at "
        "its end, error fails the read",
        _EVERYWHERE,
    ),
    Option(
        "endingOffsets",
        None,
        _parse_end,
        "where a batch ends: latest (default), or JSON as in startingOffsets; a queue that the "
        "JSON does not name ends at latest",
        _BATCHES,
    ),
    Option(
        "endingTimestamp",
        None,
        _parse_timestamp(LATEST),
        "a batch ends before the first message stored at or after this time",
        _BATCHES,
    ),
    Option(
        "endingOffsetsByTimestamp",
        None,
        _parse_timestamps(LATEST),
        "as endingTimestamp, with a time for each queue, as JSON; a queue that the JSON does "
        "not name ends at latest",
        _BATCHES,
    ),
    Option(
        "maxOffsetsPerTrigger",
        None,
        parse_whole(1, _COUNT_MAX),
        "the most messages of one micro-batch, shared among the queues in proportion to what "
        "each holds",
        _STREAM,
    ),
    Option(
        "minOffsetsPerTrigger",
        None,
        parse_whole(1, _COUNT_MAX),
        "the fewest messages of one micro-batch; with fewer, a stream waits until "
        "maxTriggerDelay has passed since the last batch",
        _STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "15m",
        parse_duration_ms,
        "the longest wait for minOffsetsPerTrigger, such as 90s or 15m",
        _STREAM,
    ),
    Option(
        "maxBytesPerTrigger",
        None,
        parse_whole(1, _COUNT_MAX),
        "the approximate size of one micro-batch in bytes, estimated from the next messages of "
        "each queue; a batch has at least one message; with maxOffsetsPerTrigger the smaller "
        "batch is read",
        _STREAM,
    ),
    Option(
        "minPartitions",
        "0",
        parse_whole(0, 100_000),
        "the fewest Spark partitions; queues are split to reach the number",
        _EVERYWHERE,
    ),
    Option(
        "maxRecordsPerPartition",
        None,
        parse_whole(1, _COUNT_MAX),
        "the most messages of one Spark partition; a queue with more is split",
    ),
    Option(
        "minRowsPerPartition",
        "100000",
        parse_whole(1, _COUNT_MAX),
        "the messages with which a Spark partition is full; queues with fewer share a partition",
    ),
    Option(
        "failOnDataLoss",
        "true",
        parse_bool,
        "true fails the read if messages are gone before they were read; false skips them with "
        "a warning",
        _EVERYWHERE,
    ),
    Option(
        "unreadablePolicy",
        "stop",
        _parse_policy,
        "the treatment of a message whose body cannot be read (damaged, compressed by a codec "
        "that is not installed, or larger than 16 MiB once inflated): stop fails the read, skip "
        "leaves the message out with a warning, dead-letter also has the broker put the "
        "message among the dead letters of the group",
        _EVERYWHERE,
    ),
    Option(
        "profile",
        "default",
        schema.parse_profile,
        "the set of columns to read: " + ", ".join(schema.PROFILES),
        _EVERYWHERE,
    ),
    Option(
        "columns",
        None,
        schema.parse_columns,
        "the names of the columns to read, joined by ','; give this or profile",
        _EVERYWHERE,
    ),
    Option(
        "includeHeaders",
        "false",
        parse_bool,
        "add the column headers behind the others, as Spark's source for Kafka does",
        _EVERYWHERE,
    ),
    Option(
        "bodySchema",
        None,
        parse_schema,
        "the schema of JSON bodies: Spark's DDL such as id BIGINT NOT NULL, name STRING, where NOT "
        "NULL makes a field required, or schema.json() of a StructType; adds the columns "
        "bodyFields and bodyError behind the others",
        _EVERYWHERE,
    ),
    Option(
        "subExpression",
        SUBSCRIBE_ALL,
        _parse_filter,
        "the filter of messages: *, tags such as TagA || TagB, or an SQL92 condition",
        _EVERYWHERE,
    ),
    Option(
        "filterType",
        EXPRESSION_TYPE_TAG,
        parse_choice((EXPRESSION_TYPE_TAG, EXPRESSION_TYPE_SQL92)),
        "the language of subExpression: TAG, or SQL92, which Apache's brokers must be "
        "configured for",
        _EVERYWHERE,
    ),
    Option(
        "group",
        None,
        check_consumer_group,
        "the consumer group that pulls messages, and whose committed offsets are read and written; "
        "one that only says where to begin (startingOffsets) or gets dead letters pulls nothing",
    ),
    Option(
        "commitOffsets",
        "false",
        parse_bool,
        "commit the offsets of processed messages to the brokers under the group, for monitors; "
        "the checkpoint alone decides where a query resumes",
        _STREAM,
    ),
    Option(
        "pullBatchSize",
        "8192",
        parse_whole(1, 65_536),
        "the most messages to request in one pull; Apache's brokers return at most 32 by default",
    ),
    Option(
        "pullMaxBytes",
        None,
        parse_whole(1, 2**31 - 1),
        "the most bytes to request in one pull; brokers before 5.1 ignore this limit",
    ),
    Option(
        "requestTimeoutMs",
        "10000",
        parse_whole(1, 3_600_000),
        "the time limit of one request, in ms",
    ),
    Option(
        "waitForBrokers",
        "5m",
        parse_duration_ms,
        "how long a read under way waits for a broker or a name server that does not answer, such "
        "as 90s or 5m; a read that begins waits for brokers alone, a minute at most",
    ),
    *CONNECTION_OPTIONS,
)


def parse_options(options: Mapping[str, str], *, scope: str) -> SourceOptions:
    """Check the options of a read.

    Args:
        options: the options that Spark passes; names in any case.
        scope: "batch" or "stream", or "any" while the scope is not known yet.

    Raises: ConfigError that names the option, its value and the allowed values.
    """
    if scope == option_table.BATCH and "storepath" in map(str.lower, options):
        scope = option_table.STORE
    given = parse_given(OPTIONS, options, scope=scope)
    _check_together(given)
    values = with_defaults(OPTIONS, given)
    assign: frozenset[MessageQueue] | None = values["assign"]
    topics = values.pop("topic") or tuple(sorted({queue.topic for queue in assign or ()}))
    beginning = OffsetChoice(LATEST if scope == option_table.STREAM else EARLIEST)
    starting = _take_choice(values, "starting") or beginning
    must_exist = values.pop("starting_offsets_by_timestamp_strategy") == "error"
    if isinstance(starting, TimestampChoice):
        starting = replace(starting, must_exist=must_exist)
    elif _STRATEGY in given:
        raise ConfigError(
            f"option {_STRATEGY!r} needs option 'startingTimestamp' or "
            f"'startingOffsetsByTimestamp', whose times it is for"
        )
    ending = _take_choice(values, "ending")
    return SourceOptions(
        topics=topics,
        starting=starting,
        ending=ending or OffsetChoice(LATEST),
        columns=_columns(values),
        max_trigger_delay_ms=values.pop("max_trigger_delay"),
        wait_for_brokers_ms=values.pop("wait_for_brokers"),
        **take_connection(values, given),
        **values,
    )


def starting_at(options: Mapping[str, str], offsets: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the same stream with its start resolved to offsets.

    A group that only said where to begin is left out: it pulls nothing (`pull_group`).

    Args:
        offsets: the start, in the form of Spark's checkpoint.

    Raises: ConfigError, as `parse_options`.
    """
    found = parse_options(options, scope=option_table.STREAM)
    needs_group = found.unreadable_policy is UnreadablePolicy.DEAD_LETTER
    keeps_group = needs_group or found.pull_group is not None
    left = {
        name: value
        for name, value in options.items()
        if not name.lower().startswith("starting") and (keeps_group or name.lower() != "group")
    }
    return left | {"startingOffsets": json.dumps(offsets)}


def _columns(values: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns that the options choose, and remove these options."""
    profile, names, has_headers = (
        values.pop(name) for name in ("profile", "columns", "include_headers")
    )
    columns: tuple[str, ...] = names or profile
    added = ["headers"] if has_headers else []
    added += () if values["body_schema"] is None else schema.BODY_COLUMNS
    return (*columns, *(name for name in added if name not in columns))


def _take_choice(values: dict[str, Any], edge: str) -> StartChoice | None:
    """Return the choice of the start or the end, and remove its three options."""
    names = (f"{edge}_offsets", f"{edge}_timestamp", f"{edge}_offsets_by_timestamp")
    found = [values.pop(name) for name in names]
    return next((choice for choice in found if choice is not None), None)


def _check_place(given: Mapping[str, Any]) -> None:
    if "storePath" not in given:
        require(given, "nameServer", "host:9876")
        return
    if given.get("filterType") == EXPRESSION_TYPE_SQL92:
        raise ConfigError("option 'filterType' is 'SQL92', which needs a broker; leave it out")
    if isinstance(given.get("startingOffsets"), GroupChoice):
        raise ConfigError("option 'startingOffsets' is 'group', which needs a broker; leave it out")


def _check_together(given: Mapping[str, Any]) -> None:
    _check_place(given)
    named = [name for name in ("topic", "topicPattern", "assign") if name in given]
    if len(named) != 1:
        what = " and ".join(named) + " are given" if named else "none is given"
        raise ConfigError(f"give one of the options 'topic', 'topicPattern' and 'assign'; {what}")
    for edge in ("starting", "ending"):
        suffixes = ("Offsets", "Timestamp", "OffsetsByTimestamp")
        both = [edge + suffix for suffix in suffixes if edge + suffix in given]
        if len(both) > 1:
            raise ConfigError(f"give only one of the options {' and '.join(map(repr, both))}")
    if "profile" in given and "columns" in given:
        raise ConfigError("give either option 'profile' or option 'columns', not both")
    if given.get("unreadablePolicy") is UnreadablePolicy.DEAD_LETTER and "group" not in given:
        raise ConfigError(
            "option 'unreadablePolicy' is 'dead-letter', which needs a broker and option 'group', "
            "whose dead letters the messages become"
        )
    if given.get("commitOffsets") and "group" not in given:
        raise ConfigError("option 'commitOffsets' needs option 'group', under which to commit")
    if isinstance(given.get("startingOffsets"), GroupChoice) and "group" not in given:
        raise ConfigError("option 'startingOffsets' is 'group', so option 'group' must name one")
    if given.get("filterType") == EXPRESSION_TYPE_SQL92:
        _check_condition(given.get("subExpression"))
    elif (odd := find_odd_tag(given.get("subExpression", SUBSCRIBE_ALL))) is not None:
        raise ConfigError(
            f"option 'subExpression' would name a tag {odd!r}, which no message has; write tags as "
            f"'TagA || TagB', and set option 'filterType' to 'SQL92' for a condition"
        )
    low, high = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"minOffsetsPerTrigger {low} is more than maxOffsetsPerTrigger {high}")
