"""The output directory: whose it is, and where everything in it stands.

```
DIR/report.html      the report
DIR/figures.json     every figure of the report
DIR/ingest/          the flights as the job ingest wrote them; the table is DIR/ingest/table
DIR/broker/          the broker's data directory
DIR/run/             what else the run needed: logbooks, output of each process
DIR/.sparrowmq-demo  says that the directory is the demo's; locked while a demo runs
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
# A whole run leaves 260 MB behind; Spark's temporary files come to it.
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
        """What the job ingest writes."""
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
        """Everything that only this run needs."""
        return self.root / "run"

    @property
    def logbooks(self) -> Path:
        """What each process wrote down."""
        return self.run / "logbooks"

    @property
    def output(self) -> Path:
        """What each process printed."""
        return self.run / "output"

    @property
    def question(self) -> Path:
        """What the batch job is asked."""
        return self.run / "question.json"

    @property
    def answers(self) -> Path:
        """What the batch job answered."""
        return self.run / "answers.json"


@contextmanager
def claim_directory(root: Path) -> Generator[DemoDirectory]:
    """Empty the directory of an earlier demo, and hold it while the block runs.

    Raises: ConfigError if it is no directory, holds something that is not a demo's, cannot be
        written to, has too little space, or another demo runs in it.
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
