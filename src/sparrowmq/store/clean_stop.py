"""What a clean stop leaves, so that the next start walks no record.

The file `stopped`, ours alone: a CRC-32 of the rest as eight hex digits, a line feed, and a
`CleanStop` as JSON. It is on the disk before the file `abort` goes, and counts only while there is
no `abort`: whatever ends a store without a clean stop makes it void.

*When it is believed.* The checkpoint must be the one of that stop, to the bit; so it is void, too,
once another broker has stored a message. The log and every consume queue must have the very files
they had, the log's last bytes (`StoreConfig.verify_bytes`) and all entries of all queues their
checksums, and nothing may stand behind the ends. Otherwise recovery finds out what is there, as
after a crash. Checksums cost a start some 3 % of what looking at the same bytes record by record
and entry by entry does.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from sparrowmq.store.checkpoint import Checkpoint, encode_checkpoint
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ConsumeQueue
from sparrowmq.store.file_series import FileSeries
from sparrowmq.store.storage import Storage

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
    """A store at its clean stop.

    Args:
        checkpoint_crc: of the checkpoint's sector.
        log_begin: where the log began.
        log_crc_from: the log's bytes from here to the checkpoint's mark have `log_crc`.
        log_crc: their checksum.
        queues: all queues.
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
    """Write the file and sync it; its name becomes durable with its directory.

    Args:
        storage: where.
        checkpoint: what the disk has; its mark covers the whole log and all entries.
        log_files: the log.
        queues: its queues, all entries of which are in their files.
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
    file = storage.create(STOP_PATH, size=len(data), pinned=True)
    try:
        file.write(0, data)
        file.sync()
    finally:
        file.close()


def resume(
    storage: Storage,
    checkpoint: Checkpoint,
    log_files: FileSeries,
    queues: dict[tuple[str, int], ConsumeQueue],
) -> bool:
    """Give all queues the ends they had at the last stop, a clean one, if it can be believed.

    Args:
        storage: where the file is.
        checkpoint: what the disk has.
        log_files: the log, whose files are loaded.
        queues: its queues, whose files are loaded.

    Returns: whether it can; nothing has changed otherwise.
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
    """Return what the file says, None if there is none or it is damaged."""
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
        # Of a later version.
        return None


def _has(files: FileSeries, begin: int, end: int) -> bool:
    """Return whether a series has files from `begin` to `end`, and nothing behind that."""
    return files.begin == begin and begin <= end <= files.end and files.next_data(end) is None


def _checksum(files: FileSeries, begin: int, end: int) -> int:
    crc = 0
    for at in range(begin, end, _CHUNK_SIZE):
        crc = crc32(files.read(at, min(_CHUNK_SIZE, end - at)), crc)
    return crc
