"""Forms of the live page: previewed, confirmed, and only for the administrator."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from group_stage import GroupStage
from live_page import READER_PASSWORD, Reader, reading
from sparrowmq import Admin, ConsumeStatus, MessageExt
from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.dash import send_form
from sparrowmq.dash.login import HELD_MAX
from sparrowmq.testing import EmbeddedCluster
from steps_of_pages import eventually, read_table, words_of


async def post(writer: Reader, path: str, status: int, **fields: str) -> str:
    """Send a form; return the page's words, or where the answer leads."""
    answer = await writer.http.post(path, data={"token": writer.token(), **fields})
    assert status == answer.status_code, answer.text
    location: str = answer.headers.get("location", "")
    return location or words_of(answer.text)


async def die(stage: GroupStage, *bodies: bytes) -> None:
    """Have the topic's messages become dead letters."""
    stage.send(bodies or [b"poison"], keys=("bad-1",))
    member = stage.join(
        "a", listener=lambda messages, context: ConsumeStatus.RECONSUME_LATER, max_reconsume_times=0
    )

    async def dead() -> bool:
        return member.counters.sent_back == (len(bodies) or 1)

    await eventually("the message sent back", dead)
    member.close()


async def test_topics_and_groups_are_made_changed_and_deleted_as_previewed(
    writer: Reader, cluster: EmbeddedCluster
) -> None:
    with Admin(name_server=cluster.name_server, timeout_ms=10_000) as admin:
        preview = await post(writer, "/new-topic", 200, topic="T_form", queues="3")
        assert "T_form" in preview
        assert "T_form" not in admin.list_topics()
        made = await post(writer, "/new-topic", 303, topic="T_form", queues="3", confirmed="yes")
        assert made == "/topics/T_form"
        again = await post(writer, "/new-topic", 400, topic="T_form", queues="3", confirmed="yes")
        assert "exists already" in again
        assert len(admin.topic_status("T_form").queues) == 3
        settings = {"write_queues": "3", "read_queues": "5", "perm": "r"}
        preview = await post(writer, "/topics/T_form/settings", 200, **settings)
        assert "3 → 5" in preview
        assert "rw → r" in preview
        refused = await post(
            writer, "/topics/T_form/settings", 400, **settings | {"read_queues": "x"}
        )
        assert "read_queues is 'x'; write a number" in refused

        group = {"retries": "2", "retry_queues": "1", "enabled": "no"}
        await post(writer, "/new-group", 303, group="GID_form", confirmed="yes", **group)
        assert "GID_form" in admin.list_groups()
        preview = await post(writer, "/groups/GID_form/settings", 200, **group | {"retries": "4"})
        assert "2 → 4" in preview
        assert await post(writer, "/groups/GID_form/delete", 303, confirmed="yes") == "/"
        assert "GID_form" not in admin.list_groups()

        assert "are lost" in await post(writer, "/topics/T_form/delete", 200)
        assert "T_form" in admin.list_topics()
        await post(writer, "/topics/T_form/delete", 303, confirmed="yes")
        assert "T_form" not in admin.list_topics()
        for path in ("settings", "delete"):
            own = await post(writer, f"/topics/TBW102/{path}", 400, **settings)
            assert "topic 'TBW102' is one of RocketMQ's own" in own
            own = await post(writer, f"/groups/TOOLS_CONSUMER/{path}", 400, **group)
            assert "group 'TOOLS_CONSUMER' is one of RocketMQ's own" in own


async def test_a_message_is_sent_and_sent_again_as_edited(
    writer: Reader, stage: GroupStage, cluster: EmbeddedCluster
) -> None:
    content = {"body": "first\r\nline", "tag": "a", "keys": "k1", "properties": "host=web-1"}
    path = f"/topics/{stage.topic}/send"
    assert "host=web-1" in await post(writer, path, 200, **content)
    assert stage.topic in await post(writer, path, 303, confirmed="yes", **content)

    with Admin(name_server=cluster.name_server, timeout_ms=10_000) as admin:

        def messages() -> list[MessageExt]:
            return admin.messages_since(stage.topic, 0)

        (sent,) = messages()
        place = f"{stage.topic}/{sent.broker_name}/{sent.queue_id}/{sent.queue_offset}"
        page = await writer.read(f"/messages/{place}/send")
        assert "first\nline" in page
        edited = content | {"body": "second", "tag": "", "properties": ""}
        preview = await post(writer, f"/messages/{place}/send", 200, **edited)
        assert "a → –" in preview
        await post(writer, f"/messages/{place}/send", 303, confirmed="yes", **edited)
        _, copy = messages()

    assert (sent.body, sent.tags, sent.keys) == (b"first\nline", "a", ("k1",))
    assert (copy.body, copy.tags, copy.keys) == (b"second", None, ("k1",))
    assert copy.properties["RESENT_BY"].startswith("live page, ")
    assert copy.properties["RESENT_FROM"].startswith(f"{stage.topic} broker-a:")
    assert "host" not in copy.properties


