"""The store's settings and the table of delay levels.

The sizes are those of Apache's MessageStoreConfig: a directory written with them can be moved to an
Apache broker and back. Tests use small sizes. Tests: test_config_file.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparrowmq.errors import ConfigError
from sparrowmq.model.delay import DELAY_LEVELS_MS

# MessageStoreConfig.java: mappedFileSizeCommitLog, mappedFileSizeConsumeQueue, maxMessageSize.
COMMIT_LOG_FILE_SIZE = 1 << 30
ENTRY_SIZE = 20
CONSUME_QUEUE_FILE_SIZE = 300_000 * ENTRY_SIZE
MESSAGE_BYTES_MAX = 4 << 20
# MessageStoreConfig.java: maxHashSlotNum, maxIndexNum.
INDEX_SLOT_COUNT = 5_000_000
INDEX_ENTRY_COUNT = 4 * INDEX_SLOT_COUNT
_CHECKPOINT_INTERVAL_MS = 10_000
# How much of the log's end is checked at every start, whatever the checkpoint says. The check takes
# some seconds after a crash, and hundredths of a second after a clean stop.
_VERIFY_BYTES = 64 << 20


class FlushMode(StrEnum):
    """When a message counts as stored."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of a `MessageStore`.

    Args:
        flush: SYNC makes messages readable once they are on the disk, ASYNC at once.
        commit_log_file_size: bytes of each commit log file.
        consume_queue_file_size: bytes of each consume queue file; rounded up to whole entries.
        index_entry_count: the entry number at which an index file is full; the first entry is
            number 1.
        message_bytes_max: the longest body.
        delay_levels_ms: the delay of level 1, 2 and so on.
        queue_tail_bytes_max: the most bytes of each consume queue's entries that are only in memory
            until the next checkpoint.
        append_crc: whether records carry 5.x's property `__CRC32#`, a checksum of the whole record.
        checkpoint_interval_ms: how often the checkpoint is written, in store time.
        verify_bytes: how much of the log's end is checked at every start.
        salvage: whether a log that is damaged in the middle is cut there instead of refused.
    """

    flush: FlushMode = FlushMode.SYNC
    commit_log_file_size: int = COMMIT_LOG_FILE_SIZE
    consume_queue_file_size: int = CONSUME_QUEUE_FILE_SIZE
    index_slot_count: int = INDEX_SLOT_COUNT
    index_entry_count: int = INDEX_ENTRY_COUNT
    message_bytes_max: int = MESSAGE_BYTES_MAX
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    queue_tail_bytes_max: int = 4096
    append_crc: bool = True
    checkpoint_interval_ms: int = _CHECKPOINT_INTERVAL_MS
    verify_bytes: int = _VERIFY_BYTES
    salvage: bool = False

    def __post_init__(self) -> None:
        for name in ("commit_log_file_size", "consume_queue_file_size", "message_bytes_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.index_slot_count <= 0 or self.index_entry_count <= 1:
            raise ConfigError(
                f"index_slot_count is {self.index_slot_count}, which must be above 0, and "
                f"index_entry_count is {self.index_entry_count}, which must be above 1"
            )
        entries = -(-self.consume_queue_file_size // ENTRY_SIZE)
        object.__setattr__(self, "consume_queue_file_size", entries * ENTRY_SIZE)
