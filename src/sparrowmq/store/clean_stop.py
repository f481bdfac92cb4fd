"""The file that a clean stop leaves, so that the next start need not walk the log's records.

The file `stopped` is SparrowMQ's own: a CRC-32 of the rest as eight hex digits, a line feed, and a
`CleanStop` as JSON. The file is on the disk before the file `abort` is removed, and counts only
without the file `abort`. An end of the store without a clean stop therefore makes the file void.

*When the file is believed.* The checkpoint must be exactly the checkpoint of that stop; a message
stored by another broker therefore makes the file void. The log and every consume queue must have
exactly the same files. The checksums of the log's last bytes (`StoreConfig.verify_bytes`) and of
all entries of all queues must match, and no data may follow the ends. Otherwise recovery runs as
after a crash. The checksums take a start some 3 % of the time of checking the same bytes record by
record and entry by entry.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from sparrowmq.store.checkpoint import Checkpoint, encode_checkpoint
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ConsumeQueue
from sparrowmq.store.file_series import FileSeries
from sparrowmq.store.storage import Storage, write_file

STOP_PATH = "stopped"
_CHUNK_SIZE = 1 << 20
_CRC_DIGITS = 8


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """One consume queue at the stop; `begin` is its first file's position."""

    topic: str
    queue_id: int
    begin: int
    min_offset: int
    max_offset: int
    crc: int


class CleanStop(msgspec.Struct, frozen=True):
    """The state of a store at its clean stop.

    Args:
        checkpoint_crc: the checksum of the checkpoint's sector.
        log_begin: the position at which the log began.
        log_crc_from: the position from which `log_crc` covers the log, up to the checkpoint's mark.
        log_crc: the checksum of these bytes.
    """

    checkpoint_crc: int
    log_begin: int
    log_crc_from: int
    log_crc: int
    queues: list[QueueEnd]


_DECODER = msgspec.json.Decoder(CleanStop)


def write_stop(
    storage: Storage,
    checkpoint: Checkpoint,
    log_files: FileSeries,
    queues: dict[tuple[str, int], ConsumeQueue],
    *,
    verify_bytes: int,
) -> None:
    """Write the file and sync it. The file's name becomes durable when its directory is synced.

    Args:
        checkpoint: the checkpoint on the disk; its mark covers the whole log and all entries.
        log_files: the log's files.
        queues: the log's queues, with all entries in their files.
        verify_bytes: how much of the log's end the next start checks.

    Raises: OSError.
    """
    assert checkpoint.mark is not None
    end = checkpoint.mark.end_position
    crc_from = max(log_files.begin, end - verify_bytes)
    stop = CleanStop(
        checkpoint_crc=crc32(encode_checkpoint(checkpoint)),
        log_begin=log_files.begin,
        log_crc_from=crc_from,
        log_crc=_checksum(log_files, crc_from, end),
        queues=[
            QueueEnd(
                topic,
                queue_id,
                queue.files.begin,
                queue.min_offset,
                queue.max_offset,
                _checksum(queue.files, queue.files.begin, queue.max_offset * ENTRY_SIZE),
            )
            for (topic, queue_id), queue in queues.items()
        ],
    )
    data = msgspec.json.encode(stop)
    data = b"%0*x\n" % (_CRC_DIGITS, crc32(data)) + data
    write_file(storage, STOP_PATH, data)


def resume(
    storage: Storage,
    checkpoint: Checkpoint,
    log_files: FileSeries,
    queues: dict[tuple[str, int], ConsumeQueue],
) -> bool:
    """Restore the ends of all queues from the last clean stop, if its file can be believed.

    Args:
        log_files: the log's files, loaded.
        queues: the log's queues, with their files loaded.

    Returns: whether the file was believed; otherwise nothing has changed.
    """
    stop = _read_stop(storage)
    mark = checkpoint.mark
    if stop is None or mark is None or stop.checkpoint_crc != crc32(encode_checkpoint(checkpoint)):
        return False
    ends = {(each.topic, each.queue_id): each for each in stop.queues}
    if ends.keys() != queues.keys():
        return False
    is_same_log = _has(log_files, stop.log_begin, mark.end_position)
    if not is_same_log or stop.log_crc != _checksum(
        log_files, stop.log_crc_from, mark.end_position
    ):
        return False
    for key, end in ends.items():
        files, end_position = queues[key].files, end.max_offset * ENTRY_SIZE
        if not _has(files, end.begin, end_position):
            return False
        if end.crc != _checksum(files, end.begin, end_position):
            return False
    for key, end in ends.items():
        queue = queues[key]
        queue.min_offset = end.min_offset
        queue.max_offset = queue.next_offset = end.max_offset
    return True


def _read_stop(storage: Storage) -> CleanStop | None:
    """Read the file; None for a missing or damaged file."""
    if not storage.has(STOP_PATH):
        return None
    file = storage.open(STOP_PATH, pinned=True)
    try:
        data = file.read(0, file.size)
    finally:
        file.close()
    crc, _, content = data.partition(b"\n")
    if crc != b"%0*x" % (_CRC_DIGITS, crc32(content)):
        return None
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError:
        # A later version wrote the file.
        return None


def _has(files: FileSeries, begin: int, end: int) -> bool:
    """Return whether a series has files from `begin` to `end`, and no data after `end`."""
    return files.begin == begin and begin <= end <= files.end and files.next_data(end) is None


def _checksum(files: FileSeries, begin: int, end: int) -> int:
    crc = 0
    for at in range(begin, end, _CHUNK_SIZE):
        crc = crc32(files.read(at, min(_CHUNK_SIZE, end - at)), crc)
    return crc
