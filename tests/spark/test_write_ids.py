"""The ids of rows: the same whatever their order, different for each row of a task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import decode_batch
from sparrowmq.spark.row_encoding import encode_rows
from sparrowmq.spark.write_ids import WriteIds

Row = tuple[str, str | None, int | None]


def ids_of(
    rows: Sequence[Row], *, prefix: str = "q/1/0", batch_rows: int = 7
) -> dict[str, tuple[bytes, str | None]]:
    """Return what was sent under each id, by a task that gets its rows in small batches."""
    write_ids = WriteIds(prefix)
    found: dict[str, tuple[bytes, str | None]] = {}
    for at in range(0, len(rows), batch_rows):
        bodies, tags, flags = zip(*rows[at : at + batch_rows], strict=True)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(bodies), pa.array(tags, pa.string()), pa.array(flags, pa.int32())],
            names=["body", "tags", "flag"],
        )
        # Message ids differ with every attempt.
        msg_ids = pa.array([str(random.random()) for _ in bodies])
        for each in encode_rows(batch, msg_ids, write_ids=write_ids).entries.to_pylist():
            (entry,) = decode_batch(each)
            properties = parse_properties(entry.properties)
            found[properties["WRITE_ID"]] = (entry.body, properties.get("TAGS"))
    return found


def make_rows(count: int, *, kinds: int, seed: int) -> list[Row]:
    dice = random.Random(seed)
    return [
        (f"body {dice.randrange(kinds)}", dice.choice(["t", None]), dice.choice([0, 1]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kinds", [1, 5, 100_000])
def test_a_row_has_its_id_in_any_order(kinds: int) -> None:
    rows = make_rows(500, kinds=kinds, seed=kinds)
    first = ids_of(rows)
    for seed in range(5):
        shuffled = random.Random(seed).sample(rows, len(rows))
        assert first == ids_of(shuffled, batch_rows=1 + 13 * seed)

    assert 500 == len(first)
    sent = Counter((body.encode(), tag) for body, tag, _ in rows)
    assert sent == Counter(first.values())


def test_part_of_a_task_has_ids_of_the_whole() -> None:
    rows = make_rows(300, kinds=20, seed=1)

    whole, part = ids_of(rows), ids_of(random.Random(2).sample(rows, 100))

    assert part.items() <= whole.items()


def test_ids_differ_by_anything_that_is_sent_and_by_the_task() -> None:
    rows: list[Row] = [("a", None, 0), ("a", "t", 0), ("a", "t", 1), ("b", "t", 1), ("b", "t", 1)]

    ids = {
        each.rpartition("/")[0]
        for prefix in ("q/1/0", "q/1/1", "q/2/0")
        for each in ids_of(rows, prefix=prefix)
    }

    assert 3 * 4 == len(ids)
    assert ["q", "1", "0", "0"] == [
        part for at, part in enumerate(next(iter(ids_of(rows[:1]))).split("/")) if at != 3
    ]


def test_no_property_looks_like_another_rows_body() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"x", b"TAGS\x01t\x02\x02x"]),
            pa.array(["t", None]),
        ],
        names=["body", "tags"],
    )
    entries = encode_rows(batch, pa.array(["m"] * 2), write_ids=WriteIds("q/0/0")).entries
    ids = [parse_properties(decode_batch(e)[0].properties)["WRITE_ID"] for e in entries.to_pylist()]

    assert ["0", "0"] == [each.rpartition("/")[2] for each in ids]
    assert 2 == len(set(ids))
