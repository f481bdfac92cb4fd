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

# Four sessions of their own.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("access_job.py")
SECRET = "hush-hush-4711"
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


def run_job(
    cluster: EmbeddedCluster, out: Path, access_key: str, secret_key: str
) -> tuple[dict[str, Any], str]:
    """Return what the steps came to, and all that Spark logged, printed and wrote."""
    (out / "events").mkdir()
    done = subprocess.run(
        [sys.executable, str(JOB), cluster.name_server, str(out), access_key, secret_key],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(out / "local")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    files = [path for path in out.rglob("*") if path.is_file()]
    texts = [path.read_bytes().decode(errors="replace") for path in files]
    events = [path for path in files if path.parent.name.startswith(("events", "eventlog"))]
    assert events, files
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, "\n".join([done.stdout, done.stderr, *texts])


def test_right_keys_write_read_stream_and_serve_sql(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    found, written = run_job(cluster, tmp_path, "spark-job", SECRET)

    assert tuple(found[name] for name in ("write", "read", "stream", "sql")) == (None, 10, 10, 11)
    assert "Physical Plan" in found["plan"]
    assert "topic: secret" in found["other topic"]
    assert SECRET not in written


def test_an_account_that_may_only_read_is_told_so(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    found, written = run_job(cluster, tmp_path, "spark-reader", SECRET)

    assert isinstance(found["read"], int)
    assert "No default permission for topic: orders" in found["write"]
    assert SECRET not in written


@pytest.mark.parametrize(
    ("access_key", "secret_key"), [("spark-job", "wrong-secret-4712"), ("", "")]
)
def test_wrong_and_missing_keys_are_one_line_and_no_secret(
    cluster: EmbeddedCluster, tmp_path: Path, access_key: str, secret_key: str
) -> None:
    found, written = run_job(cluster, tmp_path, access_key, secret_key)

    for name in ("write", "read", "stream", "sql"):
        assert "sparrowmq: " in str(found[name]), found
        assert "accessKey and secretKey" in found[name]
    assert SECRET not in written
    assert not secret_key or secret_key not in written
