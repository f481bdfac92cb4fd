"""Reads the jobs' input tables, Parquet or JSON lines, and checks them before any computation.

A job declares its columns. A Parquet table must have these columns, with types that can be cast;
JSON lines are parsed by the declared types. An error names the path and the nearest right name.
Tests: test_duplicates.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.errors import ConfigError, did_you_mean

Value = TypeVar("Value")
_EPOCH = datetime.fromtimestamp(0, UTC)
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")


def read_table(
    session: SparkSession,
    path: str,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
    is_streamed: bool = False,
) -> DataFrame:
    """Read a table with these columns; return these columns only.

    Args:
        path: a directory or file of Parquet; or JSON lines if the path ends in .json, .jsonl,
            .ndjson or one of these with .gz. The path may be a glob.
        columns: the type of each required column, in Spark's DDL.
        optional: the type of each optional column; a missing one is null.
        is_streamed: whether to read files as they arrive; a first Parquet file gives the types.

    Raises: ConfigError if the path does not exist or is no such table; if a column is missing or
        its type cannot be cast; or if the table is empty and not streamed.
    """
    wanted = {**columns, **(optional or {})}
    reader = session.readStream if is_streamed else session.read
    try:
        if path.endswith(_JSON_SUFFIXES):
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in wanted.items())
            found = reader.schema(ddl).option("mode", "FAILFAST").json(path)
        else:
            there = session.read.option("mergeSchema", "true").parquet(path)
            found = session.readStream.schema(there.schema).parquet(path) if is_streamed else there
    except AnalysisException as error:
        raise ConfigError(f"cannot read {path}: {_describe(error)}") from None
    return select_columns(found, columns, optional=optional, what=path, may_be_empty=is_streamed)


def select_columns(
    frame: DataFrame,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
    what: str,
    may_be_empty: bool = False,
) -> DataFrame:
    """Return a frame's columns with their declared types; `what` names the frame in errors.

    Raises: ConfigError if a column is missing or its type cannot be cast, or if the frame is empty
        and `may_be_empty` is False.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        there = f"it has {', '.join(frame.columns)}; needed are {', '.join(columns)}"
        hint = did_you_mean(missing[0], frame.columns, there)
        raise ConfigError(f"{what} has no column {missing[0]!r}{hint}")
    wanted = {**columns, **(optional or {})}
    chosen = [
        (F.col(f"`{name}`") if name in frame.columns else F.lit(None)).cast(kind).alias(name)
        for name, kind in wanted.items()
    ]
    try:
        selected = frame.select(chosen)
    except AnalysisException as error:
        raise ConfigError(f"{what}: {_describe(error)}") from None
    if not may_be_empty and selected.isEmpty():
        raise ConfigError(f"{what} has no rows: there is nothing to compute")
    return selected


def check_complete(frame: DataFrame, names: Iterable[str], *, what: str) -> DataFrame:
    """Return the frame.

    Raises: ConfigError if a row has a null, as JSON lines may omit a value, or an int below 0.
    """
    ints = [name for name in names if dict(frame.dtypes)[name] == "int"]
    counts = {f"no {name}": F.count_if(F.col(name).isNull()) for name in names}
    counts |= {f"a {name} below 0": F.count_if(F.col(name) < 0) for name in ints}
    (row,) = frame.select(F.count("*"), *counts.values()).collect()
    for fault, count in zip(counts, row[1:], strict=True):
        if count:
            raise ConfigError(f"{what}: {count:,} of {row[0]:,} rows have {fault}")
    return frame


def collect_as(frame: DataFrame, kind: type[Value]) -> list[Value]:
    """Collect rows as dataclass values; the field `queue_id` is the column `queueId`.

    Timestamps are in UTC; Spark would return them in this machine's time zone, without naming it.
    """
    types = dict(frame.dtypes)
    names = [
        re.sub("_([a-z])", lambda found: found[1].upper(), each.name)
        for each in fields(kind)  # type: ignore[arg-type]
    ]
    at = {index for index, name in enumerate(names) if types[name] == "timestamp"}
    chosen = [F.unix_micros(name) if i in at else F.col(name) for i, name in enumerate(names)]

    def convert(index: int, value: Any) -> Any:
        if index in at and value is not None:
            return _EPOCH + timedelta(microseconds=value)
        return tuple(value) if isinstance(value, list) else value

    return [
        kind(*(convert(index, value) for index, value in enumerate(row)))
        for row in frame.select(chosen).collect()
    ]


def _describe(error: Exception) -> str:
    """Return the message of Spark's error in one line, without error class and links."""
    first = str(error).splitlines()[0]
    return first.partition("SQLSTATE")[0].rstrip(" .;")
