"""Compares the records that the index finds for a key with the key itself.

The index knows hashes, and other keys may have the same. Tests: test_message_index.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from sparrowmq.model.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store.storage import passing_over_losses

# How many bytes of records a query compares with its key: some 65,000 short records, 2 s of work.
COMPARED_BYTES_MAX = 256 << 20
# How many of them it compares before other work may run, and what a short record costs at least.
_COMPARED_BYTES_PER_STEP = 256 << 10
_COMPARED_BYTES_MIN = 4 << 10


class Compared(NamedTuple):
    """The records with a key by position.

    `lost` are the positions at which none could be read. `is_cut`: the search ended by its bound.
    """

    found: dict[int, bytes]
    lost: list[int]
    is_cut: bool = False


def compare_key(
    positions: Iterator[int | None],
    read: Callable[[int], bytes | None],
    topic: str,
    key: str,
    *,
    count_max: int,
    bytes_max: int,
) -> Generator[None, None, Compared]:
    """Return the records with a key; one that cannot be read keeps none of the others from it.

    It yields at points where other work may run.

    Args:
        positions: where the index knows records of the key's hash; None where other work may run.
        read: returns the record at a position, None if none is there.
        count_max: the most records.
        bytes_max: the most bytes, unless the first record alone has more.
    """
    found: dict[int, bytes] = {}
    lost: list[int] = []
    seen: set[int] = set()
    size = cost = step_cost = 0
    for position in positions if count_max > 0 else ():
        if position is None or step_cost >= _COMPARED_BYTES_PER_STEP:
            step_cost = 0
            yield
        if position is None or position in seen:
            continue
        if cost >= COMPARED_BYTES_MAX:
            return Compared(found, lost, is_cut=True)
        seen.add(position)
        data = None
        with passing_over_losses():
            data = read(position)
        step_cost += (record_cost := max(len(data or b""), _COMPARED_BYTES_MIN))
        cost += record_cost
        if data is None:
            lost.append(position)
            continue
        record = decode_record(data, check_crc=False)
        if record.topic == topic and _has_key(record, key):
            size += len(data)
            if found and size > bytes_max:
                break
            found[position] = data
            if len(found) == count_max:
                break
    return Compared(found, lost)


def _has_key(record: Record, key: str) -> bool:
    """Return whether a record has an entry for a key, as UNIQ_KEY or as one of KEYS."""
    properties = record.properties
    return bool(key) and (
        key == find_property(properties, PROPERTY_UNIQ_KEY)
        or key in find_property(properties, PROPERTY_KEYS).split(" ")
    )
