"""Spark and access control: what the keys allow, and where the secret never stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq import Admin
from sparrowmq.testing import EmbeddedCluster

# A session of its own.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

JOB = Path(__file__).with_name("access_job.py")
SECRET = "hush-hush-4711"
ACCOUNTS = (
    ("spark-job", SECRET),
    ("spark-reader", SECRET),
    ("spark-job", "wrong-secret-4712"),
    ("", ""),
)
RULES = f"""\
accounts:
  - {{accessKey: administrator, secretKey: of-the-administrator, admin: true}}
  - accessKey: spark-job
    secretKey: {SECRET}
    topicPerms: [orders=PUB|SUB]
    groupPerms: [GID_spark=SUB]
  - accessKey: spark-reader
    secretKey: {SECRET}
    topicPerms: [orders=SUB]
    groupPerms: [GID_spark=SUB]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    root = tmp_path_factory.mktemp("guarded")
    (root / "plain_acl.yml").write_text(RULES)
    options = ("--acl", str(root / "plain_acl.yml"))
    with EmbeddedCluster(root / "data", options=options) as found:
        keys = {"access_key": "administrator", "secret_key": "of-the-administrator"}
        with Admin(name_server=found.name_server, **keys) as admin:  # type: ignore[arg-type]
            admin.create_topic("orders", 2)
            admin.create_topic("secret", 2)
        yield found


@pytest.fixture(scope="module")
def said(
    cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], str]:
    """What the steps came to for each account, and all that Spark logged, printed and wrote."""
    out = tmp_path_factory.mktemp("access")
    (out / "events").mkdir()
    keys = [key for account in ACCOUNTS for key in account]
    done = subprocess.run(
        [sys.executable, str(JOB), cluster.name_server, str(out), *keys],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(out / "local")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    files = [path for path in out.rglob("*") if path.is_file()]
    texts = [path.read_bytes().decode(errors="replace") for path in files]
    assert any(path.parent.name.startswith(("events", "eventlog")) for path in files), files
    return json.loads(done.stdout.splitlines()[-1]), "\n".join([done.stdout, done.stderr, *texts])


@pytest.fixture
def found(said: tuple[list[dict[str, Any]], str]) -> list[dict[str, Any]]:
    return said[0]


def test_right_keys_write_read_stream_and_serve_sql(found: list[dict[str, Any]]) -> None:
    right = found[0]

    assert tuple(right[name] for name in ("write", "read", "stream", "sql")) == (None, 10, 10, 11)
    assert "Physical Plan" in right["plan"]
    assert "topic: secret" in right["other topic"]


def test_an_account_that_may_only_read_is_told_so(found: list[dict[str, Any]]) -> None:
    reader = found[1]

    assert reader["read"] == 11
    assert "No default permission for topic: orders" in reader["write"]


def test_wrong_and_missing_keys_are_one_line(found: list[dict[str, Any]]) -> None:
    for refused in found[2:]:
        for name in ("write", "read", "stream", "sql"):
            assert "sparrowmq: " in str(refused[name]), refused
            assert "accessKey and secretKey" in refused[name]


def test_no_secret_is_logged_printed_or_written(said: tuple[list[dict[str, Any]], str]) -> None:
    assert [secret for _, secret in ACCOUNTS if secret and secret in said[1]] == []
