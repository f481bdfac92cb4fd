"""Reads single records, by position and by queue offset, and notes the damaged ones.

Whoever needs the records of a queue in order reads the queue (`queue_reader`).
Tests: test_message_store.py, test_corruption.py.
"""

from __future__ import annotations

from collections.abc import Callable

from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.log_scan import LogScan
from sparrowmq.store.queue_table import QueueTable
from sparrowmq.store.record_check import RecordChecker

# The damaged records that are told of, each once.
_DAMAGED_MAX = 10_000


class RecordReader:
    """The records of one store that readers may see.

    Args:
        log: the log of the records.
        queues: the queues whose entries point into the log.
        checker: checks each record that is read.
        readable_position: returns the position up to which readers may see the log.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        checker: RecordChecker,
        *,
        readable_position: Callable[[], int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._checker = checker
        self._readable_position = readable_position
        # The positions of damaged records, and the places of those that were not taken.
        self._damaged: set[int] = set()
        self._untaken: list[str] = []

    def read(self, position: int, size: int | None = None) -> bytes | None:
        """Return the record at a position as stored, None if no readable record begins there.

        Args:
            position: the record's position in the log.
            size: the record's size, if the caller knows it; a record of another size gives None.
        """
        if not self._log.files.begin <= position < self._readable_position():
            return None
        record = LogScan(self._log.files, self._checker).record_at(position)
        if record is None or (size is not None and record.size != size):
            return None
        return self._log.read(position, record.size)

    def read_queued(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        """Return the record at a queue's offset, None if none is there; note a damaged one."""
        entry = self._queues.entry(topic, queue_id, queue_offset)
        if entry is None or entry[0] < self._log.files.begin:
            return None
        if (data := self.read(entry[0], entry[1])) is None:
            self.note_damaged(topic, queue_id, queue_offset)
        return data

    def read_message(self, topic: str, queue_id: int, queue_offset: int) -> Record | None:
        """Return the message at a queue's offset as `read_queued`, which compares checksums."""
        data = self.read_queued(topic, queue_id, queue_offset)
        return None if data is None else decode_record(data, check_crc=False)

    def note_damaged(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note that the record at a queue's offset is damaged, and is passed over."""
        if (entry := self._queues.entry(topic, queue_id, queue_offset)) is not None:
            self.note_lost(entry[0], f"{topic} queue {queue_id} offset {queue_offset} at ")

    def note_lost(self, position: int, place: str = "") -> None:
        """Note that no record can be read at a position."""
        damaged = self._damaged
        if position not in damaged and len(damaged) < _DAMAGED_MAX:
            damaged.add(position)
            self._untaken.append(f"{place}log position {position}")

    def take_damaged(self) -> list[str]:
        """Take the places of the damaged records that were noted since the last call."""
        untaken, self._untaken = self._untaken, []
        return untaken
