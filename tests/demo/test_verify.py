from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowmq.demo.flights import Flights, load_flights
from sparrowmq.demo.verify import (
    OrderCheck,
    check_order,
    count_repeated,
    examine_table,
    find_missing,
    read_deliveries,
)
from sparrowmq.processes.member_log import Delivery


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
    assert facts.order.wrong == 2
    assert facts.order.legs_unknown == 1


def write_deliveries(path: Path, *rows: tuple[int, int, int, str], torn: str = "") -> Path:
    path.write_text("".join(Delivery(*row).encode() for row in rows) + torn)
    return path


def test_flights_never_consumed_are_missing(tmp_path: Path) -> None:
    flights = three_flights_of_one_aircraft()
    ids = flights.ids.to_pylist()
    one = write_deliveries(tmp_path / "one", (5, 0, 0, ids[1]), (6, 0, 0, ids[1]))
    rest = write_deliveries(tmp_path / "rest", (5, 0, 1, ids[0]), (6, 0, 2, ids[2]))
    none = write_deliveries(tmp_path / "none")

    assert find_missing(flights, read_deliveries([one])) == 2
    assert find_missing(flights, read_deliveries([one, rest])) == 0
    assert find_missing(flights, read_deliveries([none])) == 3


def test_deliveries_leave_out_torn_last_lines(tmp_path: Path) -> None:
    torn = write_deliveries(tmp_path / "a", (5, 1, 9, "x"), torn="6,1,1")
    whole = write_deliveries(tmp_path / "b", (4, 2, 8, "y"))

    assert read_deliveries([torn, whole]).to_pylist() == [
        {"at_ms": 5, "queue_id": 1, "queue_offset": 9, "flight_id": "x"},
        {"at_ms": 4, "queue_id": 2, "queue_offset": 8, "flight_id": "y"},
    ]


def test_deliveries_after_the_first_of_a_message_are_repeated(tmp_path: Path) -> None:
    rows = [(30, 0, 5), (10, 0, 5), (11, 1, 5), (12, 0, 6), (20, 0, 5)]
    path = write_deliveries(tmp_path / "a", *((*row, "x") for row in rows))
    deliveries = read_deliveries([path])

    assert [count_repeated(deliveries, until_ms=at_ms) for at_ms in (0, 20, 21, 31)] == [0, 0, 1, 2]


def legs(*rows: tuple[int, int, int, int | None]) -> pa.Table:
    names = ("aircraft", "queueId", "queueOffset", "place")
    types = pa.schema([(name, pa.int64()) for name in names])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=types)


def test_order_holds_when_each_aircraft_ascends_in_one_queue() -> None:
    stored = legs((7, 0, 0, 10), (8, 0, 1, 11), (7, 0, 2, 12), (8, 0, 3, 13))

    assert check_order(stored) == OrderCheck(2, 4, 0, 0, 0)
    assert check_order(stored).wrong == 0
    assert check_order(legs()) == OrderCheck(0, 0, 0, 0, 0)


def test_order_counts_legs_that_overtook_and_aircraft_that_were_split() -> None:
    stored = legs(
        (7, 0, 0, 10), (7, 0, 1, 12), (7, 0, 2, 11), (8, 0, 3, 13), (8, 1, 0, 14), (9, 1, 1, None)
    )

    assert check_order(stored) == OrderCheck(2, 6, 1, 1, 1)
    # A leg that was stored twice.
    assert check_order(legs((7, 0, 0, 10), (7, 0, 1, 10))) == OrderCheck(1, 2, 0, 1, 0)
