"""Offsets of many queues as JSON, in the form of checkpoints and options. Pure.

The shape is `{"topic": {"broker": {"queueId": offset}}}`. An offset counts messages and is the
offset of the *next* message to read. In options, -2 stands for the earliest message and -1 for the
end of the queue; a checkpoint has resolved numbers only. Spark compares offsets as texts, so they
are always written in one order: topics and brokers by name, queues by number. A checkpoint also
has, in the same shape under `@storedBy`, the time by which the messages before an offset were
stored: a queue that was emptied and filled beyond the offset has younger messages there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.spark.option_table import check_timestamp_ms

# The two stand-ins for an offset in options, as in Spark's source for Kafka.
EARLIEST = -2
LATEST = -1

OffsetsJson: TypeAlias = dict[str, dict[str, dict[str, int]]]

# The key of a checkpoint beside its topics, none of which can have this name.
STORED_BY = "@storedBy"

_SHAPE = '{"topic": {"broker": {"queueId": offset}}}'


def encode_checkpoint(
    offsets: Mapping[MessageQueue, int], stored_by_ms: Mapping[MessageQueue, int]
) -> dict[str, Any]:
    """Return offsets for a checkpoint, with the time by which the messages before were stored."""
    times = encode_offsets(stored_by_ms)
    return {**encode_offsets(offsets), **({STORED_BY: times} if times else {})}


def decode_stored_by(value: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the times of a checkpoint, in ms; {} for one without."""
    return decode_offsets(value.get(STORED_BY, {}))


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> OffsetsJson:
    """Return the nested dict that Spark writes as JSON, in its one order."""
    result: OffsetsJson = {}
    for queue in sorted(offsets):
        brokers = result.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return result


def decode_offsets(value: Any) -> dict[MessageQueue, int]:
    """Return the offsets of a nested dict, as `json.loads` returns it.

    Raises: ConfigError that names the place of a fault in the shape.
    """
    offsets: dict[MessageQueue, int] = {}
    for topic, brokers in _items(value, "the offsets"):
        if topic == STORED_BY:
            continue
        for broker_name, queues in _items(brokers, f"topic {topic!r}"):
            for queue_text, offset in _items(queues, f"broker {broker_name!r} of {topic!r}"):
                queue_id = _queue_id(queue_text, topic=topic, broker_name=broker_name)
                if type(offset) is not int or offset < EARLIEST:
                    raise ConfigError(
                        f"the offset of queue {topic}/{broker_name}/{queue_id} is {offset!r}; "
                        f"a whole number is needed, or -2 for earliest, -1 for latest"
                    )
                offsets[MessageQueue(topic, broker_name, queue_id)] = offset
    return offsets


def parse_offsets(text: str) -> dict[MessageQueue, int]:
    """Return the offsets of a JSON text.

    Raises: ConfigError if it is not JSON or has another shape.
    """
    return decode_offsets(_parse_json(text, _SHAPE))


def parse_timestamps(text: str) -> dict[MessageQueue, int]:
    """Return the times of a JSON text of the same shape, in milliseconds since 1970.

    Raises: ConfigError if it is not JSON or has another shape.
    """
    timestamps_ms = decode_offsets(_parse_json(text, _SHAPE))
    for queue, timestamp_ms in timestamps_ms.items():
        try:
            check_timestamp_ms(timestamp_ms)
        except ValueError as error:
            raise ConfigError(
                f"the time of queue {queue.topic}/{queue.broker_name}/{queue.queue_id} is "
                f"{timestamp_ms}: {error}"
            ) from None
    return timestamps_ms


def parse_queues(text: str) -> frozenset[MessageQueue]:
    """Return the queues of an `assign` text, `{"topic": {"broker": [queueId, ...]}}`.

    Raises: ConfigError if it is not JSON, has another shape, or names no queue.
    """
    shape = '{"topic": {"broker": [queueId, ...]}}'
    queues: set[MessageQueue] = set()
    for topic, brokers in _items(_parse_json(text, shape), "the value"):
        for broker_name, queue_ids in _items(brokers, f"topic {topic!r}"):
            if not isinstance(queue_ids, list):
                raise ConfigError(f"broker {broker_name!r} of {topic!r} needs a list of queue ids")
            for queue_id in queue_ids:
                checked = _queue_id(queue_id, topic=topic, broker_name=broker_name)
                queues.add(MessageQueue(topic, broker_name, checked))
    if not queues:
        raise ConfigError(f"no queue is named; the shape is {shape}")
    return frozenset(queues)


def number_queues(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
    """Give every queue of a topic a dense number from 0, over sorted brokers and queue ids.

    This is the `partition` of the column profile `kafka`. A new broker or queue may shift the
    numbers of the queues that sort after it.
    """
    numbers: dict[MessageQueue, int] = {}
    topic: str | None = None
    number = 0
    for queue in sorted(set(queues)):
        number = 0 if queue.topic != topic else number + 1
        topic = queue.topic
        numbers[queue] = number
    return numbers


def _parse_json(text: str, shape: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{text[:80]!r} is not JSON ({error}); the shape is {shape}") from error


def _items(value: Any, place: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: a JSON object is needed, got {value!r}; the shape is {_SHAPE}")
    return value.items()


def _queue_id(value: Any, *, topic: str, broker_name: str) -> int:
    queue_id = None if isinstance(value, bool) else read_whole_number(str(value))
    if queue_id is None:
        raise ConfigError(
            f"{value!r} is not a queue id of topic {topic!r} on broker {broker_name!r}"
        )
    return queue_id
