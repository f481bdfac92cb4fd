from __future__ import annotations

from pathlib import Path

from sparrowmq.demo.delivery_columns import parse_deliveries, read_deliveries
from sparrowmq.processes.member_log import Delivery


def test_deliveries_leave_out_a_torn_last_line() -> None:
    lines = Delivery(5, 1, 9, "x").encode() + "6,1,1"

    deliveries = parse_deliveries(lines.encode())

    assert deliveries.at_ms.tolist() == [5]
    assert deliveries.queue_ids.tolist() == [1]
    assert deliveries.queue_offsets.tolist() == [9]
    assert deliveries.flight_ids.to_pylist() == ["x"]
    assert len(parse_deliveries(b"6,1,1")) == 0


def test_deliveries_of_several_members_follow_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_text(Delivery(5, 1, 9, "x").encode() + "6,1")
    paths[1].write_text(Delivery(4, 2, 8, "y").encode())

    deliveries = read_deliveries(paths)

    assert deliveries.at_ms.tolist() == [5, 4]
    assert deliveries.flight_ids.to_pylist() == ["x", "y"]
