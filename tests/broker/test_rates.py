"""The rates of the last 10 s, minute and 10 minutes."""

from __future__ import annotations

from sparrowmq.broker.rates import Rates


def noted(seconds: int, per_second: int) -> Rates:
    rates = Rates()
    for second in range(seconds + 1):
        rates.note(second * 1000, puts=second * per_second, gets=second * 2 * per_second)
    return rates


def test_nothing_is_known_at_first() -> None:
    rates = Rates()

    assert "0.0 0.0 0.0" == rates.puts_per_second(1_000, puts=9)


def test_each_window_has_its_rate() -> None:
    rates = noted(60, 10)
    for second in range(61, 71):
        rates.note(second * 1000, puts=600 + (second - 60) * 100, gets=1_200)

    assert "100.0 25.0 22.857" == rates.puts_per_second(70_000, puts=1_600)
    assert "0.0 16.667 17.143" == rates.gets_per_second(70_000, gets=1_200)


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    rates = noted(2_000, 5)

    assert "5.0 5.0 5.0" == rates.puts_per_second(2_000_000, puts=10_000)
    assert "0.0 0.0 0.0" == rates.puts_per_second(9_000_000, puts=10_000)


def test_notes_come_once_a_second() -> None:
    rates = Rates()
    for at_ms in range(0, 1_000, 100):
        rates.note(at_ms, puts=at_ms, gets=0)

    assert "1000.0 1000.0 1000.0" == rates.puts_per_second(1_000, puts=1_000)