async def test_a_dead_letter_is_sent_again_and_marked(writer: Reader, stage: GroupStage) -> None:
    await die(stage)
    path = f"/dead-letters?group={stage.group}"

    async def letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await read_table(writer, path, "messages")
        return found

    (letter,) = await eventually("the dead letter", letters)
    page = await writer.read(path)
    (href,) = set(re.findall(r"/messages/%25DLQ%25[^\"]+/0/\d+", page))
    got: list[bytes] = []
    stage.join("b", listener=lambda messages, context: got.extend(m.body for m in messages))
    form = {"body": "antidote", "tag": "", "keys": "bad-1", "properties": ""}
    preview = await post(writer, f"{href}/send", 200, **form)
    done = await post(writer, f"{href}/send", 303, confirmed="yes", **form)

    async def came() -> list[bytes]:
        return got

    assert letter["resent_by"] is None
    assert "poison → antidote" in preview
    assert f"topic %DLQ%{stage.group}" in " ".join(preview.split())
    assert done.startswith(f"/dead-letters?group={stage.group}")
    (again,) = await letters()
    assert again["resent_by"].startswith("live page, ")
    assert await eventually("the dead letter", came, timeout_s=60) == [b"antidote"]
    kept = await post(writer, f"/groups/{stage.group}/delete", 400, confirmed="yes")
    assert "1 members connected" in kept


