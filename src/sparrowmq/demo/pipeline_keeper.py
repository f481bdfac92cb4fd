"""Looks after the Spark process beside the other stages: kills it once in mid-batch, restarts it.

The kill comes when a micro-batch has begun and files of it are on the disk. Whether it really
came in mid-batch is read from the logbook afterwards; if the batch was faster, there is another.
"""

from __future__ import annotations

from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.board import BatchBoard, Board
from sparrowmq.demo.cast import Cast
from sparrowmq.processes.crew import Child, ProcessFailed

# The first batch must be in the table, so that the resumed query has something to build on.
_FIRST_BATCH_TO_KILL = 1
_KILLS_MAX = 3
# How many micro-batches the whole input makes, about.
_BATCHES = 9


class PipelineKeeper:
    """Holds the Spark process."""

    def __init__(self, cast: Cast, board: Board, *, table: Path) -> None:
        self._cast = cast
        self._board = board
        self._table = table
        self._child: Child | None = None
        self._kills = 0

    def start(self) -> None:
        """Start the process."""
        self._child = self._cast.start_ingest(batches=_BATCHES)

    def look(self) -> None:
        """Kill and restart it if now is the moment.

        Raises: ProcessFailed if it ended before it had answered.
        """
        ingest = self._board.ingest
        if self._child is None or ingest.answered_ms is not None:
            return
        if self._child.exit_code is not None:
            raise ProcessFailed(
                f"Spark ended with exit code {self._child.exit_code}; the end of its output "
                f"({self._child.output}):\n{self._child.output_tail()}"
            )
        batch = ingest.batch_being_written
        if ingest.killed_ms is not None or self._kills >= _KILLS_MAX:
            return
        if batch is not None and batch.batch_id >= _FIRST_BATCH_TO_KILL:
            self._kill_if_writing(self._child, batch)

    def stop(self) -> None:
        """Wait for the process, which ends by itself after its answer."""
        if self._child is not None and not self._child.wait(10.0):
            self._child.kill()

    def _kill_if_writing(self, child: Child, batch: BatchBoard) -> None:
        if not self._list_files(batch.batch_id):
            return
        child.kill()
        killed_ms = monotonic_ms()
        self._kills += 1
        # What it wrote before it died decides.
        ingest = self._board.ingest
        ingest.read()
        if batch.written_ms is None:
            ingest.killed_ms, ingest.killed_batch_id = killed_ms, batch.batch_id
            ingest.files_of_killed_batch = len(self._list_files(batch.batch_id))
        self.start()

    def _list_files(self, batch_id: int) -> list[Path]:
        """Return the data files of a batch that is not published yet."""
        place = self._table / "_writing" / f"batchId={batch_id}"
        return [path for path in place.rglob("*.parquet") if path.stat().st_size > 0]
