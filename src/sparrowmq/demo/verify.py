"""Verifies the Parquet table and the deliveries with plain Arrow, as any other reader would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset

from sparrowmq.demo.flights import Flights

# Arrow creates these functions at import, where no type checker sees them.
_compute: Any = pyarrow.compute
# The fields of `consumed.csv`, see `processes.member_log`.
_DELIVERY_TYPES = {
    "at_ms": pa.int64(),
    "queue_id": pa.int64(),
    "queue_offset": pa.int64(),
    "flight_id": pa.string(),
}
_LEG_ORDER = ("aircraft", "queueId", "queueOffset")


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """Whether every aircraft's legs are in one queue, in the order of production."""

    aircraft: int
    legs: int
    aircraft_in_several_queues: int
    legs_out_of_order: int
    legs_unknown: int

    @property
    def wrong(self) -> int:
        """The number of legs and aircraft that break the order."""
        return self.aircraft_in_several_queues + self.legs_out_of_order + self.legs_unknown


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The counts of the table.

    `distinct` counts different (broker, queueId, queueOffset).
    """

    rows: int
    distinct: int
    columns: tuple[str, ...]
    files: int
    size_bytes: int
    per_queue: list[int]
    order: OrderCheck


def examine_table(directory: Path, flights: Flights, *, queue_count: int) -> TableFacts:
    """Count the rows and distinct messages, and check the order of each aircraft's legs."""
    # All readers leave out files whose names begin with `_` or `.`.
    dataset = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive")
    rows = dataset.to_table(columns=["brokerName", "queueId", "queueOffset", "keys"])
    counts = rows.group_by("queueId").aggregate([([], "count_all")]).to_pylist()
    per_queue = {each["queueId"]: each["count_all"] for each in counts}
    place = _compute.index_in(rows["keys"], value_set=flights.ids)
    aircraft = _compute.dictionary_encode(flights.sharding_keys).indices.take(place)
    legs = pa.table([aircraft, rows["queueId"], rows["queueOffset"], place], [*_LEG_ORDER, "place"])
    files = [Path(file) for file in dataset.files]
    return TableFacts(
        rows=rows.num_rows,
        distinct=_count_distinct(rows, "brokerName", "queueId", "queueOffset"),
        columns=tuple(dataset.schema.names),
        files=len(files),
        size_bytes=sum(file.stat().st_size for file in files),
        per_queue=[per_queue.get(queue_id, 0) for queue_id in range(queue_count)],
        order=check_order(legs),
    )


def check_order(legs: pa.Table) -> OrderCheck:
    """Check that each aircraft's legs are stored in the order of production.

    Args:
        legs: `aircraft`, `queueId`, `queueOffset`, and `place`, the leg's place in the order of
            production; null if it was never produced.
    """
    known = legs.filter(_compute.is_valid(legs["place"]))
    known = known.sort_by([(name, "ascending") for name in _LEG_ORDER]).combine_chunks()
    queues = known.group_by(["aircraft", "queueId"]).aggregate([])
    counts = queues.group_by("aircraft").aggregate([([], "count_all")])["count_all"]
    before, after = known.slice(0, max(len(known) - 1, 0)), known.slice(1)
    is_wrong = _compute.greater_equal(before["place"], after["place"])
    for name in ("aircraft", "queueId"):
        is_wrong = _compute.and_(is_wrong, _compute.equal(before[name], after[name]))
    return OrderCheck(
        aircraft=len(counts),
        legs=len(legs),
        aircraft_in_several_queues=_count_true(_compute.greater(counts, 1)),
        legs_out_of_order=_count_true(is_wrong),
        legs_unknown=len(legs) - len(known),
    )


def read_deliveries(paths: Sequence[Path]) -> pa.Table:
    """Read several members' deliveries together, each without a torn last line."""
    data = b"".join(each[: each.rfind(b"\n") + 1] for each in map(Path.read_bytes, paths))
    if not data:
        return pa.schema(list(_DELIVERY_TYPES.items())).empty_table()
    names = pyarrow.csv.ReadOptions(column_names=list(_DELIVERY_TYPES))
    types = pyarrow.csv.ConvertOptions(column_types=_DELIVERY_TYPES)
    return pyarrow.csv.read_csv(pa.BufferReader(data), names, convert_options=types)


def count_repeated(deliveries: pa.Table, *, until_ms: int) -> int:
    """Return how many deliveries before an instant were of a message delivered before."""
    early = deliveries.filter(_compute.less(deliveries["at_ms"], until_ms))
    return int(early.num_rows) - _count_distinct(early, "queue_id", "queue_offset")


def find_missing(flights: Flights, deliveries: pa.Table) -> int:
    """Return the number of flights that were never delivered."""
    consumed = _compute.unique(deliveries["flight_id"])
    return len(flights) - _count_true(_compute.is_in(flights.ids, value_set=consumed))


def _count_distinct(rows: pa.Table, *names: str) -> int:
    return int(rows.group_by(list(names)).aggregate([]).num_rows)


def _count_true(values: Any) -> int:
    return int(_compute.sum(values).as_py() or 0)
