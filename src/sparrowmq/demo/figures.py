"""From what was written down to figures: duplicates and order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """Whether every aircraft's legs stand in one queue in the order they were produced."""

    aircraft: int
    legs: int
    aircraft_in_several_queues: int
    legs_out_of_order: int
    legs_unknown: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.aircraft_in_several_queues + self.legs_out_of_order + self.legs_unknown
        return wrong == 0


def find_duplicates(queue_ids: Integers, queue_offsets: Integers, at_ms: Integers) -> Integers:
    """Return the instants of all deliveries but the first of each message, sorted."""
    order = np.lexsort((at_ms, queue_offsets, queue_ids))
    same_queue = np.diff(queue_ids[order]) == 0
    same_offset = np.diff(queue_offsets[order]) == 0
    return np.sort(at_ms[order][1:][same_queue & same_offset])


def count_by_window(instants: Integers, starts_ms: Sequence[int]) -> list[int]:
    """Count the instants in each window; what comes before the first counts to the first."""
    if not starts_ms:
        return []
    window = np.searchsorted(np.array(starts_ms, dtype=np.int64), instants, side="right") - 1
    counts = np.bincount(np.maximum(window, 0), minlength=len(starts_ms))
    return [int(count) for count in counts]


def count_distinct(*columns: Integers) -> int:
    """Return how many different rows the columns have."""
    if not len(columns[0]):
        return 0
    order = np.lexsort(columns)
    differs = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        differs |= np.diff(column[order]) != 0
    return int(differs.sum()) + 1


def count_per_queue(queue_ids: Integers, *, queue_count: int) -> list[int]:
    """Return how many rows each queue has."""
    return [int(count) for count in np.bincount(queue_ids, minlength=queue_count)]


def check_order(
    aircraft: Integers, queue_ids: Integers, *, queue_offsets: Integers, produced_index: Integers
) -> OrderCheck:
    """Check that each aircraft's legs are stored in the order they were produced.

    Args:
        aircraft: a number for each leg's sharding key.
        queue_ids: the queue in which the leg stands.
        queue_offsets: where it stands there.
        produced_index: the leg's place in the order of producing, -1 if it was never produced.
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
