from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.spark import option_table
from sparrowmq.spark.bounds import OffsetChoice, TimestampChoice
from sparrowmq.spark.checkpoint_offsets import EARLIEST, LATEST
from sparrowmq.spark.options import OPTIONS, parse_options, starting_at
from sparrowmq.spark.schema import (
    COLUMNS,
    PROFILES,
    check_declared,
    columns_ddl,
    parse_columns,
)

GOOD = {"nameServer": "127.0.0.1:9876", "topic": "flights"}


def error_of(options: dict[str, str], scope: str = "batch") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_options(options, scope=scope)
    return str(caught.value)


def test_names_are_compared_without_case() -> None:
    lowered = {name.lower(): text for name, text in GOOD.items()}

    assert parse_options(GOOD, scope="batch") == parse_options(lowered, scope="batch")


def test_defaults() -> None:
    options = parse_options(GOOD, scope="stream")

    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.topics == ("flights",)
    assert PROFILES["default"] == options.columns
    assert options.starting == OffsetChoice(LATEST)
    assert parse_options(GOOD, scope="batch").starting == OffsetChoice(EARLIEST)
    assert options.ending == OffsetChoice(LATEST)
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None


def test_lists_and_json_are_parsed() -> None:
    options = parse_options(
        {
            "nameserver": "a:1;b:2",
            "topic": "T, U,T",
            "startingOffsets": '{"T": {"b": {"3": 7}}}',
            "columns": "BODY, queueid",
        },
        scope="batch",
    )

    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("T", "U")
    assert options.starting == OffsetChoice(EARLIEST, {MessageQueue("T", "b", 3): 7})
    assert options.columns == ("body", "queueId")


def test_assign_names_the_topics() -> None:
    options = parse_options(
        {"nameServer": "a:1", "assign": '{"U": {"b": [0]}, "T": {"b": [1]}}'}, scope="batch"
    )

    assert options.topics == ("T", "U")
    assert frozenset({MessageQueue("U", "b", 0), MessageQueue("T", "b", 1)}) == options.assign


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nameSever": "a:1"}, "unknown option 'nameSever'; did you mean nameServer?"),
        ({"maxoffsetpertrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"zzz": "1"}, "the options are nameServer, storePath"),
        (
            {"nameServer": "nowhere"},
            "option 'nameServer' is 'nowhere': name_server 'nowhere' is not an address",
        ),
        ({"nameServer": " ; "}, "name_server is empty"),
        ({"topic": " , "}, "no topic is named"),
        ({"topic": "a b"}, "option 'topic' is 'a b'"),
        ({"assign": '{"T": {"b": [0]}}'}, "topic and assign are given"),
        ({"startingOffsets": "yesterday"}, "write earliest, latest, group"),
        ({"startingOffsets": "{1}"}, "is not JSON"),
        ({"endingOffsets": "earliest"}, "write latest"),
        ({"minPartitions": "many"}, "write a whole number from 0 to 100000"),
        ({"pullBatchSize": "0"}, "it must be from 1"),
        ({"failOnDataLoss": "1"}, "write true or false"),
        ({"unreadablePolicy": "drop"}, "write stop or skip or dead-letter"),
        ({"unreadablePolicy": "dead-letter"}, "needs a broker and option 'group'"),
        ({"profile": "wide"}, "choose one of minimal, default, full, kafka"),
        ({"columns": "boddy"}, "did you mean body?"),
        ({"columns": "body,body"}, "named twice"),
        ({"columns": "body", "profile": "full"}, "not both"),
        ({"group": "a b"}, "option 'group'"),
        ({"topicPattern": "a"}, "topic and topicPattern are given"),
        ({"startingOffsets": "group"}, "so option 'group' must name one"),
        ({"startingTimestamp": "noon"}, "write milliseconds since 1970, or a time such as"),
        (
            {"startingTimestamp": "0", "startingOffsets": "latest"},
            "only one of the options 'startingOffsets' and 'startingTimestamp'",
        ),
        ({"startingOffsetsByTimestamp": '{"T": {"b": {"0": -1}}}'}, "milliseconds since 1970"),
        (
            {"startingOffsetsByTimestamp": '{"T": {"b": {"0": 1767225600}}}'},
            "queue T/b/0 is 1767225600: milliseconds since 1970 are needed, and this looks like "
            "seconds; write 1767225600000 if it is",
        ),
        ({"startingTimestamp": "1767225600"}, "looks like seconds; write 1767225600000"),
        ({"startingTimestamp": "9" * 400}, "write milliseconds since 1970, or a time"),
        ({"endingTimestamp": "1767225600000000"}, "microseconds; write 1767225600000"),
        (
            {"startingOffsetsByTimestampStrategy": "error"},
            "needs option 'startingTimestamp' or 'startingOffsetsByTimestamp'",
        ),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "write latest or error"),
        ({"bodySchema": "id BIGINT, name"}, "'bodySchema' is 'id BIGINT, name': the schema is not"),
        ({"bodySchema": "id BIGINTT"}, "type 'bigintt' cannot be read in JSON"),
        ({"columns": "bodyError"}, "column 'bodyError' needs option 'bodySchema'"),
        ({"bodySchema": '{"type": "array"}'}, "is not the JSON of a Spark schema"),
        ({"subExpression": "||"}, "names no tag"),
        ({"filterType": "SQL93"}, "write TAG or SQL92"),
        ({"filterType": "SQL92", "subExpression": "a >"}, "wrong at character 4, the end"),
        ({"filterType": "sql92"}, "'subExpression' must be a condition"),
        ({"accessKey": "a"}, "both options 'accessKey' and 'secretKey'"),
        ({"securityToken": "t"}, "'securityToken' needs options 'accessKey' and 'secretKey'"),
        ({"maxOffsetsPerTrigger": "5"}, "is for a stream; this is a batch"),
    ],
)
def test_wrong_option_is_one_clear_error(change: dict[str, str], words: str) -> None:
    assert words in error_of({**GOOD, **change})


