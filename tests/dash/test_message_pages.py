"""What the pages of messages read, of brokers without sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from browsing import NOON_MS, Broker, OneByOne, times_of
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.browse import PULL_COUNT, Start
from sparrowmq.dash import message_pages
from sparrowmq.dash.message_pages import (
    COUNT,
    SEARCHED_MAX,
    find_message,
    read_messages,
    show_message,
    show_messages,
    text_filter,
)
from sparrowmq.dash.web import View
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.words.catalog import Words

DIRECTORY = make_directory("ns:1", timeout_ms=1_000)


def watching(play: OneByOne) -> Any:
    return SimpleNamespace(driver=play, directory=DIRECTORY)


async def test_a_page_from_a_time_on_has_the_first_messages_of_all_queues() -> None:
    # Two answers of one queue would fill the page; the last queue has the oldest messages.
    count = 3 * PULL_COUNT
    broker = Broker(
        *([NOON_MS + 3 * number + place for number in range(count)] for place in (2, 1, 0)),
        # Their last messages are older.
        *[[NOON_MS - 1]] * COUNT,
    )
    play = OneByOne(broker)

    read = await read_messages(watching(play), "T", Start(timestamp_ms=NOON_MS), ())

    assert (times_of(read.messages), read.rest) == ([*range(COUNT)], ())
    pulls = [request for _, request in play.requests if request.code == RequestCode.PULL_MESSAGE]
    assert len(pulls) < COUNT + 3 * 3


async def test_a_page_has_the_newest_messages_though_one_of_many_queues_has_them_all() -> None:
    idle = [[NOON_MS - number, NOON_MS] for number in range(40)]
    watcher = watching(OneByOne(Broker(*idle, range(NOON_MS + 1, NOON_MS + 101))))
    watcher.seen_topics = [SimpleNamespace(topic="T", queue_count=41, is_internal=False)]
    visit: Any = SimpleNamespace(query={"topic": "T"}, words=Words("en"))

    view = await show_messages(watcher, visit)

    stored_ms = [row[0].value for row in view.tables[0].rows]
    assert stored_ms == [NOON_MS + 100 - number for number in range(COUNT)]
    assert view.problems == []


async def test_a_tag_is_searched_for_behind_many_other_messages() -> None:
    broker = Broker(range(NOON_MS, NOON_MS + 300))
    broker.tags = {3: "rare", 4: "rare"}
    watcher = watching(OneByOne(broker))
    watcher.seen_topics = [SimpleNamespace(topic="T", queue_count=1, is_internal=False)]
    visit: Any = SimpleNamespace(query={"topic": "T", "tag": "rare"}, words=Words("en"))

    view = await show_messages(watcher, visit)

    assert [row[2].value for row in view.tables[0].rows] == [4, 3]
    assert view.context["searched"] == SEARCHED_MAX


@pytest.mark.parametrize(("name", "limit"), [("SEARCHED_MAX", 3), ("_READ_TIMEOUT_MS", 0)])
async def test_a_search_that_has_stopped_before_its_end_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(message_pages, name, limit)
    watcher = watching(OneByOne(Broker(range(NOON_MS, NOON_MS + 300))))

    read = await read_messages(watcher, "T", Start(is_earliest=True), (), text="nowhere")

    assert read.messages == []
    assert [queue for queue, _ in read.rest] == [MessageQueue("T", "a", 0)]


async def test_a_search_that_has_stopped_goes_on_where_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Queue 0 ends before the stop.
    broker = Broker(range(NOON_MS, NOON_MS + 20), *[range(NOON_MS, NOON_MS + 100)] * 2)
    monkeypatch.setattr(message_pages, "SEARCHED_MAX", 3 * PULL_COUNT)
    anywhere = Start(is_earliest=True)

    first = await read_messages(watching(OneByOne(broker)), "T", anywhere, (), count=400)
    read = [*first.messages]
    monkeypatch.undo()
    for queue, offset in first.rest:
        place, watcher = (queue.broker_name, queue.queue_id), watching(OneByOne(broker))
        rest = await read_messages(watcher, "T", anywhere, [place], offset=offset, count=400)
        assert rest.rest == ()
        read += rest.messages

    assert 20 < len(first.messages) < 220
    assert sorted(queue.queue_id for queue, _ in first.rest) == [1, 2]
    assert sorted((m.queue_id, m.queue_offset) for m in read) == [
        (queue_id, offset)
        for queue_id, count in enumerate((20, 100, 100))
        for offset in range(count)
    ]


async def test_a_page_of_a_message_that_has_expired_shows_no_other_one() -> None:
    watcher = watching(OneByOne(Broker(range(9), begin=5)))
    place = {"topic": "T", "broker": "a", "queue": "0", "offset": "5"}

    assert (await find_message(watcher, place)).queue_offset == 5
    with pytest.raises(UsageError, match="there is no message 3 in a:0 of T: it has gone"):
        await find_message(watcher, {**place, "offset": "3"})


async def test_a_group_is_done_with_a_message_once_its_offset_is_behind_it() -> None:
    broker = Broker(range(9), range(9))
    broker.committed = {("at", 0): 5, ("at", 1): 9, ("behind", 0): 6, ("elsewhere", 1): 9}
    watcher = watching(OneByOne(broker))
    groups = ("at", "behind", "elsewhere", "looked at")
    watcher.seen_topics = [SimpleNamespace(topic="T", groups=groups)]
    progress = [
        SimpleNamespace(queue=MessageQueue("T", "a", queue_id), committed_offset=offset)
        for queue_id, offset in ((1, 9), (0, 5), (1, 9))
    ]
    view = SimpleNamespace(snapshot=SimpleNamespace(last=SimpleNamespace(progress=progress)))
    watcher.groups = {"looked at": SimpleNamespace(view=view), "new": SimpleNamespace(view=None)}
    place = {"topic": "T", "broker": "a", "queue": "0", "offset": "5"}
    request = SimpleNamespace(path_params=place)
    visit: Any = SimpleNamespace(request=request, query={}, words=Words("en"))

    shown = await show_message(watcher, visit)

    assert isinstance(shown, View)
    consumers = shown.tables[2]
    assert [tuple(cell.value for cell in row) for row in consumers.rows] == [
        ("at", "no", 5),
        ("behind", "yes", 6),
        ("looked at", "no", 5),
    ]


def test_a_text_is_looked_for_in_what_a_user_has_written() -> None:
    message = MessageExt(
        topic="T",
        body=b'{"city": "\\u5317\\u4eac", "n": 7}',
        properties={
            "KEYS": "order-1 k2",
            "TAGS": "paid",
            "UNIQ_KEY": "A1B2",
            "WAIT": "yes",
            "p": "v",
        },
        broker_name="a",
        queue_id=0,
        queue_offset=0,
        commit_log_position=0,
    )
    texts = ("city", " 北京 ", "order", "k2", "pai", "v", "A1B2", "", "A1B", "yes", "p2", "城")

    assert [text_filter(text)(message) for text in texts] == [True] * 8 + [False] * 4
