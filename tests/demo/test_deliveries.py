from __future__ import annotations

from pathlib import Path

from sparrowmq.demo.deliveries import parse_deliveries, read_deliveries
from sparrowmq.processes.member_log import Delivery


def test_deliveries_leave_out_a_torn_last_line() -> None:
    lines = Delivery(5, 1, 9, "x").encode() + "6,1,1"

    deliveries = parse_deliveries(lines.encode())

    assert [5] == deliveries.at_ms.tolist()
    assert [1] == deliveries.queue_ids.tolist()
    assert [9] == deliveries.queue_offsets.tolist()
    assert ["x"] == deliveries.flight_ids.to_pylist()
    assert 0 == len(parse_deliveries(b"6,1,1"))


def test_deliveries_of_several_members_follow_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_text(Delivery(5, 1, 9, "x").encode() + "6,1")
    paths[1].write_text(Delivery(4, 2, 8, "y").encode())

    deliveries = read_deliveries(paths)

    assert [5, 4] == deliveries.at_ms.tolist()
    assert ["x", "y"] == deliveries.flight_ids.to_pylist()
