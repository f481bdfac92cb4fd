"""The command line speaks the language of its variables; what programs read stays as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from commands import Commands
from sparrowmq import Message, PollConsumer, Producer
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    others = {"LANGUAGE": "", "LC_ALL": "", "LC_MESSAGES": "", "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-m", "sparrowmq", *arguments],
        env={**os.environ, "PYTHONUTF8": "1", **others, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_in_the_language_of_the_variables() -> None:
    chinese, english = run("topic", "--help", LANG="zh_CN.UTF-8"), run("topic", "--help")

    assert "列出、查看、创建、修改和删除 Topic。" in chinese.stdout
    assert "创建 Topic，并等到客户端可以使用。" in chinese.stdout
    assert "List, show, create, update and delete topics." in english.stdout


def test_help_has_none_of_typers_english_words() -> None:
    for command in ([], ["topic", "create"], ["up"]):
        chinese = run(*command, "--help", LANG="zh_CN.UTF-8").stdout

        assert "用法：" in chinese
        assert "  显示此帮助并退出。" in chinese
        english = r"Usage|Options:|Arguments|Show |Install |required|default: "
        assert re.findall(english, chinese) == []


def test_simulations_are_in_chinese() -> None:
    found = run("rebalance", "simulate", "--queues", "4", "--members", "2", LANG="zh_CN.UTF-8")

    assert "AVG：各成员的队列" in found.stdout
    assert "最大份额 − 最小份额" in found.stdout
    assert "每个成员都必须运行 SparrowMQ" in found.stdout


def test_labels_of_a_message_are_in_chinese(shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("labels", queues=1)
    with Producer("GID_p", name_server=shared_cluster.name_server) as producer:
        producer.send(Message("labels", b"x"))
    asked = ("msg", "at", "labels", "broker-a:0", "0", "-n", shared_cluster.name_server)

    chinese, english = run(*asked, LANG="zh_CN.UTF-8"), run(*asked)

    assert "队列              broker-a:0" in chinese.stdout
    assert "消息体，1 字节" in chinese.stdout
    assert "body, 1 byte " in english.stdout


def test_findings_and_tables_are_in_chinese_and_json_is_not(
    shared_cluster: EmbeddedCluster,
) -> None:
    shared_cluster.create_topic("language", queues=2)
    name_server = shared_cluster.name_server
    with Producer("GID_p", name_server=name_server) as producer:
        producer.send(Message("language", b"x"))
    with PollConsumer(
        "GID_language", "language", name_server=name_server, start="first"
    ) as consumer:
        assert consumer.poll(timeout_ms=20_000)
        consumer.commit()
    options = ("GID_language", "--nameserver", name_server, "--timeout", "10")

    found = run("rebalance", "doctor", *options, "--interval", "0", LANG="zh_CN.UTF-8")
    table = run("group", "show", *options, LANG="zh_CN.UTF-8")
    told = run("rebalance", "doctor", *options, "--interval", "0", "--json", LANG="zh_CN.UTF-8")
    health = run("check", *options[1:], LANG="zh_CN.UTF-8")

    assert "2 个队列" in found.stdout
    assert "办法" in found.stdout
    # Other tests' groups are in this cluster, too.
    assert re.search("1 个 Broker，[0-9]+ 个消费者组，堆积", health.stdout), health.stdout
    assert "堆积" in table.stdout
    titles = ("GID_language 的 Topic", "成员", "失败的消息", "设置", "运维操作，最新的在前")
    assert [title for title in titles if title not in table.stdout.splitlines()] == []
    assert "最大重试次数" in table.stdout
    assert {"rule", "severity", "title", "remedy"} <= json.loads(told.stdout)["findings"][0].keys()
    assert told.stdout.isascii()


def test_changes_are_in_chinese_and_their_json_is_not(shared_cluster: EmbeddedCluster) -> None:
    Commands(shared_cluster.name_server)("group", "update", "GID_changed_in_zh", "--yes")
    at = ("--nameserver", shared_cluster.name_server)
    update = ("group", "update", "GID_changed_in_zh", "--disable", *at)

    table, told = (run(*update, *more, LANG="zh_CN.UTF-8") for more in ((), ("--json",)))

    assert "是 → 否" in table.stdout
    (change,) = json.loads(told.stdout)["changes"]
    assert change["enabled"] == "yes → no"
