"""An archive of the classes that Spark loads: with it a JVM starts in half the processor time.

Java maps the archive (class-data sharing) where it would read, verify and link each class, and
leaves it aside where the JVM has other jars or is another one.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pyspark

from sparrowmq.errors import ConfigError
from sparrowmq.spark.java import find_java

ROOT = Path(__file__).resolve().parents[2]
# Reads, writes, streams and ingests.
JOB = ROOT / "tests" / "spark" / "odd_paths_job.py"


@functools.cache
def use_class_archive() -> None:
    """Let each JVM of Spark that this process and its children start use the archive; make it once.

    Without a Java, or with one that lacks an archive of its own classes, nothing is done.
    """
    try:
        java = find_java().path.resolve()
    except ConfigError:
        return
    if "PYSPARK_SUBMIT_ARGS" in os.environ or not (java / "lib/server/classes.jsa").exists():
        return
    parts = pyspark.__file__, pyspark.__version__, str(java), (java / "release").read_text()
    archive = ROOT / f".cache/spark-classes-{zlib.crc32(repr(parts).encode()):08x}.jsa"
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    if archive.exists():
        os.environ["PYSPARK_SUBMIT_ARGS"] = _arguments(f"-XX:SharedArchiveFile={archive}")


def _make(archive: Path) -> None:
    whole = archive.with_suffix(".new")
    option = f"-XX:ArchiveClassesAtExit={whole}"
    with tempfile.TemporaryDirectory() as directory:
        # Its output ends when its JVM has written the archive and ends.
        subprocess.run(
            [sys.executable, str(JOB), directory],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": _arguments(option)},
            cwd=directory,
            capture_output=True,
            check=False,
        )
    if whole.exists():
        whole.rename(archive)


def _arguments(option: str) -> str:
    return f"""--conf 'spark.driver.defaultJavaOptions="{option}" -Xlog:disable' pyspark-shell"""
