"""Read messages of one queue by offset, and find an offset by time.

Speed matters here: pulls are a broker's whole cost of a drain. The usual pull, of records that
stand back to back, therefore takes no step per record (benchmarks/against_apache.py).
Tests: test_message_store.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate, compress, pairwise
from math import inf
from operator import add, ne
from struct import Struct

from sparrowmq.protocol import speedups
from sparrowmq.protocol.record import BORN_HOST_V6, head_layout
from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrowmq.store.results import GetResult, GetStatus

# GetMessageResult: how many entries one filtered pull examines (maxFilterMessageCount / 20).
_FILTERED_ENTRIES_MAX = 800
# Records this close together are read at once, since a read costs as much as copying some 10 KB.
_GAP_BYTES_MAX = 16 << 10
_READ_BYTES_MAX = 4 << 20
# The store timestamp stands 12 bytes later behind a born host of IPv6.
_SYS_FLAG_AND_TIMES = Struct(head_layout("sys_flag", "store_timestamp").format + "4xq")
# A look-up in an enumeration costs as much as a small object.
_FOUND = GetStatus.FOUND


def read_messages(
    queue: ConsumeQueue,
    log: CommitLog,
    *,
    queue_offset: int,
    count_max: int,
    bytes_max: int,
    tags_codes: frozenset[int] | None,
) -> GetResult:
    """Return the messages of a queue from an offset on.

    At least one message is returned if there is one, however long it is.

    Args:
        log: the log.
        queue_offset: the first offset to return.
        count_max: the most messages.
        bytes_max: the most bytes of records.
        tags_codes: the codes of the messages to return; None for all messages.
    """
    low, high = queue.min_offset, queue.max_offset
    if not low <= queue_offset < high:
        return _answer_outside(queue_offset, low, high)
    scan_max = count_max if tags_codes is None else max(count_max, _FILTERED_ENTRIES_MAX)
    entries = queue.read(queue_offset, scan_max)
    if tags_codes is None:
        records, count = read_all(log, entries, bytes_max)
        if count:
            next_offset = queue_offset + count
            return GetResult(_FOUND, next_offset, low, high, records, count)
    return _read_chosen(queue, log, queue_offset, entries, count_max, bytes_max, tags_codes)


def read_all(log: CommitLog, entries: bytes, bytes_max: int) -> tuple[bytes, int]:
    """Return the records of the first entries, and their number; none if a record is missing.

    No Python step is taken per message. Records that lie back to back, as in a producer's batch,
    are one run and are read with one read.
    """
    count = len(entries) // ENTRY_SIZE
    functions = speedups.functions
    run = find_run(entries) if functions is None else functions.find_run(entries)
    if run is not None:
        first, total = run
        if total <= bytes_max and total <= _READ_BYTES_MAX and first >= log.files.begin:
            found = log.read(first, total)
            return (found, count) if len(found) == total else (b"", 0)
    places = _places(count).unpack(entries)
    positions, sizes = places[::2], places[1::2]
    if FILLER_SIZE in sizes or min(positions) < log.files.begin:
        return b"", 0
    totals = list(accumulate(sizes))
    count = max(1, bisect_right(totals, bytes_max))
    stops = map(add, positions, sizes)
    breaks = compress(range(1, count), map(ne, stops, positions[1:count]))
    runs = [
        (positions[first], totals[last - 1] - totals[first] + sizes[first])
        for first, last in pairwise([0, *breaks, count])
    ]
    parts = _read_runs(log, runs)
    records = parts[0] if len(runs) == 1 else b"".join(parts)
    assert isinstance(records, bytes)
    return (records, count) if len(records) == totals[count - 1] else (b"", 0)


def find_run(entries: bytes) -> tuple[int, int] | None:
    """Return the position and the size of records that lie back to back, None if some do not."""
    found = _run(len(entries) // ENTRY_SIZE).unpack(entries)
    first, last, last_size = found[0], found[-2], found[-1]
    # Records do not overlap. If their sizes fill the space between the first and the last, there
    # are not gaps. A filler's size is beyond every limit of a read.
    total = sum(found[1:-2]) + last_size
    return (first, total) if last + last_size - first == total else None


@lru_cache(maxsize=256)
def _run(count: int) -> Struct:
    """Return the layout of entries for their sizes and for the first and last positions."""
    return Struct(">QI8x" if count == 1 else ">QI8x" + "8xI8x" * (count - 2) + "QI8x")


@lru_cache(maxsize=256)
def _places(count: int) -> Struct:
    """Return the layout of entries for the records' positions and sizes only."""
    return Struct(">" + "qi8x" * count)


def _answer_outside(queue_offset: int, low: int, high: int) -> GetResult:
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    # Differs from RocketMQ 4.9, which returns 0 if the queue begins there. After a broker has lost
    # messages, that would deliver the whole queue again.
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


