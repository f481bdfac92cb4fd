"""A topic is read without a group: from where, and what of several queues comes together."""

from __future__ import annotations

import pytest

from browsing import NOON_MS, Broker, OneByOne, times_of
from play import Play
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.browse import Browser, Start, browse, open_browser, read_since
from sparrowmq.model import MessageExt

DIRECTORY = make_directory("ns:1", timeout_ms=1_000)


def browse_all(play: Play, browser: Browser) -> list[MessageExt]:
    found: list[MessageExt] = []
    while not browser.is_done:
        found += play(browse(DIRECTORY, browser, timeout_ms=1_000)).messages
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_answer_that_comes_while_another_one_is_taken_is_not_left_out(count: int) -> None:
    play = OneByOne(Broker(*([NOON_MS + number] for number in range(count))))
    browser = play(open_browser(DIRECTORY, "T", start=Start(is_earliest=True)))

    assert times_of(browse_all(play, browser)) == [*range(count)]
    assert times_of(play(read_since(DIRECTORY, "T", NOON_MS, count_max=9))) == [*range(count)]


def test_messages_of_another_tag_with_the_same_hash_are_left_out() -> None:
    # The broker gives all.
    play = Play(Broker(range(3)))
    start = Start(is_earliest=True)

    browser = play(open_browser(DIRECTORY, "T", start=start, selection="none"))

    assert browse_all(play, browser) == []


def test_messages_from_before_a_time_are_left_out_until_new_ones_are_followed() -> None:
    broker = Broker([NOON_MS - 9, NOON_MS - 5], [NOON_MS - 7, NOON_MS, NOON_MS + 1])
    play = Play(broker)
    start = Start(timestamp_ms=NOON_MS)
    browser = play(open_browser(DIRECTORY, "T", start=start))

    assert times_of(browse_all(play, browser)) == [0, 1]
    assert times_of(play(read_since(DIRECTORY, "T", NOON_MS, count_max=1))) == [0]
    browser.follow()
    # The clock of a broker may be behind.
    broker.queues = ([*broker.queues[0], NOON_MS - 4], broker.queues[1])
    assert times_of(play(browse(DIRECTORY, browser, timeout_ms=1_000)).messages) == [-4]
