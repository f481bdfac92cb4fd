"""Computes figures from logs: duplicates and order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """Whether every aircraft's legs are in one queue, in the order of production."""

    aircraft: int
    legs: int
    aircraft_in_several_queues: int
    legs_out_of_order: int
    legs_unknown: int

    @property
    def holds(self) -> bool:
        """Whether the order holds for every aircraft."""
        wrong = self.aircraft_in_several_queues + self.legs_out_of_order + self.legs_unknown
        return wrong == 0


def find_duplicates(queue_ids: Integers, queue_offsets: Integers, at_ms: Integers) -> Integers:
    """Return the sorted instants of all deliveries except the first of each message."""
    order = np.lexsort((at_ms, queue_offsets, queue_ids))
    same_queue = np.diff(queue_ids[order]) == 0
    same_offset = np.diff(queue_offsets[order]) == 0
    return np.sort(at_ms[order][1:][same_queue & same_offset])


def count_by_window(instants: Integers, starts_ms: Sequence[int]) -> list[int]:
    """Count the instants in each window; instants before the first window belong to the first."""
    if not starts_ms:
        return []
    window = np.searchsorted(np.array(starts_ms, dtype=np.int64), instants, side="right") - 1
    counts = np.bincount(np.maximum(window, 0), minlength=len(starts_ms))
    return [int(count) for count in counts]


def count_distinct(*columns: Integers) -> int:
    """Return the number of different rows of the columns."""
    if not len(columns[0]):
        return 0
    order = np.lexsort(columns)
    differs = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        differs |= np.diff(column[order]) != 0
    return int(differs.sum()) + 1


def count_per_queue(queue_ids: Integers, *, queue_count: int) -> list[int]:
    """Return the number of rows of each queue."""
    return [int(count) for count in np.bincount(queue_ids, minlength=queue_count)]


def check_order(
    aircraft: Integers, queue_ids: Integers, *, queue_offsets: Integers, produced_index: Integers
) -> OrderCheck:
    """Check that each aircraft's legs are stored in the order of production.

    Args:
        aircraft: a number for each leg's sharding key.
        queue_ids: the queue of each leg.
        queue_offsets: the queue offset of each leg.
        produced_index: the leg's place in the order of production, -1 if never produced.
    """
    order = np.lexsort((queue_offsets, queue_ids, aircraft))
    same_aircraft = np.diff(aircraft[order]) == 0
    same_queue = np.diff(queue_ids[order]) == 0
    ascends = np.diff(produced_index[order]) > 0
    pairs = np.unique(np.stack((aircraft, queue_ids)), axis=1)[0]
    names, queues_of_aircraft = np.unique(pairs, return_counts=True)
    return OrderCheck(
        aircraft=len(names),
        legs=len(order),
        aircraft_in_several_queues=int((queues_of_aircraft > 1).sum()),
        legs_out_of_order=int((same_aircraft & same_queue & ~ascends).sum()),
        legs_unknown=int((produced_index < 0).sum()),
    )
