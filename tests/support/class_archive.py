"""Make an archive of the classes that Spark loads: with it a JVM starts in half the processor time.

Java maps the archive (class-data sharing) where it would read, verify and link each class, and
leaves it aside where the JVM has other jars or is another one. `make test` makes the archive once:

    python tests/support/class_archive.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# Reads, writes, streams and ingests.
JOB = Path(__file__).resolve().parents[1] / "spark" / "odd_paths_job.py"


def use_class_archive() -> None:
    """Let each JVM of Spark that this process and its children start use the archive, if any."""
    if ARCHIVE.exists():
        os.environ.setdefault("PYSPARK_SUBMIT_ARGS", _arguments("SharedArchiveFile", ARCHIVE))


def make_class_archive() -> None:
    """Make it; nothing without a Java, or with one that lacks the archive of its own classes."""
    whole = ARCHIVE.with_suffix(".new")
    arguments = _arguments("ArchiveClassesAtExit", whole)
    with tempfile.TemporaryDirectory() as directory:
        # Its output ends when its JVM has written the archive and ends.
        subprocess.run(
            [sys.executable, str(JOB), directory],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
            cwd=directory,
            capture_output=True,
            check=False,
        )
    if whole.exists():
        whole.rename(ARCHIVE)


def _arguments(option: str, path: Path) -> str:
    options = f'"-XX:{option}={path}" -Xlog:disable'
    return f"--conf 'spark.driver.defaultJavaOptions={options}' pyspark-shell"


if __name__ == "__main__":
    make_class_archive()