@pytest.mark.parametrize(
    "name", [option.name for option in OPTIONS if option_table.STORE not in option.applies_to]
)
def test_no_option_is_given_with_a_store_directory_and_ignored(name: str) -> None:
    told = error_of({"storePath": "/data", "topic": "T", name: "1"})

    assert told.startswith(f"option {name!r} is for a ")
    assert told.endswith("this is a batch from option 'storePath'")


def test_options_of_a_store_directory_alone_are_refused_for_brokers() -> None:
    assert "is for a batch from option 'storePath'" in error_of({**GOOD, "brokerName": "b"})
    assert "this is a stream" in error_of({"storePath": "/data", "topic": "T"}, "stream")
    with_group = {"storePath": "/data", "topic": "T", "startingOffsets": "group"}
    assert "'group', which needs a broker" in error_of(with_group)


def test_a_pattern_matches_whole_names_and_no_hidden_ones() -> None:
    def chosen(pattern: str) -> list[str]:
        options = parse_options({"nameServer": "a:1", "topicPattern": pattern}, scope="batch")
        names = ["orders", "my-orders", "%RETRY%orders", "RMQ_SYS_TRACE_TOPIC"]
        return [name for name in names if options.matches(name)]

    assert chosen("orders") == ["orders"]
    assert chosen(".*") == ["orders", "my-orders"]
    assert chosen("%.*") == ["%RETRY%orders"]


def test_a_pattern_that_is_none_is_refused() -> None:
    assert "not a regular expression" in error_of({"nameServer": "a:1", "topicPattern": "("})


def test_limits_of_a_stream_go_together() -> None:
    crossed = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}

    assert "6 is more than maxOffsetsPerTrigger 5" in error_of({**GOOD, **crossed}, "stream")
    assert "such as 15m" in error_of({**GOOD, "maxTriggerDelay": "5 weeks"}, "stream")
    assert (
        parse_options({**GOOD, "maxTriggerDelay": "90s"}, scope="stream").max_trigger_delay_ms
        == 90_000
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("subscribe", "'subscribe' is Kafka's; it is 'topic' here"),
        ("subscribepattern", "'subscribePattern' is Kafka's; it is 'topicPattern' here"),
        ("kafka.bootstrap.servers", "it is 'nameServer' here"),
        ("groupIdPrefix", "leave it out: a read joins no group"),
    ],
)
def test_kafkas_names_are_answered_with_ours(name: str, words: str) -> None:
    assert words in error_of({"nameServer": "a:1", name: "x"})


def test_headers_are_one_more_column() -> None:
    def columns_of(**given: str) -> tuple[str, ...]:
        return parse_options({**GOOD, **given}, scope="batch").columns

    kafka = (*PROFILES["kafka"], "headers")
    assert kafka == columns_of(profile="kafka", includeHeaders="true")
    assert PROFILES["kafka"] == columns_of(profile="kafka", includeHeaders="false")
    assert columns_of(columns="headers,body", includeHeaders="true") == ("headers", "body")


@pytest.fixture
def zone_of_shanghai() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone_of_shanghai")
def test_times_are_milliseconds_or_iso_in_utc() -> None:
    def parse(text: str) -> object:
        return parse_options({**GOOD, "startingTimestamp": text}, scope="batch").starting

    expected = TimestampChoice(1_767_225_600_000, {}, LATEST)
    for text in ("1767225600000", "2026-01-01T00:00:00Z", "2026-01-01", "2026-01-01T01:00+01:00"):
        assert parse(text) == expected, text
    # A product of floats would be just below the whole number.
    assert parse("2004-09-15T20:07:58.735Z") == TimestampChoice(1_095_278_878_735, {}, LATEST)
    assert parse("2025-12-31T23:59:59.999001Z") == expected


