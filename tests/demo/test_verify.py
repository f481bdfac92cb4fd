from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowmq.demo.figures import OrderCheck
from sparrowmq.demo.flights import Flights, load_flights
from sparrowmq.demo.verify import examine_table, find_missing


def write_batch(directory: Path, name: str, *, ids: list[str], offsets: list[int]) -> None:
    part = directory / name / "date=2013-01-01"
    part.mkdir(parents=True)
    columns = {
        "brokerName": ["broker-a"] * len(ids),
        "queueId": pa.array([0] * len(ids), pa.int32()),
        "queueOffset": offsets,
        "keys": ids,
    }
    pq.write_table(pa.table(columns), part / "part-0.parquet")


def three_flights_of_one_aircraft() -> Flights:
    flights = load_flights(limit=3)
    one_key = pa.array(["N14228"] * 3)
    return Flights(table=flights.table, ids=flights.ids, sharding_keys=one_key)


def test_table_is_counted_without_what_is_being_written(tmp_path: Path) -> None:
    flights = three_flights_of_one_aircraft()
    ids = flights.ids.to_pylist()
    write_batch(tmp_path, "batchId=0", ids=ids[:2], offsets=[0, 1])
    write_batch(tmp_path, "batchId=1", ids=ids[2:], offsets=[2])
    write_batch(tmp_path, "_writing/batchId=2", ids=ids[:1], offsets=[9])

    facts = examine_table(tmp_path, flights, queue_count=2)

    assert (facts.rows, facts.distinct, facts.files) == (3, 3, 2)
    assert facts.per_queue == [3, 0]
    assert facts.order == OrderCheck(1, 3, 0, 0, 0)


def test_doubled_rows_and_swapped_legs_are_seen(tmp_path: Path) -> None:
    flights = three_flights_of_one_aircraft()
    first, second, third = flights.ids.to_pylist()
    write_batch(tmp_path, "batchId=0", ids=[first, third, second, "?"], offsets=[0, 1, 2, 2])

    facts = examine_table(tmp_path, flights, queue_count=1)

    assert (facts.rows, facts.distinct) == (4, 3)
    assert not facts.order.holds
    assert facts.order.legs_unknown == 1


def test_flights_never_consumed_are_missing() -> None:
    flights = three_flights_of_one_aircraft()

    assert find_missing(flights, pa.array([flights.ids[1].as_py()] * 2)) == 2
    assert find_missing(flights, flights.ids) == 0
    assert find_missing(flights, pa.array([], pa.string())) == 3
