"""Reads the members' logs of deliveries (`consumed.csv`, see `processes.member_log`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

_DELIVERY_TYPES = {
    "at_ms": pa.int64(),
    "queue_id": pa.int64(),
    "queue_offset": pa.int64(),
    "flight_id": pa.string(),
}


@dataclass(frozen=True, slots=True)
class DeliveryColumns:
    """The deliveries of one or more members as columns of equal length."""

    at_ms: npt.NDArray[np.int64]
    queue_ids: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    flight_ids: pa.Array

    @property
    def places(self) -> tuple[npt.NDArray[np.int64], ...]:
        """The queue, the offset and the instant of each delivery."""
        return self.queue_ids, self.queue_offsets, self.at_ms

    def __len__(self) -> int:
        """Return the number of deliveries."""
        return len(self.at_ms)


def parse_deliveries(data: bytes) -> DeliveryColumns:
    """Parse the content of one or more `consumed.csv` without a torn last line."""
    whole = data[: data.rfind(b"\n") + 1]
    if whole:
        names = pyarrow.csv.ReadOptions(column_names=list(_DELIVERY_TYPES))
        types = pyarrow.csv.ConvertOptions(column_types=_DELIVERY_TYPES)
        table = pyarrow.csv.read_csv(pa.BufferReader(whole), names, convert_options=types)
    else:
        table = pa.schema(list(_DELIVERY_TYPES.items())).empty_table()
    return DeliveryColumns(
        at_ms=table["at_ms"].to_numpy(),
        queue_ids=table["queue_id"].to_numpy(),
        queue_offsets=table["queue_offset"].to_numpy(),
        flight_ids=pa.concat_arrays(table["flight_id"].chunks),
    )


def read_deliveries(paths: Sequence[Path]) -> DeliveryColumns:
    """Read several members' deliveries together, in the order of the paths."""
    wholes = [data[: data.rfind(b"\n") + 1] for data in map(Path.read_bytes, paths)]
    return parse_deliveries(b"".join(wholes))
