"""Topics, brokers, messages, dead letters, the doctor's list and the simulator, on a cluster."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from group_stage import GroupStage
from live_page import Reader
from poison import send_stored
from sparrowmq import Message, MessageQueue, Producer
from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.client.operations.overview import FlowRates
from sparrowmq.client.operations.producers import list_producers
from sparrowmq.dash import message_pages
from sparrowmq.dash.message_pages import COUNT, Read, describe_body, preview, shorten
from sparrowmq.dash.reset_page import fix_target
from sparrowmq.errors import ConnectFailed, UsageError
from sparrowmq.model.spelling import parse_time
from sparrowmq.testing import EmbeddedCluster
from steps_of_pages import eventually, read_table, words_of
from waiting import wait_until

pytestmark = pytest.mark.slow


async def test_topics_are_listed_with_who_reads_them(reader: Reader, stage: GroupStage) -> None:
    stage.send([b"x"] * 8)
    stage.join("a")

    # Its end is known once the group has committed.
    async def row() -> dict[str, Any] | None:
        found = [r for r in await read_table(reader, "/topics", "topics") if r["end_offsets"]]
        return next((row for row in found if row["topic"] == stage.topic), None)

    shown = await eventually("the topic", row)

    assert (4, 8, stage.group) == (shown["queues"], shown["end_offsets"], shown["groups"])
    (group,) = await read_table(reader, f"/topics/{stage.topic}", "groups")
    assert group["group"] == stage.group
    assert isinstance(group["lag"], int)
    plain = [row["topic"] for row in await read_table(reader, "/topics", "topics")]
    every = [row["topic"] for row in await read_table(reader, "/topics?internal=yes", "topics")]
    assert "TBW102" not in plain
    assert "TBW102" in every


async def test_a_topic_shows_its_queues_readers_and_places(
    reader: Reader, stage: GroupStage
) -> None:
    stage.send([b"x"] * 6)
    path = f"/topics/{stage.topic}"

    queues = await read_table(reader, path, "queues")
    (place,) = await read_table(reader, path, "places")

    assert [row["messages"] for row in queues] == [2, 2, 1, 1]
    assert tuple(place.values())[:4] == ("broker-a", 4, 4, "rw")
    assert "6 messages" in words_of(await reader.read(path))


async def test_a_topic_shows_the_producers_at_its_brokers(
    reader: Reader, stage: GroupStage
) -> None:
    with Producer(
        "GID_sends_here", name_server=reader.site.cluster.name_server, instance_name="sender"
    ) as producer:
        await asyncio.to_thread(producer.send, Message(stage.topic, b"x"))

        async def row() -> dict[str, Any] | None:
            found = await read_table(reader, f"/topics/{stage.topic}", "producers")
            return next((each for each in found if each["group"] == "GID_sends_here"), None)

        shown = await eventually("the producer", row)

    assert shown["client_id"] == producer.client_id
    assert (shown["host"], shown["language"]) == ("127.0.0.1", "PYTHON")
    assert shown["brokers"] == "broker-a"


async def test_views_of_topics_ask_brokers_for_producers_once_in_a_while(
    reader: Reader, cluster: EmbeddedCluster
) -> None:
    brokers = {"broker-a": cluster.broker}

    found = await reader.watcher.producers(brokers)

    assert await reader.watcher.producers(dict(brokers)) is found
    with pytest.raises(ConnectFailed):
        await reader.watcher.producers({"broker-a": "127.0.0.1:1"})


async def test_producers_are_not_none_where_no_broker_answers(reader: Reader) -> None:
    nobody = {"broker-a": "127.0.0.1:1"}
    with pytest.raises(ConnectFailed):
        await reader.watcher.driver.run(list_producers(nobody, timeout_ms=1_000))


async def test_a_topic_and_its_group_show_their_rates_over_time(
    reader: Reader, stage: GroupStage
) -> None:
    history, now_ms = reader.watcher.history, timestamp_ms()
    stage.send([b"x"])
    stage.join("a")
    history.note_rates(
        now_ms - 60_000, {stage.group: FlowRates(20.0, 10.0)}, {stage.topic: 2_500.0}
    )
    history.note_rates(now_ms - 30_000, {stage.group: FlowRates(5.0, 10.0)}, {stage.topic: 50.0})

    topic = await reader.read(f"/topics/{stage.topic}?window=900")
    group = await reader.read(f"/groups/{stage.group}?lang=zh")

    assert "in/s at most 2,500" in words_of(topic)
    assert 'height="100.0%"' in topic
    assert 'height="2.0%"' in topic
    assert "生产 TPS 最高 20" in words_of(group)
    assert "消费 TPS 最高 10" in words_of(group)


async def test_a_topic_that_is_not_there_is_one_line(reader: Reader) -> None:
    assert "nowhere" in words_of(await reader.read("/topics/nowhere", 503))
    assert "a b" in words_of(await reader.read("/topics/a%20b", 400))


async def test_brokers_say_how_they_are(reader: Reader) -> None:
    async def row() -> dict[str, Any] | None:
        found = await read_table(reader, "/brokers", "brokers")
        return found[0] if found else None

    shown = await eventually("the broker", row)

    assert (shown["broker"], shown["failure"]) == ("broker-a", None)
    runtime = {
        row["name"]: row["value"]
        for row in await read_table(reader, "/brokers/broker-a", "runtime")
    }
    settings = [row["name"] for row in await read_table(reader, "/brokers/broker-a", "settings")]
    assert "bootTimestamp" in runtime
    assert "brokerName" in settings
    assert "no broker has the name" in words_of(await reader.read("/brokers/nobody", 400))


async def test_messages_are_browsed_the_newest_first(reader: Reader, stage: GroupStage) -> None:
    stage.send([b"body %d" % number for number in range(COUNT + 10)])

    found = await read_table(reader, f"/messages?topic={stage.topic}", "messages")

    assert [f"body {n}" for n in range(COUNT + 9, 9, -1)] == [row["body"] for row in found]


async def test_messages_are_browsed_from_an_offset_and_from_a_time(
    reader: Reader, stage: GroupStage
) -> None:
    stage.send([b"body %d" % number for number in range(12)])
    at = f"/messages?topic={stage.topic}"

    from_offset = await read_table(reader, f"{at}&queue=broker-a:1&offset=1", "messages")
    from_time = await read_table(reader, f"{at}&from=10m", "messages")
    of_the_future = await read_table(reader, f"{at}&from=2099-01-01", "messages")

    assert [row["body"] for row in from_offset] == ["body 5", "body 9"]
    assert len(from_time) == 12
    assert of_the_future == []


async def test_messages_are_found_by_key_id_and_tag(reader: Reader, stage: GroupStage) -> None:
    stage.send([b"one"], keys=("order-1",), tags="new")
    stage.send([b"two"], keys=("order-2", "order-1"), tags="paid")
    at = f"/messages?topic={stage.topic}"

    by_key = await read_table(reader, f"{at}&key=order-1", "messages")
    by_id = await read_table(reader, f"{at}&key={by_key[0]['id']}", "messages")
    by_tag = await read_table(reader, f"{at}&tag=paid", "messages")
    nothing = words_of(await reader.read(f"{at}&key=order-9"))

    assert [row["body"] for row in by_key] == ["two", "one"]
    assert ["two"] == [row["body"] for row in by_id] == [row["body"] for row in by_tag]
    assert "There is no message." in nothing


async def test_a_search_by_key_keeps_to_the_other_fields(reader: Reader, stage: GroupStage) -> None:
    stage.send([b"0", b"1"], keys=("order-1",), tags="paid")
    stage.send([b"2", b"3", b"4"], keys=("order-1",), tags="new")
    at = f"/messages?topic={stage.topic}&key=order-1"
    (newest, *_) = every = await read_table(reader, at, "messages")

    found = {
        query: [row["body"] for row in await read_table(reader, f"{at}&{query}", "messages")]
        for query in (
            "tag=paid",
            "tag=paid || new&text=4",
            "queue=broker-a:1",
            "queue=broker-a:1&offset=0",
            "queue=broker-a:1&offset=1",
            "from=10m",
            "from=2099-01-01",
            f"from=2099-01-01&key={newest['id']}",
        )
    }

    assert [row["body"] for row in every] == ["4", "3", "2", "1", "0"]
    assert list(found.values()) == [
        ["1", "0"],
        ["4"],
        ["3", "1"],
        ["1", "3"],
        ["3"],
        ["0", "1", "2", "3", "4"],
        [],
        [],
    ]
    page = words_of(await reader.read(at))
    assert "the last 64 messages of each broker" in page
    assert "is one of a queue" in words_of(await reader.read(f"{at}&offset=1", 400))


async def test_messages_are_found_by_a_text_in_them_also_behind_many_others(
    reader: Reader, stage: GroupStage
) -> None:
    stage.send([b'{"city": "\\u5317\\u4eac"}', b"order 4711"], properties={"region": "cn-1"})
    stage.send([b"other"] * 300)
    at = f"/messages?topic={stage.topic}"

    found = {
        text: [r["body"] for r in await read_table(reader, f"{at}&text={text}", "messages")]
        for text in ("北京", "4711", "cn-1", "nowhere")
    }
    from_time = await read_table(reader, f"{at}&text=4711&from=10m", "messages")
    (by_id,) = await read_table(reader, f"{at}&text={from_time[0]['id']}", "messages")
    page = words_of(await reader.read(f"{at}&text=4711"))

    city, order = '{"city": "\\u5317\\u4eac"}', "order 4711"
    assert found == {"北京": [city], "4711": [order], "cn-1": [order, city], "nowhere": []}
    assert [row["body"] for row in from_time] == [order] == [by_id["body"]]
    assert "messages of each queue; for older ones, give a time" in page


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("offset=1", "name the queue"),
        ("queue=broker-a:1&offset=x", "'x' is not an offset"),
        ("queue=broker-a:1&offset=" + "9" * 30, "is not an offset"),
        ("queue=nonsense", "'nonsense' is not a queue"),
        ("queue=broker-a:77", "has no queue broker-a:77"),
        ("from=soon", "'soon' is not a time"),
    ],
)
async def test_a_wrong_question_is_one_line(
    reader: Reader, stage: GroupStage, query: str, words: str
) -> None:
    text = await reader.read(f"/messages?topic={stage.topic}&{query}", 400)

    assert words in words_of(text)


HOSTILE = '<script>alert("x")</script>"\'><img src=x onerror=alert(1)>{{7*7}}'


async def test_hostile_names_keys_properties_and_bodies_are_text(
    reader: Reader, stage: GroupStage
) -> None:
    stage.producer.send(
        Message(
            stage.topic,
            HOSTILE.encode(),
            tags="<b>tag</b>",
            keys=("<i>key</i>", "k" * 20_000),
            properties={"<u>name</u>": HOSTILE, "long": "v" * 10_000},
        )
    )
    (row,) = await read_table(reader, f"/messages?topic={stage.topic}", "messages")
    list_page = await reader.read(f"/messages?topic={stage.topic}")
    number = row["queue"].partition(":")[2]
    page = await reader.read(f"/messages/{stage.topic}/broker-a/{number}/{row['offset']}")

    for text in (list_page, page):
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "<b>tag" not in text
        assert "<i>key" not in text
        assert "<u>name" not in text
        assert "&lt;script&gt;" in text
        assert "{{7*7}}" in text
    assert len(list_page) < 20_000, "a long key is shown by its beginning"
    for path in (
        "/topics?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/login?next=/%22%3E%3Cscript%3Ealert(1)",
        "/messages?topic=%3Cscript%3E",
        "/groups/%3Cscript%3E",
        "/brokers/%3Cscript%3E",
        "/lab?x=%3Cscript%3E",
    ):
        assert "<script>" not in (await reader.http.get(path)).text, path


async def test_a_binary_body_is_shown_in_hex_and_given_whole_as_a_file(
    reader: Reader, stage: GroupStage
) -> None:
    body = bytes(range(256)) * 400
    stage.send([body])
    (row,) = await read_table(reader, f"/messages?topic={stage.topic}", "messages")
    path = f"/messages/{stage.topic}/broker-a/{row['queue'][-1]}/{row['offset']}"

    text = await reader.read(path)
    file = await reader.http.get(f"{path}?format=body")

    assert "00000000  00 01 02 03" in text
    assert "102,400 bytes · hex · the beginning" in words_of(text)
    assert body == file.content
    assert file.headers["content-type"] == "application/octet-stream"
    assert "attachment" in file.headers["content-disposition"]


async def test_a_message_shows_its_way_where_it_was_traced(
    reader: Reader, stage: GroupStage, cluster: EmbeddedCluster
) -> None:
    with Producer("GID_traced", name_server=cluster.name_server, trace=True) as producer:
        sent = producer.send(Message(stage.topic, b"x"))
    stage.send([b"y"])
    place = f"/messages/{stage.topic}/{sent.queue.broker_name}"
    traced = f"{place}/{sent.queue.queue_id}/{sent.queue_offset}"
    (step,) = await read_table(reader, traced, "trace")
    rows = await read_table(reader, f"/messages?topic={stage.topic}", "messages")
    (other,) = [row for row in rows if row["body"] == "y"]
    untraced = words_of(await reader.read(f"{place}/{other['queue'][-1]}/{other['offset']}"))

    assert (step["what"], step["group"], step["outcome"]) == ("sent", "GID_traced", "SUCCESS")
    assert "There is no trace" in untraced


async def test_a_time_that_no_browser_knows_is_a_number(
    reader: Reader, stage: GroupStage, cluster: EmbeddedCluster
) -> None:
    queue = MessageQueue(stage.topic, "broker-a", 0)
    send_stored(cluster.broker, queue, b"x", sys_flag=0, born_timestamp_ms=2**63 - 1)
    (row,) = await read_table(reader, f"/messages?topic={stage.topic}", "messages")

    text = await reader.read(f"/messages/{stage.topic}/broker-a/0/{row['offset']}")

    # Its script would end at the first such time, and leave all others as they are.
    assert all(int(ms) <= 8.64e15 for ms in re.findall(r'data-ms="(-?\d+)"', text))
    assert "9,223,372,036,854,775,807 ms" in text


NESTED = b"[%b]" % b",".join([b"[" * 900 + b"]" * 900] * 36)
JSON_LINES = '{\n  "b": [],\n  "c": {},\n  "d": [\n    {\n      "e": 1.10\n    }\n  ]\n}'


async def test_a_message_that_is_not_there_is_one_line(reader: Reader, stage: GroupStage) -> None:
    text = words_of(await reader.read(f"/messages/{stage.topic}/broker-a/0/99", 400))

    assert f"there is no message 99 in broker-a:0 of {stage.topic}" in text


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b'{"b": [1, 2]}', "json", '{\n  "b": [\n    1,\n    2\n  ]\n}'),
        (b'{"b":[],"c":{},"d":[{"e":1.10}]}', "json", JSON_LINES),
        (b"plain\ntext", "text", "plain\ntext"),
        ("中文".encode(), "text", "中文"),
        (b"a\x00b", "hex", f"00000000  {'61 00 62':<48} a.b"),
        (b"\xff", "hex", f"00000000  {'ff':<48} ."),
        (b"[" * 100_000, "text", "[" * 65_536),
        # 58 MB on lines.
        (NESTED, "text", NESTED.decode()),
        ("é".encode() * 40_000, "text", "é" * 32_768),
        (b"x" + "é".encode() * 40_000, "text", "x" + "é" * 32_767),
    ],
)
def test_bodies_are_shown_as_what_they_are(body: bytes, kind: str, text: str) -> None:
    shown = describe_body(body)

    assert (kind, text, len(body) <= 65_536) == shown


def test_previews_are_one_short_line() -> None:
    assert preview(b'{\n  "a": 1\n}') == '{ "a": 1 }'
    assert preview(b"\xff\x00") == "ff 00"
    assert preview("é".encode() * 1_000) == "é" * 120 + "…"
    assert shorten("a\u202eb") == "a·b"


def test_a_target_that_was_previewed_is_the_same_place_later() -> None:
    assert fix_target("latest") == "latest"
    for text in ("30m", "12:00", "1970-01-01T00:00Z", "9999-12-31T23:59-12:00"):
        fixed = fix_target(text)
        assert parse_time(fixed, now_timestamp_ms=0) == int(fixed), text
    assert fix_target("2026-01-31T12:00+08:00") == "1769832000000"
    with pytest.raises(UsageError, match="lies before 1970"):
        fix_target("999999999d")


async def test_offsets_are_moved_only_after_they_were_shown_and_if_writes_are_allowed(
    reader: Reader, writer: Reader, stage: GroupStage
) -> None:
    stage.send([b"x"] * 8)
    member = stage.join("a")
    wait_until("all messages", lambda: member.counters.succeeded == 8)
    member.close()
    stage.send([b"x"] * 4)
    path = f"/groups/{stage.group}/reset"
    form = {"topic": stage.topic, "to": "latest"}

    forth = await read_table(reader, f"{path}?topic={stage.topic}&to=latest", "reset")
    back = await read_table(reader, f"{path}?topic={stage.topic}&to=earliest", "reset")
    refused = await reader.http.post(path, data={"token": reader.token(), **form})
    unchanged = await read_table(reader, f"/groups/{stage.group}?topic={stage.topic}", "queues")
    wrong = await reader.read(f"{path}?topic={stage.topic}&to=soon", 400)
    ago = await writer.read(f"{path}?topic={stage.topic}&to=30m")
    done = await writer.http.post(path, data={"token": writer.token(), **form})
    changed = await read_table(writer, f"/groups/{stage.group}?topic={stage.topic}", "queues")

    assert [(row["before"], row["after"], row["skipped"], row["again"]) for row in forth] == [
        (2, 3, 1, 0)
    ] * 4
    assert [(row["skipped"], row["again"]) for row in back] == [(0, 2)] * 4
    assert refused.status_code == 400
    assert [row["lag"] for row in unchanged] == [1] * 4
    assert "write earliest, latest, 2026-" in words_of(wrong)
    assert re.search(r'name="to" value="\d{13}">', ago), "the second click is later"
    assert (done.status_code, done.headers["location"]) == (303, f"/groups/{stage.group}")
    assert [row["lag"] for row in changed] == [0] * 4


async def test_the_doctors_list_leads_to_the_group(reader: Reader, stage: GroupStage) -> None:
    stage.send([b"x"] * 4)
    member = stage.join("a")
    member.close()
    stage.send([b"x"] * 4)

    async def row() -> dict[str, Any] | None:
        found = await read_table(reader, f"/doctor?q={stage.group}", "findings")
        return next((row for row in found if row["group"] == stage.group), None)

    shown = await eventually("a finding", row)

    assert shown["rule"] == "Q04"
    page = await reader.read("/doctor")
    assert f'href="/groups/{stage.group}#finding-Q04"' in page


async def test_the_simulator_compares_strategies_move_by_move(reader: Reader) -> None:
    path = "/simulator?queues=8&members=3&events=join,leave&strategy=AVG&versus=MINIMAL_MOVE"
    text = await reader.read(path)
    rows = {row["strategy"]: row for row in await read_table(reader, path, "strategies")}

    # AVG: 3-3-2 becomes 2-2-2-2, then 3-3-2.
    assert rows["AVG"]["moved"] == 6
    assert rows["MINIMAL_MOVE"]["moved"] == 2
    assert rows["MINIMAL_MOVE"]["needless"] == 0
    assert text.count('<table class="matrix moves">') == 2
    assert text.count('<td class="moved">') == 12


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("queues=257", "queues is '257'; it must be a number from 1 to 256"),
        ("queues=-1", "queues is '-1'"),
        ("members=1e9", "members is '1e9'"),
        ("events=jion", "did you mean join?"),
        ("events=" + ",".join(["join"] * 13), "13 events"),
        ("strategy=AVGG", "unknown strategy 'AVGG'; did you mean AVG?"),
        ("brokers=9", "brokers is 9; it must be from 1 to 8, the number of queues"),
        ("events=kill:7", "event kill:7: the group has 3 members then"),
    ],
)
async def test_what_cannot_be_simulated_is_one_line(reader: Reader, query: str, words: str) -> None:
    assert words in words_of(await reader.read(f"/simulator?{query}", 400))


async def test_a_list_of_messages_that_is_not_whole_says_so_as_a_file_too(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_some(*_: object, **__: object) -> Read:
        rest = ((MessageQueue("any", "broker-b", 3), 17),)
        return Read([], ["broker-b: silent; its queues are missing"], rest=rest)

    monkeypatch.setattr(message_pages, "read_messages", read_some)
    for path in ("/messages?topic=T_any", "/dead-letters?group=GID_any"):
        page = await reader.read(path)
        shown = words_of(page)
        rows = await read_table(reader, path, "messages")
        problems = [row["problem"] for row in rows]
        assert problems[0] == "broker-b: silent; its queues are missing", path
        assert problems[1].startswith("The search has stopped"), path
        assert all(problem in shown for problem in problems), path
        assert "queue=broker-b%3A3&amp;offset=17" in page, path


async def test_every_table_is_a_file_too(reader: Reader) -> None:
    for path in ("/", "/topics", "/brokers", "/doctor", "/simulator", "/dead-letters"):
        for kind, media in (("csv", "text/csv; charset=utf-8"), ("json", "application/json")):
            answer = await reader.http.get(path, params={"format": kind})
            assert (answer.status_code, answer.headers["content-type"]) == (200, media), path
        json.loads(answer.text)
