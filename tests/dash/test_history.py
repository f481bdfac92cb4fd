"""What was seen, kept in a bounded file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from group_views import BEFORE, JOINED, JOINED_OWNERS, OF_A, QUEUES, view_at
from sparrowmq.client.operations.overview import FlowRates
from sparrowmq.dash import history as history_module
from sparrowmq.dash.history import SAMPLE_MS, History, LagSample, RateSample
from sparrowmq.doctor.group_view import GAP_MS, Standing
from sparrowmq.doctor.owner_history import At, OwnerChange, SeenEvent, SeenEventKind
from sparrowmq.errors import ConfigError

Q0, _, Q2, _ = QUEUES
BOTH = {"a": 1, "b": 1}


@pytest.fixture
def history() -> Iterator[History]:
    kept = History(None, "127.0.0.1:9876")
    yield kept
    kept.close()


def test_owners_are_kept_with_the_time_since_when(history: History) -> None:
    history.note("G", BEFORE, None)
    history.note("G", JOINED, BEFORE)

    standings = history.standings("G")
    assert standings[Q0] == Standing(("a",), 1_000, is_exact=False)
    assert standings[Q2] == Standing(("b",), 2_000, is_exact=True)
    assert history.seen("G", since_ms=0) == [
        At(2_000, SeenEvent(SeenEventKind.JOINED, "b")),
        At(2_000, OwnerChange(Q2, ("a",), ("b",), 7, 120, 1_000, is_lost=True)),
        At(2_000, OwnerChange(QUEUES[3], ("a",), (), 5, 120, 1_000, is_lost=True)),
    ]


def test_what_changed_while_nobody_looked_is_no_rebalance(history: History) -> None:
    late_ms = BEFORE.timestamp_ms + GAP_MS + 1
    late = view_at(late_ms, JOINED_OWNERS, before=BEFORE, is_watched=False)
    history.note("G", BEFORE, None)
    history.note("G", late, BEFORE)

    assert history.seen("G", since_ms=0) == []
    assert [(1_000, 1_000), (late.timestamp_ms, late.timestamp_ms)] == history.watched(
        "G", since_ms=0
    )
    standings = history.standings("G")
    assert standings[Q0] == Standing(("a",), 1_000, is_exact=False), "it kept its owner"
    assert standings[Q2] == Standing(("b",), late.timestamp_ms, is_exact=False)


def test_what_changed_while_the_clock_was_set_back_is_no_rebalance(history: History) -> None:
    back = view_at(BEFORE.timestamp_ms - 1, JOINED_OWNERS, before=BEFORE, is_watched=False)
    history.note("G", BEFORE, None)
    history.note("G", back, BEFORE)

    assert history.seen("G", since_ms=0) == []
    assert history.watched("G", since_ms=0) == [(1_000, 1_000), (999, 999)]


def test_rates_are_the_greatest_of_each_bucket_and_none_where_nothing_moved(
    history: History,
) -> None:
    history.note_rates(1_000, {"G": FlowRates(2.0, 1.0), "idle": FlowRates(0.0, 0.0)}, {"T": 5.5})
    history.note_rates(6_000, {"G": FlowRates(1.0, 3.0)}, {"T": 0.0})
    history.note_rates(21_000, {"G": FlowRates(4.0, 0.0)}, {})

    of_group = history.rates("G", is_topic=False, since_ms=0, bucket_ms=10_000)
    of_topic = history.rates("T", is_topic=True, since_ms=0, bucket_ms=10_000)

    assert of_group == [RateSample(0, 2.0, 3.0), RateSample(20_000, 4.0, 0.0)]
    assert of_topic == [RateSample(0, 5.5, 0.0)]
    assert history.rates("idle", is_topic=False, since_ms=0, bucket_ms=10_000) == []
    assert history.rates("T", is_topic=False, since_ms=0, bucket_ms=10_000) == []


def test_of_rates_older_than_an_hour_the_greatest_of_three_minutes_are_kept(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_PRUNE_EVERY", 1)
    begin_ms, rates = 100 * 180_000, {}
    for number in range(180):
        rates[begin_ms + 5_000 * number] = FlowRates(number % 36, 36 - number % 36)
        history.note_rates(begin_ms + 5_000 * number, {"G": list(rates.values())[-1]}, {})
    charts = {
        ms: history.rates("G", is_topic=False, since_ms=0, bucket_ms=ms)
        for ms in (5_000, 180_000, 720_000)
    }

    # Nine minutes of the fifteen become older than an hour, in two steps.
    for now_ms in (begin_ms + 3_600_000 + 185_000, begin_ms + 3_600_000 + 540_000):
        history.note("G", view_at(now_ms, members=BOTH), None)

    def kept(bucket_ms: int) -> list[RateSample]:
        return history.rates("G", is_topic=False, since_ms=0, bucket_ms=bucket_ms)

    assert kept(180_000) == charts[180_000]
    assert kept(720_000) == charts[720_000]
    assert len(charts[5_000]) == 180
    assert [each.at_ms for each in kept(5_000)] == [
        *(begin_ms + 180_000 * number for number in range(3)),
        *(begin_ms + 540_000 + 5_000 * number for number in range(72)),
    ]
    history.note("G", view_at(begin_ms + 8 * 86_400_000, members=BOTH), None)
    assert kept(5_000) == []


def test_the_file_outlives_the_process_and_tells_clusters_and_groups_apart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "dash.sqlite"
    first = History(path, "one:9876")
    first.note("G", BEFORE, None)
    first.close()

    again, other = History(path, "one:9876"), History(path, "two:9876")

    assert len(again.standings("G")) == 4
    assert again.standings("H") == {}
    assert other.standings("G") == {}
    again.close()
    other.close()


def test_lag_is_sampled_and_the_worst_of_a_bucket_is_shown(history: History) -> None:
    views = [
        view_at(ms, {**OF_A, Q0: ()} if n else OF_A, lag=lag)
        for ms, lag, n in [
            (0, 5, 0),
            (SAMPLE_MS - 1, 99, 0),
            (SAMPLE_MS, 7, 1),
            (3 * SAMPLE_MS, 1, 0),
        ]
    ]
    for before, view in zip([None, *views], views, strict=False):
        history.note("G", view, before)

    found = history.samples("G", since_ms=0, bucket_ms=2 * SAMPLE_MS)

    assert found == [LagSample(0, 7, 1, 0, 1), LagSample(2 * SAMPLE_MS, 1, 0, 0, 1)]


def test_members_keep_their_number_and_a_number_is_free_again_after_an_hour(
    history: History,
) -> None:
    def note(at_ms: int, *ids: str) -> dict[str, int]:
        view = view_at(at_ms, members=dict.fromkeys(ids, 1))
        history.note("G", view, None)
        return history.numbers("G")

    assert note(1_000, "a", "b") == {"a": 0, "b": 1}
    assert note(2_000, "b", "c") == {"a": 0, "b": 1, "c": 2}
    assert note(3_602_000, "b", "c", "d") == {"b": 1, "c": 2, "d": 0}


def test_rows_are_bounded_the_oldest_go(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "ROWS_MAX", 10)
    monkeypatch.setattr(history_module, "_PRUNE_EVERY", 2)
    before = None
    for number in range(60):
        owner = "ab"[number % 2]
        view = view_at(1_000 * number, {Q0: (owner,)}, before=before, members=BOTH)
        history.note("G", view, before)
        before = view

    seen = history.seen("G", since_ms=0)
    assert len(seen) <= 10 + 2
    assert seen[-1].timestamp_ms == 59_000
    assert history.standings("G")[Q0].owners == ("b",)


def test_owners_of_queues_that_are_gone_are_forgotten(history: History) -> None:
    history.note("G", before := view_at(1_000, OF_A), None)
    history.note("G", view_at(2_000, dict.fromkeys(QUEUES[:2], ("a",))), before)
    assert list(history.standings("G")) == QUEUES[:2]

    history.note("G", view_at(3_000, {Q0: ("a",)}), None)

    assert list(history.standings("G")) == [Q0]


def test_of_a_group_that_never_rests_the_last_changes_are_read(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "SEEN_MAX", 3)
    before = None
    for number in range(9):
        view = view_at(1_000 * number, {Q0: ("ab"[number % 2],)}, members=BOTH)
        history.note("G", view, before)
        before = view

    assert [at.timestamp_ms for at in history.seen("G", since_ms=0)] == [6_000, 7_000, 8_000]


def test_a_group_that_was_not_seen_for_a_week_is_forgotten(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_PRUNE_EVERY", 1)
    week_ms = 7 * 86_400_000
    history.note("old", BEFORE, None)
    for number in range(2):
        history.note("new", view_at(week_ms + 2_000 + number), None)

    assert history.standings("old") == {}
    assert history.numbers("old") == {}
    assert len(history.standings("new")) == 4


def test_a_file_that_is_none_of_sqlite_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "dash.sqlite"
    path.write_bytes(b"no database at all, and longer than a header of SQLite has to be" * 9)

    with pytest.raises(
        ConfigError, match=r"dash.sqlite cannot be opened: .*; choose another --data"
    ):
        History(path, "one:9876")


def test_a_view_that_cannot_be_kept_raises_and_leaves_the_file_as_it_was(
    history: History,
) -> None:
    history.note("G", BEFORE, None)
    history._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON sample BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )

    with pytest.raises(sqlite3.Error, match="disk full"):
        history.note("G", view_at(1_000 + SAMPLE_MS, JOINED_OWNERS, members=BOTH), BEFORE)

    assert history.seen("G", since_ms=0) == []


def test_lag_is_kept_on_while_the_clock_is_set_back(history: History) -> None:
    for at_ms in (9_000_000, 1_000_000, 1_000_000 + SAMPLE_MS):
        history.note("G", view_at(at_ms, lag=7), None)

    found = history.samples("G", since_ms=0, bucket_ms=1)
    assert [sample.at_ms for sample in found] == [1_000_000, 1_000_000 + SAMPLE_MS, 9_000_000]


def test_times_whose_changes_were_left_out_count_as_unwatched(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "SEEN_MAX", 2)
    before = None
    for at_ms, owners in ((1_000, OF_A), (2_000, JOINED_OWNERS), (3_000, OF_A)):
        view = view_at(at_ms, owners, before=before, members=BOTH)
        history.note("G", view, before)
        before = view

    seen, watched = history.look_back("G", since_ms=0)

    assert [each.timestamp_ms for each in seen] == [3_000, 3_000]
    assert watched == []
