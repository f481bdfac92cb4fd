"""The alert rules of `packaging/prometheus`, judged by Prometheus's own promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from asked_series import wrong_names

RULES = Path(__file__).parents[2] / "packaging/prometheus/sparrowmq.rules.yml"

HEALTHY = {
    "sparrowmq_up": "1x120",
    "sparrowmq_last_snapshot_timestamp_seconds": "0+15x120",
    'sparrowmq_broker_up{broker="a",cluster="C"}': "1x120",
    'sparrowmq_broker_disk_used_ratio{broker="a",cluster="C"}': "0.6x120",
    'sparrowmq_broker_dispatch_behind_bytes{broker="a",cluster="C"}': "4096x120",
    'sparrowmq_group_members{group="G"}': "3x120",
    'sparrowmq_group_lag{group="G",topic="T"}': "10 20 5 0 30 10x115",
    'sparrowmq_group_lag_seconds{group="G",topic="T"}': "2x120",
    'sparrowmq_group_dead_letters{group="G",broker="a"}': "7x120",
    'sparrowmq_group_retried{group="G",broker="a"}': "40x120",
    'sparrowmq_group_retry_lag{group="G"}': "0x120",
    # A handover of a few seconds.
    'sparrowmq_unowned_queues{group="G"}': "0 2 0 0x117",
    'sparrowmq_duplicate_client_ids{group="G"}': "0x120",
    'sparrowmq_rebalance_total{group="G",reason="joined"}': "0 1 2 2x117",
}
FAULTS: dict[str, dict[str, str]] = {
    "SparrowmqClusterNotSeen": {"sparrowmq_up": "0x120"},
    "SparrowmqBrokerDown": {'sparrowmq_broker_up{broker="a",cluster="C"}': "0x120"},
    "SparrowmqDiskFills": {
        'sparrowmq_broker_disk_used_ratio{broker="a",cluster="C"}': "0.8+0.001x120"
    },
    "SparrowmqDispatchBehind": {
        'sparrowmq_broker_dispatch_behind_bytes{broker="a",cluster="C"}': "100000000x120"
    },
    "SparrowmqDuplicateClientIds": {'sparrowmq_duplicate_client_ids{group="G"}': "1x120"},
    "SparrowmqUnownedQueues": {'sparrowmq_unowned_queues{group="G"}': "4x120"},
    "SparrowmqNobodyConsumes": {'sparrowmq_group_members{group="G"}': "0x120"},
    "SparrowmqFallsBehind": {
        'sparrowmq_group_lag{group="G",topic="T"}': "0+100x120",
        'sparrowmq_group_lag_seconds{group="G",topic="T"}': "0+15x120",
    },
    "SparrowmqDeadLetters": {'sparrowmq_group_dead_letters{group="G",broker="a"}': "7+1x120"},
    "SparrowmqMessagesFail": {
        'sparrowmq_group_retried{group="G",broker="a"}': "40+5x120",
        'sparrowmq_group_retry_lag{group="G"}': "3x120",
    },
    "SparrowmqRestlessGroup": {
        'sparrowmq_rebalance_total{group="G",reason="joined"}': "0+1x120",
    },
}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_rules_ask_for_series_that_exist_by_labels_that_they_have() -> None:
    assert wrong_names(rule["expr"] for rule in rules()) == []


def test_every_rule_has_a_fault_that_shows_it() -> None:
    assert [rule["alert"] for rule in rules()] == list(FAULTS)


def test_rules_join_series_by_labels_that_both_have() -> None:
    # One that is added up has no label of its target.
    joined = [part for rule in rules() for part in rule["expr"].split(" and ")[1:]]

    assert joined
    assert [part for part in joined if not part.startswith("on (group")] == []


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (prometheus)")
@pytest.mark.parametrize("alert", ["none", *FAULTS])
def test_each_fault_raises_its_alert_and_a_healthy_cluster_none(alert: str, tmp_path: Path) -> None:
    faulty = {**HEALTHY, **FAULTS.get(alert, {})}
    # Prometheus gives each series the labels of its target.
    target = '{instance="127.0.0.1:9557",job="rocketmq"'
    series = {
        name.replace("{", f"{target},") if "{" in name else f"{name}{target}}}": values
        for name, values in faulty.items()
    }
    expected = [] if alert == "none" else [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "25m",
                "exp_samples": expected,
            }
        ],
    }
    file = tmp_path / "alerts.test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [case]}))

    result = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
