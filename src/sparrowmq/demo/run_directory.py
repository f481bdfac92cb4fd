"""The output directory: its owner, and its content.

```
DIR/report.html      the report
DIR/figures.json     every figure of the report
DIR/ingest/          the output of the job ingest; its table is DIR/ingest/table
DIR/broker/          the servers' data directory, as of `sparrowmq up`
DIR/run/             other files of the run: logbooks, output of each process
DIR/.sparrowmq-demo  marks the directory as the demo's; locked while a demo runs
```
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sparrowmq.errors import ConfigError

_MARKER = ".sparrowmq-demo"
# A whole run leaves 260 MB; Spark's temporary files come on top.
_FREE_BYTES_MIN = 512 << 20


class DemoDirectory(NamedTuple):
    """The places within an output directory, in the order of the table above.

    Args:
        table: the Parquet table of the job ingest.
        output: the printed output of each process.
    """

    report: Path
    figures: Path
    ingest: Path
    table: Path
    broker: Path
    run: Path
    logbooks: Path
    output: Path

    @classmethod
    def within(cls, root: Path) -> DemoDirectory:
        """Return the places within a directory."""
        ingest, run = root / "ingest", root / "run"
        return cls(
            report=root / "report.html",
            figures=root / "figures.json",
            ingest=ingest,
            table=ingest / "table",
            broker=root / "broker",
            run=run,
            logbooks=run / "logbooks",
            output=run / "output",
        )


@contextmanager
def claim_directory(root: Path) -> Generator[DemoDirectory]:
    """Empty the directory of an earlier demo, and lock the directory during the block.

    Raises: ConfigError if the path is not a directory, the directory has files that are not a
        demo's, is not writable or has too little space, or another demo runs in it.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(_claim(root.absolute()))
        except OSError as error:
            raise ConfigError(
                f"{root} cannot be used: {error.strerror or error}; choose another --out"
            ) from error
        yield directory


@contextmanager
def _claim(root: Path) -> Generator[DemoDirectory]:
    marker = root / _MARKER
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is not a directory; choose another --out")
    if root.is_dir() and not marker.exists() and any(root.iterdir()):
        raise ConfigError(
            f"{root} is not empty and not an earlier demo's; choose another --out, or empty it"
        )
    root.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo runs in {root}; choose another --out") from None
        directory = DemoDirectory.within(root)
        _clear(directory)
        free = shutil.disk_usage(root).free
        if free < _FREE_BYTES_MIN:
            raise ConfigError(
                f"{root} has {free >> 20:,} MiB of space and the demo needs "
                f"{_FREE_BYTES_MIN >> 20}; free some, or choose another --out"
            )
        yield directory


def _clear(directory: DemoDirectory) -> None:
    for path in directory:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in (directory.logbooks, directory.output, directory.broker):
        path.mkdir(parents=True)