def test_secrets_show_in_no_text() -> None:
    options = parse_options({**GOOD, "accessKey": "me", "secretKey": "hush"}, scope="batch")

    assert "hush" not in repr(options)
    assert options.credentials is not None
    assert options.credentials.secret_key == "hush"
    assert "'secretKey': it is empty" in error_of({**GOOD, "secretKey": " "})


def test_what_is_required_is_named() -> None:
    assert "option 'nameServer' is missing" in error_of({"topic": "T"})
    assert "none is given" in error_of({"nameServer": "a:1"})
    assert "needs option 'group'" in error_of({**GOOD, "commitOffsets": "true"}, "stream")


def test_every_row_of_the_table_is_complete() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.help for option in OPTIONS)
    for option in OPTIONS:
        if option.default is not None:
            option.parse(option.default)


def test_profiles_name_columns_that_exist() -> None:
    for names in PROFILES.values():
        assert names == parse_columns(",".join(names))


def test_ddl_quotes_the_names() -> None:
    ddl = columns_ddl(("queueId", "bodyFields"), "struct<n:int>")

    assert ddl == "`queueId` int, `bodyFields` struct<n:int>"


def test_times_have_a_zone_whatever_the_session_takes_a_timestamp_for() -> None:
    names = PROFILES["default"]

    types = re.findall("`(.*?)` ([^,]*(?:<.*?>)?)", columns_ddl(names, ""))

    assert [name for name, _ in types] == list(names)
    assert {"bornTimestamp", "storeTimestamp"} == {
        name for name, kind in types if kind == "timestamp_ltz"
    }
    assert "timestamp" not in dict(types).values()
    with pytest.raises(ConfigError, match="write `storeTimestamp` timestamp_ltz"):
        check_declared({"storeTimestamp": "timestamp_ntz"}, "")


def test_columns_are_named_once() -> None:
    assert len({column.name.lower() for column in COLUMNS}) == len(COLUMNS)


def test_the_reference_describes_every_option_and_column() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark-source.md"
    rows = [line.replace("\\|", "|") for line in page.read_text().splitlines()]

    for option in OPTIONS:
        default = "–" if option.default is None else f"`{option.default}`"
        applies_to = ", ".join(option.applies_to)
        assert f"| `{option.name}` | {applies_to} | {default} | {option.help} |" in rows
    for column in COLUMNS:
        assert f"| `{column.name}` | `{column.ddl}` | {column.help} |" in rows
    for name, columns in PROFILES.items():
        assert f"| `{name}` | {', '.join(columns)} |" in rows


@pytest.mark.parametrize(
    ("more", "keeps_group"),
    [
        ({}, False),
        ({"commitOffsets": "true"}, True),
        ({"unreadablePolicy": "dead-letter"}, True),
    ],
)
def test_a_start_resolved_to_offsets_keeps_a_group_that_does_more_than_start(
    more: dict[str, str], keeps_group: bool
) -> None:
    given = {**GOOD, **more, "Group": "GID_a", "startingoffsets": "group"}
    offsets = {"flights": {"broker-a": {"0": 17}}}

    found = starting_at(given, offsets)

    assert parse_options(found, scope="stream").starting == OffsetChoice(
        EARLIEST, {MessageQueue("flights", "broker-a", 0): 17}
    )
    assert ("Group" in found) == keeps_group


_FIELD = '{"type": "struct", "fields": [{"name": %s, "type": %s}]}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topicPattern": "a{100000000000}"}, "the repetition number is too large"),
        ({"topicPattern": "(" * 5_000 + ")" * 5_000}, "10,000 characters, which are nested too"),
        ({"assign": "[" * 100_000}, "nested too deeply"),
        ({"startingOffsets": '{"a":' * 100_000}, "nested too deeply"),
        ({"bodySchema": _FIELD % (5, '"integer"')}, "is not the JSON of a Spark schema"),
        ({"bodySchema": "a " + "array<" * 5_000 + "int" + ">" * 5_000}, "nested too deeply"),
        ({"bodySchema": _FIELD % ('"a"', '{"type":' * 100_000)}, "nested too deeply"),
    ],
)
def test_absurd_values_are_refused_as_others_are(options: dict[str, str], words: str) -> None:
    if "topicPattern" not in options and "assign" not in options:
        options = {**options, "topic": "T"}

    assert words in error_of({"nameServer": "127.0.0.1:9876", **options})
