"""The Grafana dashboard and the table of series name the same things."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from asked_series import wrong_names
from commands import starting
from group_stage import GroupStage, take_all
from sparrowmq import Message, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

PACKAGING = Path(__file__).parents[2] / "packaging"
DASHBOARD = PACKAGING / "grafana/sparrowmq.json"
RULES = PACKAGING / "prometheus/sparrowmq.rules.yml"


@contextmanager
def client(stage: GroupStage) -> Generator[str]:
    """Send and consume with a registry; yield where Prometheus finds its series."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, "127.0.0.1", registry=registry)
    try:
        with (
            Producer(
                "GID_c", name_server=stage.cluster.name_server, metrics_registry=registry
            ) as producer,
            PushConsumer(
                "GID_c",
                stage.topic,
                name_server=stage.cluster.name_server,
                listener=take_all,
                metrics_registry=registry,
            ),
        ):
            producer.send(Message(stage.topic, b"x"))
            yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_board_asks_for_series_that_exist_by_labels_that_they_have() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    asked = panel_expressions()
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]

    assert wrong_names(asked) == []
    assert len(asked) > 15


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = {
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    }

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(taken) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in panels)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")
def test_prometheus_finds_a_series_for_each_panel_and_loads_the_rules(
    cluster: EmbeddedCluster, stage: GroupStage, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with starting() as start, ExitStack() as held:
        at = ("--nameserver", cluster.name_server, "--port", "0", "--interval", "1")
        exporter = start("metrics", *at)
        assert exporter.stdout is not None
        targets = [exporter.stdout.readline().split("/")[2], held.enter_context(client(stage))]
        config = {
            "global": {"scrape_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "mq", "static_configs": [{"targets": targets}]}],
        }
        file = tmp_path / "prometheus.yml"
        file.write_text(json.dumps(config))
        process = held.enter_context(
            subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={file}",
                    f"--storage.tsdb.path={tmp_path / 'series'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        held.callback(process.terminate)

        def ask(what: str) -> Any:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=20) as answer:
                return json.load(answer)["data"]

        def has_seen() -> bool:
            try:
                found = ask("query?query=sparrowmq_up")["result"]
            except OSError:
                return False
            return bool(found) and found[0]["value"][1] == "1"

        wait_until("a scrape", has_seen)
        # Twins: two queues have two owners, two have none, and the doctor finds that.
        stage.start_process("twin")
        # A rebalance is counted of a group that was seen before it.
        of_group = urlencode({"query": f'sparrowmq_group_members{{group="{stage.group}"}} == 1'})
        wait_until("the first twin's series", lambda: ask(f"query?{of_group}")["result"])
        stage.start_process("twin")
        stage.send([b"x"] * 4)

        def empty() -> list[str]:
            return [
                expression
                for expression in panel_expressions()
                if not ask(f"query?{urlencode({'query': expression.replace('$group', '.*')})}")[
                    "result"
                ]
            ]

        with suppress(pytest.fail.Exception):
            wait_until("a series for each panel", lambda: empty() == [], timeout_s=120)
        assert empty() == []
        (group,) = ask("rules")["groups"]

    assert [rule["name"] for rule in group["rules"] if rule["health"] == "err"] == []
    assert len(group["rules"]) > 10
