from __future__ import annotations

import json

import pyarrow as pa

from sparrowmq.demo.flights import COLUMN_TYPES, Flights, load_flights, order_flights

NUMBERS = [name for name, kind in COLUMN_TYPES.items() if kind == "INT"]


def flights_of(*rows: dict[str, object]) -> Flights:
    filled = [{name: 0 if name in NUMBERS else "X" for name in COLUMN_TYPES} | r for r in rows]
    fields = [pa.field(n, pa.int32() if n in NUMBERS else pa.string()) for n in COLUMN_TYPES]
    return order_flights(pa.Table.from_pylist(filled, schema=pa.schema(fields)))


def leg(**values: object) -> dict[str, object]:
    return {"year": 2013, "month": 1, "day": 1, "carrier": "UA", "origin": "EWR"} | values


def test_flights_stand_in_the_order_of_departure() -> None:
    flights = flights_of(
        leg(month=10, flight=1),
        leg(month=2, flight=2, sched_dep_time=900),
        leg(month=2, flight=3, sched_dep_time=515),
    )

    assert flights.ids.to_pylist() == [
        "2013-02-01-UA-3-EWR",
        "2013-02-01-UA-2-EWR",
        "2013-10-01-UA-1-EWR",
    ]


def test_flight_without_tail_number_takes_carrier_and_flight_number() -> None:
    flights = flights_of(leg(flight=1, tailnum=None), leg(flight=2, tailnum="N14228"))

    assert flights.sharding_keys.to_pylist() == ["UA1", "N14228"]


def test_body_is_json_with_null_for_unknown() -> None:
    flights = flights_of(leg(flight=1, dep_delay=None, tailnum=None))

    body = json.loads(next(flights.bodies()))

    assert list(COLUMN_TYPES) == list(body)
    assert (body["dep_delay"], body["tailnum"], body["carrier"]) == (None, None, "UA")


def test_first_flights_of_the_package() -> None:
    flights = load_flights(limit=3)

    assert len(flights) == 3
    assert flights.ids[0].as_py() == "2013-01-01-UA-1545-EWR"
    assert flights.sharding_keys[0].as_py() == "N14228"
    assert len(list(flights.bodies())) == 3
