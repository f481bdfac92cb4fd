"""The checkpoint: the position up to which log, queues and index are known to be on the disk.

File `checkpoint`, 4096 bytes, big-endian; a field that is not set is zero:

| at  | bytes | field                                                                    |
|-----|-------|--------------------------------------------------------------------------|
| 0   | 8     | physicMsgTimestamp: store time of the last message synced in the log     |
| 8   | 8     | logicsMsgTimestamp: store time of the last entry synced in the queues    |
| 16  | 8     | indexMsgTimestamp                                                        |
| 256 | 8     | `SPARROW1`: what follows is ours; Apache neither reads nor changes it    |
| 264 | 8     | 1 if only synced messages got consume queue entries, else 0              |
| 272 | 8     | position of the last record before the next field, -1 if there is none   |
| 280 | 8     | position up to which the log and the entries of its records are synced   |
| 288 | 8     | position from which on records carry a checksum of the whole, -1: none   |
| 296 | 24    | the first three fields again                                             |
| 320 | 4     | CRC-32 of the bytes 256-319                                              |
| 324 | 8     | position up to which the log is indexed, by what is synced               |
| 332 | 8     | name of the last index file, 0 without any                               |
| 340 | 40    | header of that file                                                      |
| 380 | 4     | CRC-32 of the bytes 256-379                                              |

All fields stand in one 512-byte sector, so a power cut cannot tear them. If the timestamps differ
from their copies, another broker has written to the directory since, and our mark is void.
Tests: test_message_store.py, test_torn_tail.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from sparrowmq.store.index_file import HEADER_SIZE, IndexHeader, decode_index_header
from sparrowmq.store.storage import Storage

CHECKPOINT_PATH = "checkpoint"
CHECKPOINT_SIZE = 4096
_TIMESTAMPS = Struct(">qqq")
_MARK = Struct(">8sqqqqqqq")
_CRC = Struct(">I")
_INDEX_MARK = Struct(f">qq{HEADER_SIZE}s")
_MARK_AT = 256
_INDEX_MARK_AT = _MARK_AT + _MARK.size + _CRC.size
_MARK_MAGIC = b"SPARROW1"
_WRITTEN_SIZE = 512
# StoreCheckpoint.getMinTimestamp.
_MARGIN_MS = 3000


class Mark(NamedTuple):
    """The position up to which log and consume queues are synced.

    `is_dispatch_synced`: whether consume queue entries were written only for synced messages. An
    entry then proves that its record, and all records before it, were once on the disk.
    `checksummed_position`: records from here on end with a checksum of the whole record.
    """

    record_position: int | None
    end_position: int
    is_dispatch_synced: bool
    checksummed_position: int | None


class IndexMark(NamedTuple):
    """The synced part of the index.

    `position`: the log is indexed up to here. `name` and `header` are those of the last index file;
    `name` is 0 without any file.
    """

    position: int
    name: int
    header: IndexHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The fields of the file; the times are wall-clock store times of messages, 0 if not set."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    mark: Mark | None = None
    index: IndexMark | None = None

    def with_index(self, index: IndexMark | None) -> Checkpoint:
        """Return a copy of the checkpoint with another index mark."""
        if index is None:
            return replace(self, index=None)
        return replace(self, index=index, index_timestamp_ms=index.header.end_timestamp_ms)

    @property
    def min_timestamp_ms(self) -> int:
        """The store time up to which messages and their entries are surely on the disk."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - _MARGIN_MS)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the sector that is written to the file."""
    timestamps = (
        checkpoint.physic_timestamp_ms,
        checkpoint.logics_timestamp_ms,
        checkpoint.index_timestamp_ms,
    )
    data = _TIMESTAMPS.pack(*timestamps)
    mark = checkpoint.mark
    if mark is not None:
        fields = _MARK.pack(
            _MARK_MAGIC,
            mark.is_dispatch_synced,
            -1 if mark.record_position is None else mark.record_position,
            mark.end_position,
            -1 if mark.checksummed_position is None else mark.checksummed_position,
            *timestamps,
        )
        fields += _CRC.pack(crc32(fields))
        if checkpoint.index is not None:
            index = checkpoint.index
            fields += _INDEX_MARK.pack(index.position, index.name, index.header.encode())
            fields += _CRC.pack(crc32(fields))
        data = data.ljust(_MARK_AT, b"\0") + fields
    return data.ljust(_WRITTEN_SIZE, b"\0")


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the fields of the file; a file that is too short gives an empty checkpoint."""
    if len(data) < _WRITTEN_SIZE:
        return Checkpoint()
    timestamps = _TIMESTAMPS.unpack_from(data)
    physic_timestamp_ms, logics_timestamp_ms, index_timestamp_ms = timestamps
    mark = _decode_mark(data, timestamps)
    return Checkpoint(
        physic_timestamp_ms=physic_timestamp_ms,
        logics_timestamp_ms=logics_timestamp_ms,
        index_timestamp_ms=index_timestamp_ms,
        mark=mark,
        index=None if mark is None else _decode_index_mark(data),
    )


def _decode_mark(data: bytes, timestamps: tuple[int, ...]) -> Mark | None:
    fields = _MARK.unpack_from(data, _MARK_AT)
    magic, is_synced, record_position, end_position, checksummed_position, *copies = fields
    crc_at = _MARK_AT + _MARK.size
    (crc,) = _CRC.unpack_from(data, crc_at)
    if magic != _MARK_MAGIC or crc != crc32(data[_MARK_AT:crc_at]) or tuple(copies) != timestamps:
        return None
    return Mark(
        None if record_position < 0 else record_position,
        end_position,
        is_synced == 1,
        None if checksummed_position < 0 else checksummed_position,
    )


def _decode_index_mark(data: bytes) -> IndexMark | None:
    crc_at = _INDEX_MARK_AT + _INDEX_MARK.size
    (crc,) = _CRC.unpack_from(data, crc_at)
    if crc != crc32(data[_MARK_AT:crc_at]):
        return None
    position, name, header = _INDEX_MARK.unpack_from(data, _INDEX_MARK_AT)
    return IndexMark(position, name, decode_index_header(header))


def read_checkpoint(storage: Storage) -> Checkpoint:
    """Read the file; a missing file gives an empty checkpoint."""
    if not storage.has(CHECKPOINT_PATH):
        return Checkpoint()
    file = storage.open(CHECKPOINT_PATH, pinned=True)
    try:
        return decode_checkpoint(file.read(0, CHECKPOINT_SIZE))
    finally:
        file.close()


def write_checkpoint(storage: Storage, checkpoint: Checkpoint) -> None:
    """Write the file and sync it. The file's name becomes durable when its directory is synced."""
    if storage.has(CHECKPOINT_PATH):
        file = storage.open(CHECKPOINT_PATH, pinned=True)
    else:
        file = storage.create(CHECKPOINT_PATH, size=CHECKPOINT_SIZE, pinned=True)
    try:
        if file.size != CHECKPOINT_SIZE:
            file.resize(CHECKPOINT_SIZE)
        file.write(0, encode_checkpoint(checkpoint))
        file.sync()
    finally:
        file.close()
