"""The conditions of a query that a batch applies before it reads.

Spark passes the conditions that it joins by AND to `pushFilters` of a reader, and has EXPLAIN show
those that the reader takes. It does so only where `spark.sql.python.filterPushdown.enabled` is
true, and elsewhere refuses a reader that has the method. It keeps the plan with a query's last
conditions for the frame, and gives their rows alone to whatever reads the frame without conditions,
or beside others; so `spark_session` leaves the setting off. Tests: test_pushed_filters.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from sparrowmq.protocol.subscription import EXPRESSION_TYPE_TAG, TAG_SEPARATOR
from sparrowmq.spark.narrowing import Narrowing
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.shipping import Packed, pack

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime.fromtimestamp(0, UTC)
_SETS = {"topic": "topics", "brokerName": "broker_names", "queueId": "queue_ids", "tags": "tags"}
_RANGES = {"queueOffset": "offsets", "offset": "offsets", "storeTimestamp": "stored_us"}
# What a range's bound becomes, where ranges are of whole numbers: the start, and the end behind it.
_BOUNDS: dict[type[Filter], Callable[[int], tuple[int | None, int | None]]] = {
    EqualTo: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value),
    LessThanOrEqual: lambda value: (None, value + 1),
}
# Every message has them.
_NEVER_NULL = frozenset(_SETS.keys() - {"tags"} | _RANGES.keys())
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
# A tag that a filter by tags can name.
_PLAIN_TAG = re.compile(r"[^\s|*]+")

Make = Callable[[SourceOptions], DataSourceReader]


class FilteringReader(DataSourceReader):
    """Reads the part of a batch that conditions leave.

    Args:
        make: the class of the reader that reads.
    """

    def __init__(self, make: Make, options: SourceOptions) -> None:
        self._make = make
        self._options = options

    def __reduce__(self) -> Packed:
        return pack(FilteringReader, self._make, self._options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the conditions on places and store times, and on tags; return the others."""
        left = []
        for each in filters:
            options = _take(self._options, each)
            if options is None:
                left.append(each)
            else:
                self._options = options
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Divide what the conditions leave into partitions."""
        return self._make(self._options).partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition, in an executor; leave out rows by their exact store times."""
        batches: Iterator[pa.RecordBatch] = self._make(self._options).read(partition)
        start, end = self._options.narrowing.stored_us
        if start is None and end is None:
            yield from batches
            return
        import pyarrow as pa

        for batch in batches:
            stored_us = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
            is_kept = stored_us >= (_LONG_MIN if start is None else start)
            is_kept &= stored_us < (_LONG_MAX if end is None else end)
            yield batch.filter(pa.array(is_kept))


def _take(options: SourceOptions, condition: Filter) -> SourceOptions | None:
    """Return the options with a condition; None if the read cannot apply it."""
    name = ".".join(getattr(condition, "attribute", ()))
    value: Any = getattr(condition, "value", None)
    if name in _NEVER_NULL and isinstance(condition, IsNotNull):
        return options
    if name in _SETS and isinstance(condition, EqualTo | In):
        chosen: frozenset[Any] = frozenset(value if type(condition) is In else (value,))
        return _choose(options, _SETS[name], chosen - {None})
    if name not in _RANGES or type(condition) not in _BOUNDS:
        return None
    if isinstance(value, datetime):
        value = (value - _EPOCH) // timedelta(microseconds=1)
    start, end = _BOUNDS[type(condition)](value)
    field = _RANGES[name]
    return replace(options, narrowing=options.narrowing.within(field, start, end))


def _choose(options: SourceOptions, field: str, chosen: frozenset[Any]) -> SourceOptions | None:
    if field != "tags":
        return replace(options, narrowing=options.narrowing.among(field, chosen))
    is_tagged = options.filter_type == EXPRESSION_TYPE_TAG
    if not is_tagged or not all(map(_PLAIN_TAG.fullmatch, chosen)):
        return None
    tags = chosen if options.tags is None else chosen & options.tags
    if not tags:
        # No message has two tags.
        return replace(options, narrowing=Narrowing(topics=frozenset()))
    return replace(options, sub_expression=f" {TAG_SEPARATOR} ".join(sorted(tags)))
