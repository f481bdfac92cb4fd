"""Verifies the Parquet table with plain Arrow, as any other reader would, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset

from sparrowmq.demo import figures
from sparrowmq.demo.flights import Flights

# Arrow creates these functions at import, where no type checker sees them.
_compute: Any = pyarrow.compute


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
    order: figures.OrderCheck


def read_table(directory: Path) -> pyarrow.dataset.Dataset:
    """Open the table, without files whose names begin with `_` or `.`, as all readers do."""
    return pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive")


def examine_table(directory: Path, flights: Flights, *, queue_count: int) -> TableFacts:
    """Count the rows and distinct messages, and check the order of each aircraft's legs."""
    dataset = read_table(directory)
    names = ["brokerName", "queueId", "queueOffset", "keys"]
    table = dataset.to_table(columns=names)
    brokers = _compute.dictionary_encode(table["brokerName"].combine_chunks()).indices
    queue_ids = table["queueId"].to_numpy().astype("int64")
    queue_offsets = table["queueOffset"].to_numpy()
    files = [Path(file) for file in dataset.files]
    return TableFacts(
        rows=table.num_rows,
        distinct=figures.count_distinct(
            brokers.to_numpy().astype("int64"), queue_ids, queue_offsets
        ),
        columns=tuple(dataset.schema.names),
        files=len(files),
        size_bytes=sum(file.stat().st_size for file in files),
        per_queue=figures.count_per_queue(queue_ids, queue_count=queue_count),
        order=_check_order(table, queue_ids, queue_offsets=queue_offsets, flights=flights),
    )


def find_missing(flights: Flights, consumed_ids: pa.Array) -> int:
    """Return the number of flights that are not among the consumed ones."""
    is_there = _compute.is_in(flights.ids, value_set=_compute.unique(consumed_ids))
    return len(flights) - int(_compute.sum(is_there).as_py() or 0)


def _check_order(
    table: pa.Table, queue_ids: Any, *, queue_offsets: Any, flights: Flights
) -> figures.OrderCheck:
    keys = table["keys"].combine_chunks()
    index = _compute.index_in(keys, value_set=flights.ids)
    aircraft = _compute.dictionary_encode(flights.sharding_keys).indices
    produced_index = _compute.fill_null(index, -1).to_numpy()
    # A leg that was never produced has no aircraft. Any number serves: the leg is counted as such.
    of_leg = aircraft.take(_compute.fill_null(index, 0)) if len(flights) else index
    return figures.check_order(
        of_leg.to_numpy().astype("int64"),
        queue_ids,
        queue_offsets=queue_offsets,
        produced_index=produced_index.astype("int64"),
    )
