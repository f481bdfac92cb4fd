"""Input tables of the jobs: Parquet or JSON lines, checked before anything is computed.

A job declares the columns it needs. Parquet must have them, with types that can be cast; JSON
lines are read by them. What is wrong is said at once, with the path and the nearest right name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")


def read_table(
    session: SparkSession,
    path: str,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read a table that has these columns, and return these alone.

    Args:
        session: the Spark session.
        path: a directory or file of Parquet; or JSON lines, if it ends in .json, .jsonl, .ndjson
            or one of these and .gz. Globs may be used.
        columns: the type of each column that must be there, as Spark's DDL writes it.
        optional: as `columns`, for those that are null where they are missing.

    Raises: ConfigError if the path does not exist, holds no such table, lacks a column, has one
        whose type cannot be cast, or has no row.
    """
    from pyspark.errors import AnalysisException

    wanted = {**columns, **(optional or {})}
    try:
        if path.endswith(_JSON_SUFFIXES):
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in wanted.items())
            found = session.read.schema(ddl).option("mode", "FAILFAST").json(path)
        else:
            found = session.read.option("mergeSchema", "true").parquet(path)
    except AnalysisException as error:
        raise ConfigError(f"cannot read {path}: {_describe(error)}") from None
    return select_columns(found, columns, optional=optional, what=path)


def stream_table(
    session: SparkSession,
    path: str,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read files as they come, as `read_table` reads those that are there.

    Args:
        session: the Spark session.
        path: a directory of Parquet, which tells the types, so one file must be there; or a glob
            of JSON lines.
        columns: as of `read_table`.
        optional: as of `read_table`.

    Raises: ConfigError as `read_table`, except that there may be no row.
    """
    from pyspark.errors import AnalysisException

    wanted = {**columns, **(optional or {})}
    try:
        if path.endswith(_JSON_SUFFIXES):
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in wanted.items())
            found = session.readStream.schema(ddl).option("mode", "FAILFAST").json(path)
        else:
            schema = session.read.option("mergeSchema", "true").parquet(path).schema
            found = session.readStream.schema(schema).parquet(path)
    except AnalysisException as error:
        raise ConfigError(f"cannot read {path}: {_describe(error)}") from None
    return select_columns(found, columns, optional=optional, what=path, may_be_empty=True)


def select_columns(
    frame: DataFrame,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
    what: str,
    may_be_empty: bool = False,
) -> DataFrame:
    """Return the columns of a frame by the types declared; `what` names the frame in errors.

    Raises: ConfigError if a column is missing or has a type that cannot be cast, or no row is
        there and it may not be empty.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    missing = [name for name in columns if name not in frame.columns]
    if missing:
        near = difflib.get_close_matches(missing[0], frame.columns, n=1, cutoff=0.5)
        hint = f"; is it {near[0]!r} there?" if near else ""
        raise ConfigError(
            f"{what} has no column {missing[0]!r}{hint} It has {', '.join(frame.columns)}; "
            f"needed are {', '.join(columns)}"
        )
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


def _describe(error: Exception) -> str:
    """Return Spark's message in one line, without its class and its links."""
    first = str(error).splitlines()[0]
    return first.partition("SQLSTATE")[0].rstrip(" .;")
