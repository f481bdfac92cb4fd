"""The pages on a real cluster with real members: what they show, and say when something fails."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from group_stage import GroupStage
from live_page import Reader, reading
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.dash import web
from sparrowmq.dash.web import ShownCluster, Visit
from sparrowmq.testing import EmbeddedCluster
from sparrowmq.words.catalog import Words
from steps_of_pages import eventually, read_table, words_of
from waiting import wait_until

pytestmark = pytest.mark.slow


async def owners(reader: Reader, stage: GroupStage) -> list[str]:
    await reader.watcher.look_now(stage.group)
    rows = await read_table(reader, f"/groups/{stage.group}?topic={stage.topic}", "queues")
    return [row["owners"] for row in rows]


async def test_the_overview_lists_groups_with_their_lag_and_members(
    reader: Reader, stage: GroupStage
) -> None:
    stage.send([b"x"] * 4)
    member = stage.join("a")
    wait_until("the first messages", lambda: member.counters.succeeded == 4)
    member.close()
    stage.send([b"x"] * 12)

    async def row() -> dict[str, Any] | None:
        rows = await read_table(reader, "/", "groups") if reader.watcher.overview else []
        found = [row for row in rows if row["group"] == stage.group]
        return found[0] if found and found[0]["members"] == 0 and found[0]["unowned"] else None

    shown = await eventually("the group", row)

    assert shown["lag"] == 12
    assert shown["unowned"] == 4
    assert stage.topic == shown["topics"]
    assert shown["trouble"].startswith("Q04 ")
    text = words_of(await reader.read(f"/?q={stage.group}"))
    assert stage.group in text
    assert "queues without owner" in text


async def test_the_matrix_shows_who_has_which_queue(reader: Reader, stage: GroupStage) -> None:
    stage.join("a")
    stage.join("b")
    a, b = "172.17.0.1@a", "172.17.0.1@b"

    async def shared() -> bool:
        return [a, a, b, b] == await owners(reader, stage)

    async def is_well() -> bool:
        # The handover is information for as long as the doctor sees it.
        return "Nothing is wrong." in await reader.read(f"/groups/{stage.group}")

    await eventually("two queues each", shared)
    await eventually("no finding", is_well)
    # By now the retry topic may have a row too.
    page = await reader.read(f"/groups/{stage.group}?topic={stage.topic}")

    assert len(re.findall(r'<td class="square owned has', page)) == 4
    assert f"A {a}" in words_of(page)


async def test_one_look_is_not_said_to_show_that_nothing_stands_still(
    reader: Reader, stage: GroupStage
) -> None:
    stage.join("a")
    group = await reader.watcher.find(stage.group)

    async def is_well() -> bool:
        await reader.watcher.look_now(stage.group)
        return not group.findings

    await eventually("no finding", is_well)
    group.snapshots.clear()
    await reader.watcher.look_now(stage.group)
    page = await reader.read(f"/groups/{stage.group}")

    assert "Nothing is wrong at first sight" in page
    assert "Nothing is wrong." not in page


async def test_the_timeline_says_who_joined_what_moved_and_that_nothing_came_twice(
    reader: Reader, stage: GroupStage
) -> None:
    stage.join("a")
    await reader.read(f"/groups/{stage.group}")
    with reader.watcher.showing(stage.group):
        joined = stage.join("b")

        async def rebalances() -> list[dict[str, Any]]:
            found = await read_table(reader, f"/groups/{stage.group}", "rebalances")
            return [each for each in found if each["moved"] == 2 and each["settled_ms"]]

        (found,) = await eventually("a rebalance", rebalances)
        assert found["reason"] == "B (172.17.0.1@b) joined"
        assert found["moves"] == "A → B: broker-a:2, 3"
        assert found["at_risk"] == 0, "it was handed over under its lock"
        joined.close()

        async def back() -> list[dict[str, Any]]:
            found = await read_table(reader, f"/groups/{stage.group}", "rebalances")
            return [each for each in found if "left" in each["reason"] and each["settled_ms"]]

        (found,) = await eventually("its leave", back)

    assert found["reason"] == "B (172.17.0.1@b) left"
    assert found["moves"] == "B → A: broker-a:2, 3"
    page = await reader.read(f"/groups/{stage.group}?window=300")
    assert page.count('<svg class="strip"') == 4


async def test_twins_are_shown_where_they_hurt_with_the_doctors_finding_beside_them(
    reader: Reader, stage: GroupStage
) -> None:
    stage.start_process("twin")
    stage.join("b")
    stage.start_process("twin")

    async def states() -> list[str] | None:
        await reader.watcher.look_now(stage.group)
        path = f"/groups/{stage.group}?topic={stage.topic}"
        found = [row["state"] for row in await read_table(reader, path, "queues")]
        return found if "double" in found and "unowned" in found else None

    await eventually("double and unowned queues", states)
    page = await reader.read(f"/groups/{stage.group}")
    text = words_of(page)

    assert "172.17.0.1@twin 2 processes have this id" in text
    assert re.search(r'<tr class="unowned">.*?href="#finding-R0[12]"', page, re.S)
    assert 'id="finding-R0' in page
    assert "Remedy" in text
    assert re.search(r"<code>ss -tnp sport = :\d+</code>", page)
    assert "`" not in text
    chinese_group, chinese_doctor = [
        words_of(await reader.read(f"{path}?lang=zh"))
        for path in (f"/groups/{stage.group}", "/doctor")
    ]
    for chinese in (chinese_group, chinese_doctor):
        assert "让每个进程有自己的实例名" in chinese
        assert "give every process its own instance name" not in chinese
        assert f"broker-a 上的 {stage.topic}：" in chinese
    assert re.search(
        r"172\.17\.0\.1@twin 在列表中出现 2 次，连接来自 127\.0\.0\.1:\d+", chinese_group
    )


async def test_a_page_that_is_not_there_leads_back(reader: Reader) -> None:
    text = await reader.read("/nosuch/page?lang=zh", 404)

    assert "there is no page /nosuch/page" in text
    assert '<a href="/">总览</a>' in text
    assert 'data-live="no"' in text


async def test_a_queue_explains_its_owner(reader: Reader, stage: GroupStage) -> None:
    stage.join("a")

    path = f"/groups/{stage.group}?explain=broker-a:3&of={stage.topic}"
    text = words_of(await reader.read(path))
    wrong = words_of(
        await reader.read(f"/groups/{stage.group}?explain=broker-a:99&of={stage.topic}")
    )

    assert "Why broker-a:3 has its owner" in text
    assert "takes the queue" in text
    assert "members do not divide queue broker-a:99" in wrong


async def test_a_group_that_nobody_knows_is_one_line_that_names_the_nearest(
    reader: Reader, stage: GroupStage
) -> None:
    stage.join("a")

    text = words_of(await reader.read(f"/groups/{stage.group}x", 400))
    illegal = words_of(await reader.read("/groups/a%20b", 400))

    assert f"no broker knows consumer group '{stage.group}x'; did you mean {stage.group}?" in text
    assert "'a b'" in illegal


async def test_names_with_signs_of_urls_lead_where_they_should(
    reader: Reader, stage: GroupStage
) -> None:
    stage.group = f"GID%41|{stage.group}"
    stage.join("a")

    async def row() -> str | None:
        await reader.watcher.find(stage.group)
        page = await reader.read(f"/groups/{quote(stage.group, safe='')}")
        return page if "square owned has" in page else None

    page = await eventually("the group", row)
    links = set(re.findall(r'href="(/groups/[^"?#]+)', page))

    assert {f"/groups/{quote(stage.group, safe='')}{end}" for end in ("", "/reset")} == links
    for link in links:
        assert stage.group in html.unescape(await reader.read(link))


async def test_a_group_that_has_the_name_of_a_word_keeps_it_in_each_language(
    reader: Reader, stage: GroupStage
) -> None:
    stage.group = "messages"
    stage.join("a")

    async def known() -> bool:
        return (await reader.http.get("/groups/messages")).status_code == 200

    await eventually("the group", known)
    page = await reader.read("/groups/messages?lang=zh")

    assert "<title>messages ·" in page
    assert 'href="/groups/messages/reset"' in page
    assert 'href="/dead-letters?group=messages"' in page


async def test_a_search_leaves_the_simulated_members_as_they_are(reader: Reader) -> None:
    page = await reader.read("/simulator?queues=12&twin=yes&q=AVG")

    (form,) = re.findall(r'<form class="search".*?</form>', page, re.S)
    hidden = re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', form)
    assert hidden == [("queues", "12"), ("twin", "yes")]


async def test_an_open_page_hears_of_news(reader: Reader, stage: GroupStage) -> None:
    stage.join("a")
    await reader.watcher.find(stage.group)
    seen = reader.watcher.version(stage.group)

    with reader.watcher.showing(stage.group):
        assert await reader.watcher.wait(stage.group, seen, timeout_s=20) > seen


async def stream_of_nothing(reader: Reader) -> AsyncGenerator[object]:
    """Open a stream of news that never come."""
    cookie = "; ".join(f"{name}={value}" for name, value in reader.http.cookies.items())
    session = reader.site.access.find(reader.http.cookies)
    assert session is not None
    request = Request({"type": "http", "headers": [(b"cookie", cookie.encode())]})
    visit = Visit(request=request, session=session, words=Words("en"), query={"of": "nothing"})
    response = await reader.site.stream(visit)
    assert isinstance(response, StreamingResponse)
    stream = response.body_iterator
    assert isinstance(stream, AsyncGenerator)
    return stream


async def test_an_open_page_hears_nothing_after_the_end_of_its_session(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "STREAM_BEAT_S", 0.01)
    monkeypatch.setattr(web, "STREAMS_MAX", 1)
    stream = await stream_of_nothing(reader)
    await anext(stream)
    crowded = await reader.http.get("/events")
    reader.site.access.log_out(reader.http.cookies)

    assert [str(part).partition("\n")[0] async for part in stream] == ["event: over"]
    assert crowded.status_code == 503


async def test_an_open_page_hears_a_sign_of_life_where_nothing_happens(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "STREAM_BEAT_S", 0.01)
    stream = await stream_of_nothing(reader)

    parts = [str(await anext(stream)) for _ in range(2)]
    await stream.aclose()
    # A comment would not reach the script, which would open the stream again and again.
    (event,) = re.findall(r"^event: (\w+)$", parts[1], re.M)
    script = (web.HERE / "static/dash.js").read_text()
    assert f'addEventListener("{event}"' in script


@pytest.mark.parametrize("path", ["/", "/login"])
async def test_pages_speak_chinese(reader: Reader, path: str) -> None:
    text = await reader.read(f"{path}?lang=zh")

    assert '<html lang="zh-CN"' in text
    assert "总览" in text or "登录" in text
    # The choice is kept in a cookie.
    assert '<html lang="zh-CN"' in await reader.read("/")


async def test_the_browsers_language_is_taken_if_nobody_chose(reader: Reader) -> None:
    answer = await reader.http.get("/", headers={"accept-language": "fr,zh-CN;q=0.8,en;q=0.5"})

    assert '<html lang="zh-CN"' in answer.text


async def test_a_page_without_a_cluster_says_so_and_recovers_by_itself() -> None:
    with EmbeddedCluster(flush="async") as cluster, GroupStage(cluster) as stage:
        stage.join("a")
        async with reading(cluster.name_server) as reader:
            await reader.read(f"/groups/{stage.group}")
            cluster.kill()

            async def failing() -> str | None:
                text = words_of(await reader.read("/"))
                return text if "The cluster does not answer" in text else None

            await eventually("the failure", failing)
            await reader.watcher.look_now(stage.group)
            shown = words_of(await reader.read(f"/groups/{stage.group}"))
            assert "The last snapshot failed" in shown
            assert "172.17.0.1@a" in shown, "what was seen last stays"

            cluster.restart()

            async def fine() -> bool:
                return "The cluster does not answer" not in await reader.read("/")

            await eventually("the recovery", fine)


async def test_a_page_that_starts_before_its_cluster_waits_for_it() -> None:
    async with reading("127.0.0.1:1") as reader:
        text = words_of(await reader.read("/"))
        assert "Looking at the cluster" in text
        missing = words_of(await reader.read("/groups/GID_x", 503))

    assert "127.0.0.1:1" in missing


async def test_a_cluster_with_access_keys_is_shown_to_those_who_have_one(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    keys: dict[str, Any] = {
        "access_key": "administrator",
        "secret_key": "secret-of-the-administrator",
    }
    rules.write_text(
        f"accounts:\n  - accessKey: {keys['access_key']}\n    secretKey: {keys['secret_key']}\n"
        "    admin: true\n"
    )
    with EmbeddedCluster(flush="async", options=("--acl", str(rules))) as cluster:
        async with reading(cluster.name_server, **keys) as reader:

            async def row() -> dict[str, Any] | None:
                found = await read_table(reader, "/brokers", "brokers")
                return found[0] if found else None

            assert (await eventually("the broker", row))["failure"] is None
            assert keys["secret_key"] not in await reader.read("/")
        async with reading(cluster.name_server) as stranger:

            async def failing() -> str | None:
                text = words_of(await stranger.read("/"))
                return text if "The cluster does not answer" in text else None

            await eventually("the refusal", failing)


async def test_a_broker_that_stores_no_messages_is_told_of_on_every_page_about_it() -> None:
    full = tuple(f"--disk-{name}-percent=1" for name in ("expire", "force", "full"))
    with EmbeddedCluster(options=full) as cluster:
        async with reading(cluster.name_server) as reader:

            async def told() -> str | None:
                text = words_of(await reader.read("/"))
                return text if "stores no messages: its disk is " in text else None

            front = await eventually("the broker that refuses", told)
            (row,) = await read_table(reader, "/brokers", "brokers")
            page = words_of(await reader.read("/brokers/broker-a"))

    assert "% full, and 1 % are allowed" in front
    assert row["failure"].endswith("% full, and 1 % are allowed")
    assert "stores no messages: its disk is " in page


async def test_several_clusters_are_beside_each_other_and_each_has_its_pages(
    cluster: EmbeddedCluster, stage: GroupStage
) -> None:
    stage.send([b"x"] * 4)
    member = stage.join("a")
    wait_until("the messages", lambda: member.counters.succeeded == 4)
    gone = ShownCluster(
        name="gone", name_server="127.0.0.1:1", directory=make_directory("127.0.0.1:1")
    )
    async with reading(cluster.name_server, gone, allow_writes=True) as reader:

        async def looked() -> list[dict[str, Any]] | None:
            rows = await read_table(reader, "/", "clusters")
            return rows if rows[0]["groups"] and rows[1]["trouble"] else None

        rows = await eventually("a look at both clusters", looked)
        front, home = await reader.read("/"), await reader.read("/clusters/first/")
        topic = {"token": reader.token(), "topic": f"{stage.topic}-new", "queues": "4"}
        made = await reader.http.post(
            "/clusters/first/new-topic", data={**topic, "confirmed": "yes"}
        )
        reader.http.cookies.clear()
        outside = await reader.http.get("/clusters/gone/topics")

    assert [(row["cluster"], row["brokers"]) for row in rows] == [
        ("first", "1 / 1"),
        ("gone", None),
    ]
    assert rows[1]["trouble"] == "does not answer"
    assert '<a href="/clusters/gone/">gone</a>' in front
    assert f'href="/clusters/first/groups/{stage.group}"' in home
    assert re.findall(r'href="(/(?!clusters/|static/)[^"]*)"', home) == ["/", "/"]
    assert made.headers["location"] == f"/clusters/first/topics/{stage.topic}-new"
    assert outside.headers["location"].startswith("/clusters/gone/login?next=%2Fclusters%2Fgone")
