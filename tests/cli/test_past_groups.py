"""`rebalance doctor --since`: what the live page saw, long after, and without a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from commands import Commands
from group_views import OF_A, QUEUES, view_at
from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.dash.history import FILE_NAME, SAMPLE_MS, History
from sparrowmq.doctor.group_view import GAP_MS, GroupView
from sparrowmq.model import MessageQueue
from sparrowmq.model.spelling import parse_time

CLUSTER = "127.0.0.1:1"
SMQ = Commands(CLUSTER)
Q0, Q1, Q2, Q3 = QUEUES
HALF = {Q0: ("a",), Q1: ("a",), Q2: ("b",), Q3: ("b",)}
MOVING = {Q0: ("a",), Q1: ("a",), Q2: ("b",), Q3: ()}
Looks = Mapping[int, Mapping[MessageQueue, tuple[str, ...]]]


def keep(data: Path, looks: Looks, *, group: str = "G", lag: int = 0) -> int:
    """Keep looks so many milliseconds after a minute ago; return the time of that minute."""
    begun_ms = timestamp_ms() - 60_000
    before: GroupView | None = None
    with closing(History(data / FILE_NAME, CLUSTER)) as history:
        for after_ms, owners in looks.items():
            at_ms = begun_ms + after_ms
            view = view_at(at_ms, owners, before=before, offsets=100 + after_ms, lag=lag)
            history.note(group, view, before)
            before = view
    return begun_ms


def test_a_rebalance_has_its_reason_its_moves_and_its_cost(tmp_path: Path) -> None:
    begun_ms = keep(tmp_path, {0: OF_A, 1_000: MOVING, 1_400: HALF, 9_000: HALF}, lag=12_345)

    (rebalance,) = SMQ.json("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path))[
        "rebalances"
    ]
    shown = SMQ("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path)).stdout

    assert rebalance["timestamp_ms"] == begun_ms + 1_000
    assert rebalance["reason"] == "b joined"
    assert [(m["queue_id"], m["before"], m["after"]) for m in rebalance["moves"]] == [
        (2, ["a"], ["b"]),
        (3, ["a"], ["b"]),
    ]
    assert rebalance["longest_unowned_ms"] == 400
    assert rebalance["settled_ms"] == 1_400
    assert rebalance["perhaps_consumed_twice"] == 12, "what its former owner had in hand"
    assert rebalance["gap_ms"] == 1_000
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0].startswith("G since ")
    assert lines[0].endswith(": 1 rebalance, 2 queues moved")
    assert "moved a → b: broker-a:2, 3" in lines
    assert "no owner: one, any 400 ms, 400 ms" in lines
    assert "one owner each 1.4 s at most" in lines
    assert "several: one, any not seen" in lines
    assert "perhaps twice 12 that former owners had in hand 1 s before" in lines
    assert any(line.startswith("greatest lag 12,345 at ") for line in lines)


def test_times_in_which_nobody_looked_are_named(tmp_path: Path) -> None:
    begun_ms = keep(tmp_path, {-3 * GAP_MS: OF_A, 0: HALF, 20_000: HALF})

    found = SMQ.json(
        "rebalance", "doctor", "G", "--since", f"{begun_ms - 60_000}", "--data", str(tmp_path)
    )

    assert found["watched"] == [
        {"from_timestamp_ms": begun_ms, "until_timestamp_ms": begun_ms + 20_000}
    ]
    assert found["rebalances"] == [], "what changed while nobody looked is no rebalance"
    until_ms = found["until_timestamp_ms"]
    assert found["unwatched_ms"] == until_ms - (begun_ms - 60_000) - 20_000


def test_a_look_that_began_before_the_time_counts_from_it_and_the_last_looks_are_named(
    tmp_path: Path,
) -> None:
    looks = {n * 3 * GAP_MS + after_ms: OF_A for n in range(-5, 0) for after_ms in (0, 5_000)}
    begun_ms = keep(tmp_path, looks)
    since_ms = begun_ms - 15 * GAP_MS + 2_000
    options = ("G", "--since", f"{since_ms}", "--data", str(tmp_path))

    watched = SMQ.json("rebalance", "doctor", *options)["watched"]
    shown = SMQ("rebalance", "doctor", *options).stdout

    assert watched[0] == {
        "from_timestamp_ms": since_ms,
        "until_timestamp_ms": begun_ms - 15 * GAP_MS + 5_000,
    }
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("watched")]
    assert (len(watched), line.count(" – "), line.split()[1]) == (5, 4, "…")


def test_queues_that_several_own_in_the_end_may_cost_more(tmp_path: Path) -> None:
    keep(tmp_path, {0: OF_A, 1_000: {**OF_A, Q3: ("a", "b")}})

    shown = SMQ("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path)).stdout

    assert "perhaps twice 0, and what came later through queues with several owners" in " ".join(
        shown.split()
    )


def test_what_a_killed_member_had_in_hand_is_no_bound(tmp_path: Path) -> None:
    keep(tmp_path, {0: HALF, 20_000: OF_A})

    shown = SMQ("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path)).stdout

    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "one owner each 20 s at most" in lines
    assert "no owner: one, any not seen" in lines
    assert "perhaps twice 12 that former owners had in hand 20 s before" in lines


def test_all_groups_are_told_those_with_rebalances_first(tmp_path: Path) -> None:
    keep(tmp_path, {0: OF_A, 1_000: OF_A}, group="A_calm")
    keep(tmp_path, {0: OF_A, 1_000: HALF}, group="B_moved")

    found = SMQ.json("rebalance", "doctor", "--since", "1h", "--data", str(tmp_path))["groups"]

    assert [each["group"] for each in found] == ["B_moved", "A_calm"]


def test_without_looks_since_then_the_answer_says_so_and_what_keeps_a_history(
    tmp_path: Path,
) -> None:
    keep(tmp_path, {0: OF_A, 1_000: HALF})

    result = SMQ("rebalance", "doctor", "G", "--since", "30s", "--data", str(tmp_path))

    assert result.exit_code == 0
    assert "0 rebalances" in result.stdout
    assert "watched  not once; the last snapshot was at " in result.stdout
    assert "nobody looked since then; the live page keeps a history" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("G", "--data", "missing"), "there is no history at missing/dash.sqlite: no live page"),
        (("GG",), "does not have group GG; did you mean G?"),
        (("G", "--strategy", "AVG"), "--strategy and --fail-on are for a look now"),
        (("G", "--since", "2999-01-01"), "--since 2999-01-01 lies in the future"),
    ],
)
def test_without_a_history_one_error_says_what_to_do(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    keep(tmp_path, {0: OF_A})
    data = () if "--data" in arguments else ("--data", str(tmp_path))
    since = () if "--since" in arguments else ("--since", "1h")

    result = SMQ("rebalance", "doctor", *arguments, *data, *since)

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_history_of_another_cluster_names_it_and_the_command_that_keeps_one(
    tmp_path: Path,
) -> None:
    keep(tmp_path, {0: OF_A})

    result = Commands("other:9876")(
        "rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path)
    )

    assert result.exit_code == 2
    assert f"has {CLUSTER}, not other:9876; `sparrowmq dash -n other:9876" in result.stderr


@pytest.mark.parametrize(
    ("now", "asked", "meant"),
    [
        ("2026-01-31T12:00", "03:00", "2026-01-31T03:00"),
        ("2026-01-31T02:59", "03:00", "2026-01-30T03:00"),
        ("2026-01-31T12:00", "11:59:30", "2026-01-31T11:59:30"),
    ],
)
def test_a_time_of_day_is_the_last_one(now: str, asked: str, meant: str) -> None:
    def ms(text: str) -> int:
        return round(datetime.fromisoformat(text).timestamp() * 1000)

    assert parse_time(asked, now_timestamp_ms=ms(now)) == ms(meant)


@pytest.mark.parametrize(
    ("now", "asked", "meant"),
    [
        # Clocks are set back at 03:00: 02:10 and 02:45 come twice.
        ("2026-10-25T02:10+01:00", "02:30", "2026-10-25T02:30+02:00"),
        ("2026-10-25T02:45+01:00", "02:30", "2026-10-25T02:30+01:00"),
        ("2026-10-25T12:00+01:00", "02:30", "2026-10-25T02:30+01:00"),
        # Clocks are set ahead at 02:00: there is no 02:30.
        ("2026-03-29T03:10+02:00", "02:30", "2026-03-29T01:30+01:00"),
        ("2026-03-29T12:00+02:00", "02:30+01:00", "2026-03-29T02:30+01:00"),
    ],
)
def test_a_time_of_day_is_the_last_one_where_clocks_are_set(
    monkeypatch: pytest.MonkeyPatch, now: str, asked: str, meant: str
) -> None:
    def ms(text: str) -> int:
        return round(datetime.fromisoformat(text).timestamp() * 1000)

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        found = parse_time(asked, now_timestamp_ms=ms(now))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert found == ms(meant)


def test_greatest_lag_is_that_of_the_worst_look_and_not_of_the_last(tmp_path: Path) -> None:
    begun_ms = timestamp_ms() - 60_000
    with closing(History(tmp_path / FILE_NAME, CLUSTER)) as history:
        for after_ms, lag in ((0, 3), (SAMPLE_MS, 9), (2 * SAMPLE_MS, 5)):
            history.note("G", view_at(begun_ms + after_ms, OF_A, lag=lag), None)

    found = SMQ.json("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path))

    assert found["lag_max"] == 9
    assert found["lag_max_timestamp_ms"] == (begun_ms + SAMPLE_MS) // SAMPLE_MS * SAMPLE_MS


def test_a_broadcasting_group_has_no_greatest_lag(tmp_path: Path) -> None:
    with closing(History(tmp_path / FILE_NAME, CLUSTER)) as history:
        history.note("G", view_at(timestamp_ms() - 60_000, OF_A, lag=3, is_broadcasting=True), None)
    past = ("rebalance", "doctor", "G", "--since", "1h", "--data", str(tmp_path))

    found = SMQ.json(*past)

    assert (found["lag_max"], found["lag_max_timestamp_ms"]) == (None, None)
    assert "greatest lag" not in SMQ(*past).stdout
