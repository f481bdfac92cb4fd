"""Errors for Spark's users: one clear line, and losses as errors or warnings.

Spark puts the Python traceback of a worker into its own exception, below 200 lines of Java. For an
error that the user can mend, the traceback is useless. Before such an error leaves a worker, the
worker therefore asks PySpark for the message alone. The worker ends with the error, so no other
error loses its traceback. Tests: test_range_reader.py.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from sparrowmq.errors import BrokerError, ConfigError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.spark.bounds import Bounds, Loss, OffsetChoice, resolve_choice

_LOG = logging.getLogger("sparrowmq.spark")
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

# The advice after a refusal whose remark has none.
_HINT = (
    "; see the permissions of the topic and the group, and whether the broker wants options "
    "accessKey and secretKey"
)

P = ParamSpec("P")
T = TypeVar("T")


class RocketMQError(SparrowError):
    """An error of a read or a write, in one line that begins with `sparrowmq:`."""


class DataLossError(RocketMQError):
    """Messages that the read should return are gone."""


def clear(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method that Spark calls: our errors become `RocketMQError`, without a traceback."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except SparrowError as error:
            raise as_clear(error) from None

    return call


def as_clear(error: SparrowError) -> RocketMQError:
    """Return the error as one line for the user; in a Spark worker, show only this line."""
    if _is_spark_worker():
        os.environ[_HIDE_TRACEBACK] = "1"
    if isinstance(error, RocketMQError):
        return error
    is_refused = isinstance(error, BrokerError) and (
        error.is_denial or error.code == ResponseCode.NO_PERMISSION
    )
    hint = _HINT if is_refused else ""
    return RocketMQError(f"sparrowmq: {error}{hint}")


def report_losses(losses: Iterable[Loss], *, fail: bool) -> None:
    """Raise a `DataLossError` for lost messages, or log one warning for each queue.

    Raises: DataLossError if `fail` and there is any loss.
    """
    found = list(losses)
    if not found:
        return
    if not fail:
        for loss in found:
            _LOG.warning("skipped for failOnDataLoss=false: %s", loss)
        return
    more = f" (and {len(found) - 1} more queues)" if len(found) > 1 else ""
    raise DataLossError(
        f"sparrowmq: messages are lost: {found[0]}{more}; "
        f'.option("failOnDataLoss", "false") skips what is gone'
    )


def settle(
    choices: Sequence[OffsetChoice], bounds: Bounds, *, fail: bool
) -> list[dict[MessageQueue, int]]:
    """Turn the start of a read, and perhaps its end, into one offset for each queue.

    Raises: DataLossError as `report_losses`; ConfigError if a queue's start lies after its end, or
    the queue does not exist.
    """
    answers = [resolve_choice(choice, bounds) for choice in choices]
    report_losses([loss for answer in answers for loss in answer.losses], fail=fail)
    start, end = answers[0].offsets, answers[-1].offsets
    for queue in sorted(start):
        if start[queue] > end[queue]:
            raise ConfigError(
                f"queue {queue.topic}/{queue.broker_name}/{queue.queue_id}: startingOffsets "
                f"{start[queue]} lies behind endingOffsets {end[queue]}"
            )
    return [answer.offsets for answer in answers]


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(("pyspark.", "sparrowmq.spark.planning_"))
