"""What the store's tests share: disks in memory, and records."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.simulation.faulty_disk import SimulatedStorage

HOST = encode_host("127.0.0.1:10911")


@pytest.fixture
def new_storage() -> Callable[..., SimulatedStorage]:
    """Makes empty disks in memory: `new_storage(rng)`, whose choices power cuts make."""

    def make(rng: Random | None = None) -> SimulatedStorage:
        return SimulatedStorage(rng or Random(0))

    return make


@pytest.fixture
def storage() -> SimulatedStorage:
    return SimulatedStorage(Random(0))


@pytest.fixture
def new_record() -> Callable[..., Record]:
    """Makes records: `new_record(body, topic=..., queue_id=..., ...)`."""

    def make(body: bytes, *, topic: str = "T", queue_id: int = 0, **fields: object) -> Record:
        fields.setdefault("properties", "TAGS\x01A\x02UNIQ_KEY\x010001")
        return Record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            born_host=HOST,
            store_host=HOST,
            **fields,  # type: ignore[arg-type]
        )

    return make
