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
from dataclasses import dataclass
from pathlib import Path

from sparrowmq.errors import ConfigError

_MARKER = ".sparrowmq-demo"
_OWN_NAMES = ("report.html", "figures.json", "ingest", "broker", "run")
# A whole run leaves 260 MB; Spark's temporary files come on top.
_FREE_BYTES_MIN = 512 << 20


@dataclass(frozen=True, slots=True)
class DemoDirectory:
    """The places within an output directory."""

    root: Path

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    @property
    def figures(self) -> Path:
        """Every figure of the report, as JSON."""
        return self.root / "figures.json"

    @property
    def ingest(self) -> Path:
        """The output of the job ingest."""
        return self.root / "ingest"

    @property
    def table(self) -> Path:
        """The Parquet table."""
        return self.ingest / "table"

    @property
    def broker(self) -> Path:
        """The broker's data."""
        return self.root / "broker"

    @property
    def run(self) -> Path:
        """The files that only this run needs."""
        return self.root / "run"

    @property
    def logbooks(self) -> Path:
        """The logbooks of the processes."""
        return self.run / "logbooks"

    @property
    def output(self) -> Path:
        """The printed output of each process."""
        return self.run / "output"

    @property
    def question(self) -> Path:
        """The question to the batch job."""
        return self.run / "question.json"

    @property
    def answers(self) -> Path:
        """The answers of the batch job."""
        return self.run / "answers.json"


@contextmanager
def claim_directory(root: Path) -> Generator[DemoDirectory]:
    """Empty the directory of an earlier demo, and lock the directory during the block.

    Raises: ConfigError if the path is not a directory, the directory has files that are not a
        demo's, is not writable or has too little space, or another demo runs in it.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(_claim(root))
        except OSError as error:
            raise ConfigError(
                f"{root} cannot be used: {error.strerror or error}; choose another --out"
            ) from error
        yield directory


@contextmanager
def _claim(root: Path) -> Generator[DemoDirectory]:
    root = root.absolute()
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
        directory = DemoDirectory(root)
        _clear(directory)
        free = shutil.disk_usage(root).free
        if free < _FREE_BYTES_MIN:
            raise ConfigError(
                f"{root} has {free >> 20:,} MiB of space and the demo needs "
                f"{_FREE_BYTES_MIN >> 20}; free some, or choose another --out"
            )
        yield directory


def _clear(directory: DemoDirectory) -> None:
    for name in _OWN_NAMES:
        path = directory.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in (directory.logbooks, directory.output, directory.broker):
        path.mkdir(parents=True)
