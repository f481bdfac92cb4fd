"""Keeps the Spark process beside the other stages: kills it once during a batch, restarts it.

The kill comes when files of a micro-batch are on the disk and the batch is not published.
"""

from __future__ import annotations

from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.board import Board, Kill
from sparrowmq.demo.cast import Cast
from sparrowmq.processes.crew import Child, ProcessFailed

# The first batch must be in the table: the resumed query then continues an earlier one.
_FIRST_BATCH_TO_KILL = 1
_KILLS_MAX = 3
# The approximate number of micro-batches of the whole input.
_BATCHES = 9


class PipelineKeeper:
    """Owns the Spark process."""

    def __init__(self, cast: Cast, board: Board, *, table: Path) -> None:
        self._cast = cast
        self._board = board
        self._table = table
        self._writing = table / "_writing"
        self._child: Child | None = None
        self._kills = 0

    def start(self) -> None:
        """Start the process."""
        self._child = self._cast.start_spark(batches=_BATCHES)

    def look(self) -> None:
        """Kill and restart the process if a batch is half written.

        Raises: ProcessFailed if the process ended before its answer.
        """
        ingest = self._board.ingest
        if self._child is None or ingest.answered_ms is not None:
            return
        if self._child.exit_code is not None:
            raise ProcessFailed(
                f"Spark ended with exit code {self._child.exit_code}; the end of its output "
                f"({self._child.output}):\n{self._child.output_tail()}"
            )
        if ingest.kill is None and self._kills < _KILLS_MAX:
            self._kill_if_writing(self._child)

    def stop(self) -> None:
        """Wait for the process, which ends by itself after its answer."""
        if self._child is not None and not self._child.wait(10.0):
            self._child.kill()

    def _kill_if_writing(self, child: Child) -> None:
        names = (path.name for path in self._writing.glob("batchId=*"))
        batch_id = max((int(name.partition("=")[2]) for name in names), default=-1)
        if batch_id < _FIRST_BATCH_TO_KILL or not self._count_files(batch_id):
            return
        child.kill()
        self._kills += 1
        # If the batch is published, the kill came too late: a later batch is killed.
        if not (self._table / f"batchId={batch_id}").exists():
            files = self._count_files(batch_id)
            self._board.ingest.kill = Kill(monotonic_ms(), batch_id, files)
        self.start()

    def _count_files(self, batch_id: int) -> int:
        """Count the data files of an unpublished batch."""
        place = self._writing / f"batchId={batch_id}"
        return sum(path.stat().st_size > 0 for path in place.rglob("*.parquet"))
