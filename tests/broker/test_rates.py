"""The rates of the last 10 s, minute and 10 minutes."""

from __future__ import annotations

from sparrowmq.broker.rates import Added, Rates, TotalsByKey


def noted(seconds: int, per_second: int) -> Rates:
    rates = Rates()
    for second in range(seconds + 1):
        rates.note(second * 1000, puts=second * per_second, gets=second * 2 * per_second)
    return rates


def test_nothing_is_known_at_first() -> None:
    rates = Rates()

    assert rates.puts_per_second(1_000, puts=9) == "0.0 0.0 0.0"


def test_each_window_has_its_rate() -> None:
    rates = noted(60, 10)
    for second in range(61, 71):
        rates.note(second * 1000, puts=600 + (second - 60) * 100, gets=1_200)

    assert rates.puts_per_second(70_000, puts=1_600) == "100.0 25.0 22.857"
    assert rates.gets_per_second(70_000, gets=1_200) == "0.0 16.667 17.143"


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    rates = noted(2_000, 5)

    assert rates.puts_per_second(2_000_000, puts=10_000) == "5.0 5.0 5.0"
    assert rates.puts_per_second(9_000_000, puts=10_000) == "0.0 0.0 0.0"


def test_notes_come_once_a_second() -> None:
    rates = Rates()
    for at_ms in range(0, 1_000, 100):
        rates.note(at_ms, puts=at_ms, gets=0)

    assert rates.puts_per_second(1_000, puts=1_000) == "1000.0 1000.0 1000.0"


def test_what_was_added_to_each_key_within_a_minute_an_hour_and_a_day() -> None:
    history = TotalsByKey()
    totals: dict[str, int] = {}
    # Ten a second for two hours, and another thing since the last half minute.
    for now_s in range(0, 7_201, 10):
        totals["steady"] = now_s * 10
        if now_s >= 7_190:
            totals["late"] = 5
        history.note(now_s * 1000, lambda: dict(totals))

    now_ms = 7_205_000
    assert history.added(now_ms, "steady", 72_050) == (
        Added(550, 10.0),
        Added(30_050, 10.0),
        Added(72_050, 10.0),
    )
    assert [added.amount for added in history.added(now_ms, "late", 12)] == [12, 12, 12]
    # Offsets that were reset.
    assert history.added(now_ms, "steady", 0) == (Added(0, 0.0),) * 3


def test_totals_are_asked_for_only_when_they_are_due() -> None:
    history = TotalsByKey()
    asked: list[int] = []

    def totals() -> dict[str, int]:
        asked.append(now_ms)
        return {}

    for now_ms in range(0, 60_000, 100):
        history.note(now_ms, totals)

    assert asked == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