async def test_several_dead_letters_are_sent_again_once(
    writer: Reader, stage: GroupStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page's clock is not the broker's.
    monkeypatch.setattr(send_form, "timestamp_ms", lambda: timestamp_ms() + 3_600_000)
    await die(stage, b"bill 1", b"bill 2", b"note 3")
    shown, path = f"/dead-letters?group={stage.group}", f"/dead-letters/resend?group={stage.group}"

    async def letters() -> bool:
        return len(await read_table(writer, shown, "messages")) == 3

    await eventually("the dead letters", letters)
    form = await writer.read(path)
    (ends,) = re.findall(r'name="ends" value="(.+)"', form)
    fields = {"text": "bill", "again": "no", "ends": unescape(ends)}
    await die(stage, b"bill 4")
    got: list[bytes] = []
    stage.join("b", listener=lambda messages, context: got.extend(m.body for m in messages))
    preview = await post(writer, path, 200, **fields)
    with monkeypatch.context() as patch:
        patch.setattr(send_form, "RESENT_MAX", 1)
        assert "name a text" in await post(writer, path, 400, confirmed="yes", **fields)
    earlier = await post(writer, path, 200, **fields | {"ends": "{}"})
    done = await post(writer, path, 303, confirmed="yes", **fields)
    after = await post(writer, path, 200, **fields | {"text": ""})
    await post(writer, path, 400, **fields | {"ends": "9" * 5_000})
    await writer.read(f"{shown}&done={'9' * 5_000}")

    async def came() -> bool:
        return len(got) == 2

    found = await read_table(writer, f"{shown}&text=note", "messages")
    words = ("bill 1", "bill 2", "note 3", "bill 4")
    assert [word in preview for word in words] == [True, True, False, False]
    assert "Nothing would change." in earlier
    assert done == f"/dead-letters?group={stage.group}&done=2"
    assert "Sent to the group again: 2 messages." in words_of(await writer.read(done))
    assert [word in after for word in words] == [False, False, True, False]
    assert [row["body"] for row in found] == ["note 3"]
    await eventually("the dead letters", came, timeout_s=60)
    assert sorted(got) == [b"bill 1", b"bill 2"]


async def test_a_message_shows_the_groups_that_are_beyond_it(
    reader: Reader, stage: GroupStage
) -> None:
    stage.send([b"x"], keys=("k",))
    stage.join("a", listener=lambda messages, context: None)

    async def consumers() -> list[dict[str, Any]]:
        (row,) = await read_table(reader, f"/messages?topic={stage.topic}", "messages")
        broker, _, queue = row["queue"].partition(":")
        path = f"/messages/{stage.topic}/{broker}/{queue}/{row['offset']}"
        found = await read_table(reader, path, "consumers")
        return [each for each in found if each["done"] == "yes"]

    (row,) = await eventually("the message consumed", consumers, timeout_s=60)
    assert (row["group"], row["committed"]) == (stage.group, 1)


async def test_who_may_only_read_changes_nothing_and_sees_no_accounts(
    writer: Reader, cluster: EmbeddedCluster
) -> None:
    writer.http.cookies.clear()
    await writer.http.post("/login", data={"password": READER_PASSWORD})
    form = {"topic": "T_refused", "queues": "1", "confirmed": "yes"}

    assert "read-only" in await writer.read("/")
    assert "administrator's password" in await post(writer, "/new-topic", 400, **form)
    for path in ("/accounts", "/accounts/administrator", "/new-account"):
        assert "this page only reads" in words_of(await writer.read(path, 400))


async def test_accounts_are_shown_made_changed_and_deleted(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    keys = {"access_key": "administrator", "secret_key": "secret-of-the-administrator"}
    rules.write_text(
        f"accounts:\n  - accessKey: {keys['access_key']}\n    secretKey: {keys['secret_key']}\n"
        "    admin: true\n"
    )
    form = {
        "account": "orders-service",
        "secret": "12345678",
        "admin": "no",
        "from": "",
        "topics": "DENY",
        "groups": "DENY",
        "topic_perms": "T_a=PUB\r\nT_b=SUB",
        "group_perms": "",
    }
    with EmbeddedCluster(flush="async", options=("--acl", str(rules))) as cluster:
        async with reading(cluster.name_server, allow_writes=True, **keys) as writer:
            wrong = form | {"topic_perms": "T_a=READ"}
            assert "T_a=READ" in await post(writer, "/new-account", 400, **wrong)
            for path, values in (
                ("/accounts/administrator/delete", {}),
                ("/accounts/administrator", form | {"secret": ""}),
            ):
                alone = await post(writer, path, 400, confirmed="yes", **values)
                assert "is the only administrator of broker-a" in alone
            preview = await post(writer, "/new-account", 200, **form)
            session = writer.site.access.find(writer.http.cookies)
            assert session is not None
            confirmed = form | {"secret": list(session.held)[-1]}
            for number in range(HELD_MAX):
                other = form | {"secret": f"secret-{number}"}
                await post(writer, "/new-account", 200, **other)
            late = await post(writer, "/new-account", 400, confirmed="yes", **confirmed)
            await post(writer, "/new-account", 200, **form)
            confirmed = form | {"secret": list(session.held)[-1]}
            await post(writer, "/new-account", 303, confirmed="yes", **confirmed)
            stored = rules.read_text()
            changed = form | {"secret": "", "topics": "SUB", "topic_perms": "T_a=PUB"}
            change = await post(writer, "/accounts/orders-service", 200, **changed)
            await post(writer, "/accounts/orders-service", 303, confirmed="yes", **changed)
            rows = await read_table(writer, "/accounts", "accounts")
            page = await writer.read("/accounts")
            await post(writer, "/accounts/orders-service/delete", 303, confirmed="yes")
            left = await read_table(writer, "/accounts", "accounts")

    assert ("12345678" in stored, "12345678" in preview) == (True, False)
    assert "T_a=PUB,T_b=SUB" in preview
    assert "fill in the form again" in late
    assert "DENY → SUB" in change
    (orders,) = [row for row in rows if row["account"] == "orders-service"]
    assert (orders["topics"], orders["topic_perms"]) == ("SUB", "T_a=PUB")
    assert 'href="/accounts/orders-service/delete"' in page
    assert [row["account"] for row in left] == ["administrator"]
