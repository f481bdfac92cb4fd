"""Wrong settings are refused where they are made: without Spark, whose start takes seconds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from local_files import LocalFiles
from sparrowmq.cli.main import build_app
from sparrowmq.cli.pipeline import _Options, _print_result
from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.ingest import Batch, IngestSettings, job
from sparrowmq.pipeline.ingest.counts import DATES_MAX, Counts, Gap, count_batch
from sparrowmq.pipeline.ingest.job import IngestResult
from sparrowmq.spark.bounds import OffsetChoice, StartChoice
from sparrowmq.spark.checkpoint_offsets import EARLIEST
from sparrowmq.spark.options import parse_options

SAME_NAMES = {"properties": {"id": {"type": "integer"}, "ID": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "date_column", "words"),
    [
        ("keys STRING", "storeTimestamp", "field 'keys' would clash"),
        (json.dumps(SAME_NAMES), "storeTimestamp", "field 'ID' would clash"),
        ("a DECIMAL(50,0)", "storeTimestamp", r"column 'a' of the schema: decimal\(50,0\) is not"),
        ("a INT, a INT", "storeTimestamp", "column 'a' of the schema is named twice"),
        ("d DATE, m MAP<INT, INT>", "d", "a map in JSON has texts as keys, not 'integer'"),
        ("{", "storeTimestamp", "the schema is not JSON"),
        ("a DATE", "b", "no column 'b' to take the date from"),
        (None, "b", "no column 'b' to take the date from"),
        ("a DECIMAL(5)", "a", "column 'a' has no date: its type is decimal; take one of date"),
        (None, "queueId", "column 'queueId' has no date: its type is int; take one of date"),
    ],
)
def test_wrong_schemas_and_dates(schema: str | None, date_column: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        IngestSettings(
            name_server="127.0.0.1:1",
            topic="flights",
            out="/nowhere",
            schema=schema,
            date_column=date_column,
        )


def test_group_of_dead_letters_that_no_group_can_be() -> None:
    with pytest.raises(ConfigError, match="'a b'"):
        IngestSettings(name_server="a:1", topic="T", out="/nowhere", dlq_group="a b")


@pytest.mark.parametrize("name", ["topic", "Columns", "bodySchema", "nameServer"])
def test_options_that_the_settings_make(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' is the job's own"):
        IngestSettings(name_server="a:1", topic="T", out="/nowhere", options={name: "queueId"})


@pytest.mark.parametrize(
    "option",
    [
        {"startingTimestamp": "2026-03-01"},
        {"startingoffsetsbytimestamp": '{"T": {"b": {"0": 1767225600000}}}'},
        {"StartingOffsets": "group-or-latest"},
    ],
)
def test_an_ingest_begins_where_its_options_say(option: dict[str, str]) -> None:
    def start_of(options: dict[str, str]) -> StartChoice:
        return (
            IngestSettings(
                name_server="a:1", topic="T", out="/nowhere", options={"group": "G", **options}
            )
            .parse_options()
            .starting
        )

    wanted = {"nameServer": "a:1", "topic": "T", "group": "G", **option}

    assert start_of(option) == parse_options(wanted, scope="stream").starting
    assert start_of({}) == OffsetChoice(EARLIEST)


@pytest.mark.parametrize(
    ("arguments", "out", "words"),
    [
        ("backlog --snapshots /nowhere", "/out", "cannot read /nowhere/queues: there is no such"),
        ("balance --snapshot /nowhere", "/out", "cannot read /nowhere/topics: there is no such"),
        ("duplicates --consumed /nowhere", "/out", "cannot read /nowhere: there is no such"),
        ("duplicates --trace nowhere", "/out", "option 'nameServer'"),
        ("balance --generate 9", f"{__file__}/out", f"{__file__} is a file; choose another"),
    ],
)
def test_wrong_paths_of_a_command(arguments: str, out: str, words: str) -> None:
    session = SparkSession.getActiveSession()

    result = CliRunner().invoke(build_app(), ["pipeline", *arguments.split(), "--out", out])

    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert SparkSession.getActiveSession() is session


@pytest.mark.parametrize("left", [None, "", '{"topic": "T", "dateColumn'])
def test_an_ingest_whose_settings_are_gone_or_torn_keeps_its_checkpoint(
    tmp_path: Path, left: str | None
) -> None:
    for name in ("checkpoint/offsets/0", "counts/0.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    if left is not None:
        (tmp_path / "ingest.json").write_text(left)
    settings = IngestSettings(name_server="127.0.0.1:1", topic="T", out=str(tmp_path))
    files: Any = LocalFiles()

    with pytest.raises(ConfigError, match=f"{tmp_path}/ingest.json is gone, so this run would"):
        job._claim(files, settings, None)

    assert (tmp_path / "checkpoint/offsets/0").exists()


def result_of(counts: Counts, *batches: Batch, batch_count: int = 0, **more: Any) -> IngestResult:
    values: dict[str, Any] = {"name_server": "127.0.0.1:1", "topic": "T", "out": "out", **more}
    return IngestResult(
        settings=IngestSettings(**values),
        batches=batches,
        batch_count=batch_count,
        counts=counts,
        is_filtered=False,
        files=0,
        size=0,
        compaction=None,
    )


def test_the_page_of_a_long_run_says_which_batches_it_leaves_out() -> None:
    batches = [Batch(number, 5, 0, 0.5) for number in range(2_000, 2_003)]
    counts = Counts(offsets=10_015, rows=10_015)

    text = ingest.render(result_of(counts, *batches, batch_count=2_003))
    whole = ingest.render(result_of(counts, *batches, batch_count=3))

    assert "2,003" in text
    assert "Earlier batches are not shown, and are not in the speed: 2,000." in text
    assert "Earlier batches" not in whole


def test_the_page_shows_the_newest_dates_and_gaps_and_the_longest_batch() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    dates = [f"{first + timedelta(days=number):%Y-%m-%d}" for number in range(70)]
    gaps = [Gap(number, "T", "b", 0, 7_000 + number, 9_000, 8) for number in range(25)]
    counts = Counts(offsets=200, rows=140, by_date=dict.fromkeys(dates, 2), gaps=gaps, gap_count=25)
    batches = Batch(0, 10, 1, 1.5), Batch(1, 30, 0, 0.5)

    text = ingest.render(result_of(counts, *batches, batch_count=2))
    filtered = ingest.render(replace(result_of(counts), is_filtered=True))

    shown = re.findall(r"2026-\d\d-\d\d", text)
    assert sorted(set(shown)) == dates[10:]
    assert "Earlier dates are not shown: 10." in text
    places = re.findall(r"7,0\d\d", text)
    assert places == [f"7,0{number:02d}" for number in range(24, 4, -1)]
    assert "25 queues not whole" in text
    assert "20 messages/s" in text
    assert "The longest was batch 0: 10 messages in 1.5 s." in text
    assert "Queues that did not come whole" not in filtered


def test_the_dates_of_a_table_are_counted_together_beyond_a_number() -> None:
    dates = [f"{number:07d}-01-01" for number in range(DATES_MAX + 5)]
    before = Counts(by_date={**dict.fromkeys(dates, 2), "unknown": 1})

    counts = count_batch(None, None, 1, before, {})
    again = count_batch(None, None, 2, replace(counts, by_date={**counts.by_date, "0": 1}), {})

    assert counts.by_date["other dates"] == 2 * 6
    assert sorted(counts.by_date)[0] == dates[6]
    assert sum(again.by_date.values()) == sum(before.by_date.values()) + 1
    assert len(again.by_date) <= DATES_MAX + 1


def test_the_page_says_that_dead_letters_are_assumed_where_counts_were_lost() -> None:
    counts = Counts(offsets=10, rows=9, put_aside=1)
    lost = replace(counts, has_assumed_letters=True)
    gap = Gap(3, "T", "b", 0, 0, 9, 8)

    known, assumed, missing = (
        ingest.render(result_of(each, dlq_group="GID", schema="n INT"))
        for each in (counts, lost, replace(lost, gap_count=1, gaps=[gap]))
    )

    every = "Every message that was read is in the table or put aside, once."
    assert every in known
    assert every not in assumed
    assert "each offset without a row counts as a dead letter" in assumed
    assert "1 queue not whole" in missing


def test_no_secret_shows_in_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"accessKey": "me", "SecretKey": "hush-1", "securityToken": "hush-2"}
    result = result_of(Counts(), options=options)

    _print_result(ingest, result, _Options(as_json=True))

    printed = json.loads(capsys.readouterr().out)
    hidden = {"accessKey": "me", "SecretKey": "***", "securityToken": "***"}
    assert printed["settings"]["options"] == hidden
    assert "hush" not in repr(result)
