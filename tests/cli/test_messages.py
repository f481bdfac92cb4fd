"""`sparrowmq send`, `tail`, `msg` and `dlq` on a real cluster."""

from __future__ import annotations

import base64
import json
import os
import pty
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from commands import Commands
from poison import send_stored
from queue_messages import message as queue_message
from sparrowmq import (
    ConsumeStatus,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.cli.connecting import ConnectionOptions, open_cluster
from sparrowmq.cli.message_view import (
    BodyFormat,
    format_body,
    line_of_message,
    print_message,
    shorten_body,
)
from sparrowmq.cli.messages import COPY_COLUMNS, find_operator, row_of_copy, tail_messages
from sparrowmq.cli.output import print_rows
from sparrowmq.client.operations.browse import Start, open_browser
from sparrowmq.client.operations.resend import Edit
from sparrowmq.model.message import BODY_BYTES_MAX as MESSAGE_BYTES_MAX
from sparrowmq.model.plain_text import escape
from sparrowmq.testing import EmbeddedCluster
from sparrowmq.words.body import BODY_BYTES_MAX
from waiting import wait_until

pytestmark = pytest.mark.slow


def bodies(smq: Commands, *arguments: str) -> list[Any]:
    """Run tail with --json and return the bodies."""
    result = smq("tail", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["body"] for line in result.stdout.splitlines()]


def test_a_message_is_sent_found_and_shown(smq: Commands, shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_one", queues=2)
    options = ["--tag", "UA", "-k", "k1", "-k", "k2", "-p", "price=12", "-q", "broker-a:1"]
    sent = smq.json("send", "T_one", "hello", *options)

    assert tuple(sent[key] for key in ("status", "broker", "queue", "offset")) == (
        "SEND_OK",
        "broker-a",
        1,
        0,
    )
    (by_id,) = smq.json("msg", "get", sent["msg_id"], "--topic", "T_one")
    assert smq.json("msg", "get", sent["offset_msg_id"], "--topic", "T_one") == [by_id]
    assert smq.json("msg", "find", "k2", "--topic", "T_one", "--from", "1h") == [by_id]
    assert smq.json("msg", "at", "T_one", "broker-a:1", "0") == [by_id]
    assert (
        by_id["body"],
        by_id["tags"],
        by_id["keys"],
        by_id["properties"]["price"],
    ) == ("hello", "UA", ["k1", "k2"], "12")
    beyond = smq("msg", "at", "T_one", "broker-a:1", "1")
    assert (beyond.exit_code, "has messages 0 to 0, and none at 1" in beyond.stderr) == (1, True)
    shown = smq("msg", "at", "T_one", "broker-a:1", "0").stdout
    assert "price" in shown
    # The first offset of a queue is shown like any other.
    assert "offset            0\n" in shown
    assert "body, 5 bytes" in shown


def test_a_traced_message_shows_its_way(smq: Commands, shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_traced", queues=1)
    with Producer("GID_p", name_server=shared_cluster.name_server, trace=True) as producer:
        sent = producer.send(Message("T_traced", b"x"))

    (step,) = smq.json("msg", "trace", sent.msg_id)
    shown = smq("msg", "trace", sent.msg_id)
    untraced = smq("msg", "trace", "0" * 32)

    assert (step["what"], step["group"], step["outcome"]) == ("sent", "GID_p", "SUCCESS")
    assert "GID_p" in shown.stdout
    assert (untraced.exit_code, "`trace` may be off" in untraced.stderr) == (1, True)


def test_what_is_not_there_is_said() -> None:
    # Other tests make dead letters in the cluster that they share.
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic("T_none", queues=1)
        smq = Commands(cluster.name_server)

        lines = (
            ("msg", "get", "00" * 16, "--topic", "T_none"),
            ("msg", "find", "nothing", "--topic", "T_none"),
            ("msg", "at", "T_none", "broker-a:0", "7"),
        )
        unknown_id, unknown_key, unknown_place = (smq(*line) for line in lines)
        for_programs = [smq(*line, "--json").stdout for line in lines]
        empty = smq("tail", "T_none")
        dead = smq("dlq", "ls")

    assert [r.exit_code for r in (unknown_id, unknown_key, unknown_place, empty)] == [1, 1, 1, 0]
    assert for_programs == ["[]\n"] * 3
    assert "queue broker-a:0 of T_none has no message at 7" in unknown_place.stderr
    assert "topic T_none has no message in this range" in empty.stderr
    assert f"no group has dead letters at {cluster.name_server}" in dead.stderr


def test_a_misspelt_topic_is_refused_and_not_made(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_spelt", queues=1)

    result = smq("send", "T_splet", "hello")

    assert (result.exit_code, "did you mean T_spelt?" in result.stderr) == (2, True)
    assert "T_splet" not in smq("topic", "ls", "--all").stdout


def test_a_body_in_another_encoding_is_sent_as_it_is(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_gbk", queues=1)
    # As Python reads an argument of a terminal with another encoding.
    argument = "航班".encode("gbk").decode(errors="surrogateescape")

    sent = smq("send", "T_gbk", argument)
    read = smq.json("tail", "T_gbk")
    copy = smq("msg", "resend", read["msg_id"], "--topic", "T_gbk", "--set-body", argument, "--yes")
    tag = smq("send", "T_gbk", "x", "--tag", argument)

    assert (sent.exit_code, copy.exit_code) == (0, 0)
    assert base64.b64decode(read["body_base64"]) == "航班".encode("gbk")
    assert tag.exit_code == 2
    assert "which UTF-8 cannot encode" in tag.stderr
    assert "SPARROWMQ_CLI" not in tag.stderr


def test_lines_of_standard_input_and_of_files_are_messages(
    smq: Commands, shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("T_lines", queues=1)
    file = tmp_path / "lines"
    file.write_bytes(b"a\n\nb\r\n" + b"c" * 100_000)
    numbers = "".join(f"{number}\n" for number in range(1_000))

    from_stdin = smq("send", "T_lines", stdin=numbers)
    from_file = smq.json("send", "T_lines", "--file", str(file))
    whole = smq("send", "T_lines", "--file", str(file), "--whole")

    assert "sent 1,000 messages to T_lines" in from_stdin.stderr
    assert from_file == {"topic": "T_lines", "sent": 3}
    assert whole.exit_code == 0
    read = bodies(smq, "T_lines", "--from", "earliest")
    assert [str(number) for number in range(1_000)] == read[:1_000]
    assert ["a", "b", "c" * 100_000, file.read_bytes().decode()] == read[1_000:]


def test_lines_with_a_sharding_key_go_to_its_queue_in_order(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_sharded", queues=8)
    key = ("--sharding-key", "LH-1")
    alone = smq.json("send", "T_sharded", "0", *key)

    assert smq("send", "T_sharded", *key, stdin="1\n2\n3\n").exit_code == 0

    queue = ("--queue", f"{alone['broker']}:{alone['queue']}")
    assert bodies(smq, "T_sharded", "--from", "earliest", *queue) == ["0", "1", "2", "3"]


def test_lines_that_were_sent_before_a_failure_are_counted(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_broken_lines", queues=1)
    long = "x" * (MESSAGE_BYTES_MAX + 1)

    found = smq("send", "T_broken_lines", stdin="\n".join([*"ab" * 500, "", long]))
    none = smq("send", "T_broken_lines", stdin=long)

    assert (found.exit_code, none.exit_code) == (2, 2)
    counted, failed = found.stderr.splitlines()
    sent = len(bodies(smq, "T_broken_lines", "--from", "earliest"))
    assert sent
    assert counted == f"sparrowmq: sent {sent:,} messages to T_broken_lines, up to line {sent}"
    assert failed.startswith("sparrowmq: line 1002 is longer than ")
    assert len(none.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--file", "y"], "give a body or --file"),
        (["x", "--property", "a"], "write NAME=VALUE"),
        (["x", "--queue", "3"], "write BROKER:ID"),
        (["x", "--queue", "broker-a:9"], "has no queue broker-a:9 for this; it has broker-a:0 to"),
        (["x", "--queue", "broker-b:0"], "has no queue broker-b:0 for this; it has broker-a:0 to"),
        (["--file", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        # It can be opened.
        (["--file", "/proc/self/mem"], "cannot read /proc/self/mem: "),
        (["--file", "/proc/self/mem", "--whole"], "cannot read /proc/self/mem: "),
        (["x", "--key", "a b"], "key"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    smq: Commands, shared_cluster: EmbeddedCluster, arguments: list[str], words: str
) -> None:
    shared_cluster.create_topic("T_wrong", queues=1)

    result = smq("send", "T_wrong", *arguments)

    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_tail_shows_the_last_ones_and_filters(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_tail", queues=4)
    for number in range(12):
        options = ["--tag", "odd" if number % 2 else "even", "--key", f"k{number}"]
        assert smq("send", "T_tail", str(number), "-p", f"n={number}", *options).exit_code == 0

    assert bodies(smq, "T_tail", "--last", "3") == ["9", "10", "11"]
    assert bodies(smq, "T_tail", "--tag", "odd", "--last", "6")[:2] == ["1", "3"]
    assert bodies(smq, "T_tail", "--tag", "even", "--last", "2") == ["8", "10"]
    assert bodies(smq, "T_tail", "--key", "k5", "--last", "1") == ["5"]
    assert sorted(bodies(smq, "T_tail", "--sql", "n > 9")) == ["10", "11"]
    assert len(bodies(smq, "T_tail", "--from", "earliest", "--limit", "2")) == 2
    assert bodies(smq, "T_tail", "--from", "latest") == []
    both = smq("tail", "T_tail", "--tag", "a", "--sql", "b > 1")
    odd = smq("tail", "T_tail", "--sql", "n >")
    assert [
        (both.exit_code, "not both" in both.stderr),
        (odd.exit_code, "n >" in odd.stderr),
    ] == [(2, True), (2, True)]


def test_tail_shows_messages_of_a_millisecond_in_the_order_of_storing(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    topic = "T_millisecond"
    shared_cluster.create_topic(topic, queues=2)
    with Producer("GID_p", name_server=shared_cluster.name_server) as producer:
        first, second = producer.fetch_publish_queues(topic)
        producer.send_batch([Message(topic, b"x")] * 200, queue=second)
        for number in range(200):
            queue = first if number % 2 else second
            producer.send(Message(topic, b"%d" % number), queue=queue)

    assert bodies(smq, topic, "--last", "200") == [str(number) for number in range(200)]


def test_tail_leaves_no_trace(smq: Commands, shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_trace", queues=2)
    smq("send", "T_trace", "x")

    bodies(smq, "T_trace", "--from", "earliest")

    # Whoever has committed something is named here, RocketMQ's own groups included.
    assert smq.json("topic", "show", "T_trace")["groups"] == []


def test_message_that_cannot_be_read_is_named_and_passed_over(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_poison", queues=1)
    smq("send", "T_poison", "before")
    send_stored(shared_cluster.broker, MessageQueue("T_poison", "broker-a", 0), b"no zlib")
    smq("send", "T_poison", "after")

    result = smq("tail", "T_poison", "--body")

    assert result.stdout.splitlines() == ["before", "after"]
    assert "cannot be read" in result.stderr


@pytest.fixture
def following(shared_cluster: EmbeddedCluster) -> Iterator[subprocess.Popen[str]]:
    shared_cluster.create_topic("T_follow", queues=2)
    command = [sys.executable, "-m", "sparrowmq", "tail", "T_follow", "--follow", "--body"]
    process = subprocess.Popen(
        [*command, "--nameserver", shared_cluster.name_server],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_follow_prints_what_comes_until_ctrl_c(
    smq: Commands, following: subprocess.Popen[str]
) -> None:
    lines: list[str] = []
    assert following.stdout is not None
    stdout = following.stdout
    reader = threading.Thread(target=lambda: lines.extend(iter(stdout.readline, "")))
    reader.start()
    smq("send", "T_follow", "first")
    wait_until("the first message", lambda: lines == ["first\n"])
    smq("send", "T_follow", "second")
    wait_until("the second", lambda: lines == ["first\n", "second\n"])

    following.send_signal(2)

    assert following.wait(60) == 130
    reader.join(60)
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_reader_that_has_enough_ends_tail(shared_cluster: EmbeddedCluster, smq: Commands) -> None:
    shared_cluster.create_topic("T_pipe", queues=1)
    smq("send", "T_pipe", stdin="".join(f"{n}\n" for n in range(20_000)))
    words = ["tail", "T_pipe", "--from", "earliest", "--body", "-n", shared_cluster.name_server]
    command = shlex.join([sys.executable, "-m", "sparrowmq", *words])

    result = subprocess.run(
        ["/bin/sh", "-c", f"{command} | head -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (result.stdout, result.stderr) == ("0\n", "")


def test_dead_letters_are_listed_shown_and_sent_again(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_dead", queues=1)
    attempts: list[Any] = []

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        attempts.extend(messages)
        is_second = len(attempts) > 1
        return ConsumeStatus.CONSUME_SUCCESS if is_second else ConsumeStatus.RECONSUME_LATER

    with PushConsumer(
        "GID_dead",
        "T_dead",
        name_server=shared_cluster.name_server,
        listener=listen,
        start="first",
        max_reconsume_times=0,
    ):
        smq("send", "T_dead", "hard to digest", "--key", "d1")
        wait_until("a dead letter", lambda: smq.json("dlq", "show", "GID_dead"), timeout_s=30)

        letters = {row["group"]: row["messages"] for row in smq.json("dlq", "ls")}
        assert letters["GID_dead"] == 1
        rows = {row["group"]: row for row in smq.json("group", "ls")}
        assert rows["GID_dead"]["dead_letters"] == 1
        failed = smq.json("group", "show", "GID_dead")["failed"]
        assert (failed["dead_letters"], failed["last_dead_letter_timestamp_ms"] is None) == (
            1,
            False,
        )
        (letter,) = smq.json("dlq", "show", "GID_dead")
        assert (letter["body"], letter["keys"]) == ("hard to digest", ["d1"])
        for wrong in (("--key", "d2"), ("--id", "NONE")):
            none = smq("dlq", "show", "GID_dead", *wrong, "--json")
            assert (none.exit_code, none.stdout) == (1, "[]\n")
            assert "group GID_dead has no dead letter with" in none.stderr
        assert not smq.json("dlq", "resend", "GID_dead")["applied"]
        unknown = smq("dlq", "resend", "GID_dead", "--key", "d2", "--yes")
        assert (
            "nothing to change: group GID_dead has no dead letter with key 'd2'" in unknown.stderr
        )
        assert (letter["resent_by"], letter["resent_timestamp_ms"]) == (None, None)
        edits = ("--set-body", "soft", "--set-tag", "eased", "--set-property", "why=too hard")
        resend = ("dlq", "resend", "GID_dead", "--id", letter["msg_id"], *edits)
        (row,) = smq.json(*resend)["changes"]
        assert (row["body"], row["tag"]) == ("hard to digest → soft", "– → eased")
        assert smq.json(*resend, "--yes")["applied"]
        wait_until("a second attempt", lambda: len(attempts) == 2, timeout_s=60)
        copy = attempts[1]
        assert (copy.body, copy.tags, copy.keys) == (b"soft", "eased", ("d1",))
        by = copy.properties["RESENT_BY"]
        assert by == find_operator()
        assert copy.properties["RESENT_FROM"] == "%DLQ%GID_dead broker-a:0:0"
        assert copy.properties["why"] == "too hard"
        (letter,) = smq.json("dlq", "show", "GID_dead")
        assert letter["resent_by"] == by
        # The copy has the client's time, and the record the broker's, who got the copy later.
        assert 0 <= letter["resent_timestamp_ms"] - int(copy.properties["RESENT_AT"]) < 60_000
        assert smq("dlq", "show", "GID_dead", "--format", "raw").stdout == "hard to digest"
        once_more = ("dlq", "resend", "GID_dead")
        left_out = smq(*once_more, "--yes")
        assert "left out: 1 message sent again before; --again sends these too" in left_out.stderr
        assert "nothing to change: group GID_dead has no other dead letter" in left_out.stderr
        (row,) = smq.json(*once_more, "--again")["changes"]
        assert (row["body"], row["resent_by"]) == ("hard to digest", by)
        (change, *_) = smq.json("group", "show", "GID_dead")["changes"]
        assert (change["kind"], change["detail"]) == ("sent again", f"by {by}")

        # Without letters and with a member.
        with PushConsumer(
            "GID_careful",
            "T_dead",
            name_server=shared_cluster.name_server,
            listener=lambda messages, context: None,
        ):
            none = smq("dlq", "show", "GID_careful")

    assert (none.exit_code, "has no dead letters" in none.stderr) == (0, True)
    for command in ("show", "resend"):
        misspelt = smq("dlq", command, "GID_carefull")
        assert (misspelt.exit_code, "GID_careful" in misspelt.stderr) == (2, True)


def test_dead_letters_that_cannot_be_read_are_not_taken_for_none(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    queue = MessageQueue("%DLQ%GID_unread", "broker-a", 0)
    shared_cluster.create_topic(queue.topic, queues=1)
    for _ in range(2):
        send_stored(shared_cluster.broker, queue, b"no zlib")

    unread = smq("dlq", "resend", "GID_unread", "--yes").stderr

    assert unread.count("cannot be read: ") == 2
    assert "GID_unread has no dead letter that can be read; 2 messages cannot be read" in unread


def test_the_newest_dead_letters_are_chosen_and_get_no_body_together(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("%DLQ%GID_two", queues=1)
    for body in ("one", "two"):
        smq("send", "%DLQ%GID_two", body, "--key", "k")

    newest = smq.json("dlq", "show", "GID_two", "--key", "k", "--last", "1")
    refused = smq("dlq", "resend", "GID_two", "--set-body", "x")

    assert [letter["body"] for letter in newest] == ["two"]
    assert (refused.exit_code, "2 dead letters would get one body" in refused.stderr) == (2, True)


def test_a_dead_letter_is_found_by_its_id_behind_many_newer_ones(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("%DLQ%GID_many", queues=1)
    smq("send", "%DLQ%GID_many", stdin="\n".join(map(str, range(12))))
    oldest, *_ = smq.json("dlq", "show", "GID_many", "--last", "12")

    found = smq.json("dlq", "show", "GID_many", "--id", oldest["msg_id"])

    assert [letter["body"] for letter in found] == ["0"]


def test_a_message_is_sent_again_as_previewed(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_again", queues=1)
    sent = smq.json("send", "T_again", "40 EUR", "--tag", "paid", "-k", "o1", "-p", "host=web-1")
    resend = ("msg", "resend", sent["msg_id"], "-t", "T_again", "--set-body", "4 EUR")
    preview = smq.json(*resend)
    before = smq.json("topic", "show", "T_again")
    applied = smq.json(*resend, "--set-property", "host=", "--yes")
    first, copy = map(json.loads, smq("tail", "T_again", "--json").stdout.splitlines())
    refused = smq(*resend, "--set-property", "KEYS=x")

    assert (preview["applied"], applied["applied"]) == (False, True)
    assert preview["changes"][0]["body"] == "40 EUR → 4 EUR"
    assert before["queues"][0]["max_offset"] == 1
    assert (first["body"], copy["body"]) == ("40 EUR", "4 EUR")
    assert (copy["tags"], copy["keys"]) == ("paid", ["o1"])
    assert copy["msg_id"] != first["msg_id"]
    assert "host" not in copy["properties"]
    assert copy["properties"]["RESENT_BY"] == find_operator()
    assert copy["properties"]["RESENT_FROM"] == "T_again broker-a:0:0"
    assert refused.exit_code == 2
    assert "property 'KEYS' is reserved" in refused.stderr


def test_bodies_are_shown_as_what_they_are() -> None:
    shown = {
        (body, kind): format_body(body, kind)
        for body, kind in [
            (b'{"a": 1}', BodyFormat.AUTO),
            ("grün".encode(), BodyFormat.AUTO),
            (b"\xff\x00", BodyFormat.AUTO),
            (b"ab", BodyFormat.HEX),
            (b'{"a": 1}', BodyFormat.TEXT),
        ]
    }

    assert list(shown.values()) == ['{"a":1}', "grün", "ff 00", "61 62", '{"a": 1}']
    # On lines, the first would take 58 MB; Python reads the second no deeper than 1,000.
    for nested in (f"[{','.join(['[' * 900 + ']' * 900] * 36)}]", "[" * 32_768 + "]" * 32_768):
        assert shorten_body(nested.encode(), BodyFormat.AUTO) == nested


@pytest.mark.parametrize(
    ("unit", "kind", "text"),
    [
        (b"\x00", BodyFormat.AUTO, r"\x00" * BODY_BYTES_MAX),
        (b"\xff", BodyFormat.AUTO, ("ff " * BODY_BYTES_MAX)[:-1]),
        ("中".encode(), BodyFormat.AUTO, "中" * (BODY_BYTES_MAX // 3)),
        (b"1,", BodyFormat.JSON, "1," * (BODY_BYTES_MAX // 2)),
        (b"a", BodyFormat.HEX, ("61 " * BODY_BYTES_MAX)[:-1]),
    ],
)
def test_a_long_body_is_shown_in_part(unit: bytes, kind: BodyFormat, text: str) -> None:
    shown = shorten_body(unit * (1 << 20), kind)

    assert shown == f"{text}… ({len(unit) << 20:,} bytes; --json shows all)"


def test_no_body_speaks_to_the_terminal() -> None:
    assert escape("\x1b[31mred\x07 \u202e") == r"\x1b[31mred\x07 \u202e"
    for kind in BodyFormat:
        assert "\x1b" not in format_body(b'{"a": "\x1b[2J\xff"}', kind)


def test_no_other_text_of_a_message_does_either() -> None:
    evil = "\x1b]0;x\x07"
    properties = {"TAGS": evil, "KEYS": evil, "UNIQ_KEY": evil, "p": evil, evil: "v"}
    message = replace(queue_message(0), properties=properties)
    out = StringIO()
    console = Console(file=out, width=1_000)

    console.print(line_of_message(message, BodyFormat.AUTO))
    print_message(console, message, BodyFormat.AUTO)
    print_rows([row_of_copy(message, Edit())], COPY_COLUMNS, console=console)

    assert "\x1b" not in out.getvalue()
    # Twice on the line, in full five times, and as many in the row of a copy.
    assert out.getvalue().count(escape(evil)) == 12


def test_a_long_name_of_a_property_stands_apart_from_its_value() -> None:
    name = "ORIGIN_MESSAGE_ID_OF_OLD"
    out = StringIO()

    print_message(
        Console(file=out, width=1_000),
        replace(queue_message(0), properties={name: "7F00"}),
        BodyFormat.AUTO,
    )

    assert f"  {name} 7F00\n" in out.getvalue()


def test_progress_is_shown_on_a_terminal_only(shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_bar", queues=1)
    main, follower = pty.openpty()
    command = [sys.executable, "-m", "sparrowmq", "send", "T_bar"]
    try:
        result = subprocess.run(
            [*command, "-n", shared_cluster.name_server],
            input=b"".join(b"%d\n" % number for number in range(2_000)),
            stdout=subprocess.PIPE,
            stderr=follower,
            timeout=60,
            check=False,
        )
    finally:
        os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(main, 65_536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(main)

    assert (result.returncode, result.stdout) == (0, b"")
    assert b"messages" in seen
    assert b"sent 2,000 messages" in seen


def test_a_message_beyond_the_limit_is_refused_and_not_cut(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_too_long", queues=1)

    whole = smq("send", "T_too_long", "--whole", stdin="x" * (MESSAGE_BYTES_MAX + 1))

    assert (whole.exit_code, "more than 4,194,304 bytes" in whole.stderr) == (2, True)
    assert bodies(smq, "T_too_long", "--from", "earliest") == []


def test_a_line_of_the_longest_message_is_sent_whole(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_longest", queues=1)
    line = "x" * MESSAGE_BYTES_MAX

    sent = smq.json("send", "T_longest", stdin=f"a\n{line}\r\n{line}\nb")
    longer = smq("send", "T_longest", stdin=f"{line}x\n")

    assert sent["sent"] == 4
    assert (longer.exit_code, "line 1 is longer" in longer.stderr) == (2, True)
    read = bodies(smq, "T_longest", "--from", "earliest")
    assert [len(body) for body in read] == [1, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, 1]


def test_lines_go_to_the_queue_that_is_named_also_delayed(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_to_queue", queues=8)

    for _ in range(2):
        assert smq("send", "T_to_queue", "-q", "broker-a:5", stdin="1\n2\n3\n").exit_code == 0
    delayed = smq("send", "T_to_queue", "--delay-level", "18", stdin="1\n2\n")

    queues = smq.json("topic", "show", "T_to_queue")["queues"]
    assert [queue["messages"] for queue in queues] == [0, 0, 0, 0, 0, 6, 0, 0]
    assert (delayed.exit_code, "sent 2 messages" in delayed.stderr) == (0, True)


def test_lines_keep_their_blanks(smq: Commands, shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_blanks", queues=1)

    assert smq("send", "T_blanks", stdin="  a \t\r\n\n   \nb").exit_code == 0

    read = smq("tail", "T_blanks", "--json").stdout.splitlines()
    assert [json.loads(line)["body"] for line in read] == ["  a \t", "   ", "b"]


def test_messages_are_found_within_the_times_given(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_when", queues=1)
    smq("send", "T_when", "x", "--key", "k")
    find = ("msg", "find", "k", "--topic", "T_when")

    assert [each["body"] for each in smq.json(*find, "--from", "1h", "--to", "0s")] == ["x"]
    for times in (("--to", "1h"), ("--from", "2100-01-01T00:00")):
        assert smq(*find, *times).exit_code == 1, times


def test_following_goes_on_with_messages_of_the_key_alone(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_keys", queues=1)
    with open_cluster(ConnectionOptions(shared_cluster.name_server, timeout=10.0)) as cluster:
        browser = cluster.run(
            open_browser(cluster.directory, "T_keys", start=Start(is_latest=True))
        )
        for key in ("other", "wanted"):
            smq("send", "T_keys", key, "--key", key)
        found = tail_messages(cluster, browser, None, "wanted", follows=True)

        assert next(found).body == b"wanted"
        found.close()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"price": 1.10, "n": [1e5, -0]}', '{"price":1.10,"n":[1e5,-0]}'),
        (b"[12345678901234567890.125, 0.1000000000000000000001]", None),
        (b'{"a": 1, "a": 2}', '{"a":1,"a":2}'),
        (rb'{"\u4e2d": "\u6587 \" \n"}', '{"中":"文 \\" \\n"}'),
        ('{"a": "中 文"}'.encode("utf-16"), '{"a":"中 文"}'),
    ],
)
def test_a_body_of_json_has_the_numbers_and_names_that_were_sent(
    body: bytes, shown: str | None
) -> None:
    expected = body.decode().replace(" ", "") if shown is None else shown

    assert format_body(body, BodyFormat.AUTO) == expected