def _read_chosen(
    queue: ConsumeQueue,
    log: CommitLog,
    queue_offset: int,
    entries: bytes,
    count_max: int,
    bytes_max: int,
    tags_codes: frozenset[int] | None,
) -> GetResult:
    chosen: list[tuple[int, int]] = []
    total, next_offset, is_gone = 0, queue_offset, False
    for position, size, code in ENTRY.iter_unpack(entries):
        if position < log.files.begin or size == FILLER_SIZE:
            is_gone = True
        elif tags_codes is None or code in tags_codes:
            if chosen and (total + size > bytes_max or len(chosen) == count_max):
                break
            chosen.append((position, size))
            total += size
        next_offset += 1
    low, high = queue.min_offset, queue.max_offset
    if not chosen:
        status = GetStatus.MESSAGE_WAS_REMOVING if is_gone else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high)
    records = b"".join(_read_runs(log, chosen))
    return GetResult(GetStatus.FOUND, next_offset, low, high, records, len(chosen))


def _read_runs(log: CommitLog, chosen: list[tuple[int, int]]) -> list[bytes | memoryview]:
    """Read records or runs of records; read neighbours that are close together at once."""
    parts: list[bytes | memoryview] = []
    at = 0
    while at < len(chosen):
        begin, size = chosen[at]
        end = begin + size
        stop = at + 1
        while stop < len(chosen):
            position, size = chosen[stop]
            if position - end > _GAP_BYTES_MAX or position + size - begin > _READ_BYTES_MAX:
                break
            end = position + size
            stop += 1
        data = log.read(begin, end - begin)
        if stop == at + 1:
            parts.append(data)
        else:
            view = memoryview(data)
            parts += [view[p - begin : p - begin + s] for p, s in chosen[at:stop]]
        at = stop
    return parts


def read_store_timestamp(log: CommitLog, position: int) -> int | None:
    """Return the store timestamp of the record at a position, None if it cannot be read."""
    data = log.read(position, _SYS_FLAG_AND_TIMES.size)
    if len(data) < _SYS_FLAG_AND_TIMES.size:
        return None
    sys_flag, of_v4, of_v6 = _SYS_FLAG_AND_TIMES.unpack(data)
    return int(of_v6 if sys_flag & BORN_HOST_V6 else of_v4)


def find_offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int) -> int:
    """Return the offset of the message stored at a time, or nearest to it.

    A time after the end gives the last message, a time before the beginning the first. Between two
    messages the nearer one counts, at equal distance the earlier one. A queue without messages
    gives its end. Within one file of the queue the search equals RocketMQ's step for step.

    Differs from RocketMQ: Apache chooses the file by its modification time, which a copied
    directory does not keep. This search takes the first file whose last message is not older than
    the time. In a queue whose messages have all expired Apache finds an offset before its end: a
    group that a tool sets to it seems to lag behind by messages that are gone.
    Source: DefaultMessageStore.getOffsetInQueueByTime, 4.9.
    """
    low, high = queue.min_offset, queue.max_offset - 1
    if high < low:
        return low
    low, high = _choose_file(queue, log, timestamp_ms, low, high)
    left = right = low
    left_gap_ms = right_gap_ms = inf
    while low <= high:
        middle = (low + high) // 2
        stored_ms = _timestamp_at(queue, log, middle)
        if stored_ms is None:
            return 0
        if stored_ms == timestamp_ms:
            return middle
        if stored_ms > timestamp_ms:
            high, right, right_gap_ms = middle - 1, middle, stored_ms - timestamp_ms
        else:
            low, left, left_gap_ms = middle + 1, middle, timestamp_ms - stored_ms
    return left if left_gap_ms <= right_gap_ms else right


def find_boundary(
    queue: ConsumeQueue, log: CommitLog, timestamp_ms: int, *, is_upper: bool = False
) -> int:
    """Return the offset of the first message stored at or after a time, or the queue's end.

    Args:
        is_upper: whether to return the offset of the last message stored at or before the time
            instead, or of the queue's first message if all are younger.

    Source: ConsumeQueue.getOffsetInQueueByTime, 5.5.
    """
    offsets = range(queue.min_offset, queue.max_offset)

    def stored_ms(offset: int) -> int:
        found = _timestamp_at(queue, log, offset)
        # A message that cannot be read is not passed over.
        return timestamp_ms if found is None else found

    if is_upper:
        return offsets.start + max(0, bisect_right(offsets, timestamp_ms, key=stored_ms) - 1)
    return offsets.start + bisect_left(offsets, timestamp_ms, key=stored_ms)


def _choose_file(
    queue: ConsumeQueue, log: CommitLog, timestamp_ms: int, low: int, high: int
) -> tuple[int, int]:
    """Return the first and last offset of the file to search."""
    per_file = queue.files.file_size // ENTRY_SIZE
    for base in queue.files.bases:
        begin = base // ENTRY_SIZE
        last = min(begin + per_file - 1, high)
        if last < low:
            continue
        stored_ms = _timestamp_at(queue, log, last)
        if last == high or (stored_ms is not None and stored_ms >= timestamp_ms):
            return max(begin, low), last
    return low, high


def _timestamp_at(queue: ConsumeQueue, log: CommitLog, offset: int) -> int | None:
    _, position = queue.last_message(offset, queue.min_offset)
    return read_store_timestamp(log, position)
