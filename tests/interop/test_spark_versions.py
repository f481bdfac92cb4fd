"""The versions of PySpark beside the one of the lock, each in an environment of its own.

pip makes it once, in `.cache`: some 450 MB, of which PySpark's archive is most.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("spark_version_job.py")
# What the source needs, and what Spark Connect does.
_LIBRARIES = (
    *("pyarrow>=18", "numpy>=2", "pandas>=2.2,<3", "msgspec>=0.19", "uvloop>=0.21"),
    *("grpcio>=1.67", "grpcio-status>=1.67", "googleapis-common-protos>=1.65", "zstandard>=0.22"),
)
ALL = list(range(300))
DELTA, AVRO = "4.1.0", "4.2.0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("data")) as found:
        yield found


def python_with(version: str) -> Path:
    """Return a Python that has this version of PySpark and not this package; made once."""
    place = ROOT / ".cache" / f"pyspark-{version}"
    if not place.exists():
        fresh = place.with_suffix(".part")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(fresh)], check=True)
        pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"pyspark=={version}.*", *_LIBRARIES], check=True)
        fresh.rename(place)
    return place / "bin" / "python"


def jars(group: str, *artifacts: str, version: str) -> str:
    """Return jars from Maven Central; skips where there is no Maven."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"no Maven, which gets {', '.join(artifacts)}")
    found = [ROOT / ".cache" / f"{group}-{version}" / f"{name}-{version}.jar" for name in artifacts]
    for artifact, jar in zip(artifacts, found, strict=True):
        if not jar.exists():
            copy = "org.apache.maven.plugins:maven-dependency-plugin:copy"
            options = [
                f"-Dartifact={group}:{artifact}:{version}",
                f"-DoutputDirectory={jar.parent}",
            ]
            subprocess.run([maven, "-q", "-B", copy, *options], check=True, timeout=300)
    return ",".join(map(str, found))


def run_job(
    python: Path, kind: str, cluster: EmbeddedCluster, out: Path, *more: str
) -> dict[str, Any]:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK", "PYTHON"))
    }
    done = subprocess.run(
        [str(python), str(JOB), kind, cluster.name_server, str(out), *more],
        env={**environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=out,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("4.0", "classic"),
        ("4.1", "classic"),
        ("4.1", "connect"),
        ("4.2", "classic"),
        ("4.2", "connect"),
    ],
)
def test_a_version_reads_and_writes_and_says_what_it_cannot(
    cluster: EmbeddedCluster, tmp_path: Path, version: str, kind: str
) -> None:
    found = run_job(python_with(version), kind, cluster, tmp_path)

    assert found["version"].startswith(f"{version}.")
    assert found["bodies"] == ALL
    assert found["distinct"] == 300
    assert "option 'createTopic' creates it" in found["no topic"]
    if version == "4.0":
        assert "sparrowmq: a stream needs PySpark 4.1 or newer; this is 4.0" in found["copied"]
    elif version == "4.1":
        assert (found["copied"], found["copies"]) == (None, 300)
        needs = "sparrowmq: option 'maxOffsetsPerTrigger' needs PySpark 4.2 or newer; this is 4.1"
        assert needs in found["limited"]
    else:
        assert (found["copied"], found["limited"], found["copies"]) == (None, None, 600)
    for name in ("parquet", "balance"):
        if kind == "connect":
            assert "a classic Spark session is needed" in found[name]
        else:
            assert found[name] is None


def test_delta_lake_has_each_message_once_also_after_a_replay(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    delta = jars("io.delta", "delta-spark_4.1_2.13", "delta-storage", version=DELTA)

    found = run_job(python_with("4.1"), "delta", cluster, tmp_path, delta)

    assert found["counts"] == [300, 300]


def test_bodies_in_avro_are_rows_or_are_in_quarantine_unchanged(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    # For 4.2, the newest on Maven Central; it runs on 4.3.
    avro = jars("org.apache.spark", "spark-avro_2.13", version=AVRO)

    found = run_job(Path(sys.executable), "avro", cluster, tmp_path, avro)

    assert found["rows"] == [
        [number, None if number % 2 else "Ulm", ["a", None, str(number)], "2026-03-01"]
        for number in range(6)
    ]
    assert found["counts"] == [6, 6, 0]
    assert (found["is unchanged"], found["parses"]) == (True, 1)
    assert found["reasons"] == ["not one Avro record of the schema"]
    assert found["wrong"] == "the Avro schema cannot be read: Undefined schema: text"
