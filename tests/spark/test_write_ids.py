"""The ids of rows: the same whatever their order, different for each row of a task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from hashlib import sha1, shake_128

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from batches import decode_batch
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.spark.row_encoding import encode_rows
from sparrowmq.spark.write_ids import SHORT_BYTES_MAX, WriteIds

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

    assert len(first) == 500
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

    assert len(ids) == 3 * 4
    assert [part for at, part in enumerate(next(iter(ids_of(rows[:1]))).split("/")) if at != 3] == [
        "q",
        "1",
        "0",
        "0",
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

    assert [each.rpartition("/")[2] for each in ids] == ["0", "0"]
    assert len(set(ids)) == 2


def hash_singly(content: bytes, *, prefix: str) -> str:
    """Return the hash of a row as its definition says, a word at a time."""
    if len(content) > SHORT_BYTES_MAX:
        return sha1(content).hexdigest()[:32]
    words = [len(content)]
    words += [int.from_bytes(content[at : at + 4], "little") for at in range(0, len(content), 4)]
    stream = shake_128(prefix.encode()).digest(32 * len(words))
    factors = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8)]
    digits = (
        sum(factor * word for factor, word in zip(factors[digit::4], words, strict=True))
        for digit in range(4)
    )
    return b"".join((each % 2**64 >> 32).to_bytes(4, "little") for each in digits).hex()


bodies = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.integers(SHORT_BYTES_MAX - 6, SHORT_BYTES_MAX + 6).map(lambda size: b"\xff" * size),
)


@given(st.lists(bodies, min_size=1, max_size=30), st.text("abc/019", max_size=20))
def test_rows_of_all_sizes_side_by_side_have_the_hash_of_the_definition(
    rows: list[bytes], prefix: str
) -> None:
    flags = pa.array([7] * len(rows), pa.int32())
    columns = {"flag": flags, "body": pa.array(rows, pa.binary())}
    properties = pa.array([b"TAGS\x01\xe4\x02"] * len(rows), pa.binary())

    ids = WriteIds(prefix).of_rows(columns, properties, columns["body"]).to_pylist()

    found = [each.removeprefix(f"{prefix}/").split("/")[0] for each in ids]
    contents = [b"7\x02TAGS\x01\xe4\x02\x02" + row for row in rows]
    assert [hash_singly(each, prefix=prefix) for each in contents] == found


def test_ids_are_those_of_every_version() -> None:
    columns = {"body": pa.array([b"short", b"long" * 200, b"short"], pa.binary())}
    properties = pa.array([b"KEYS\x01k\x02"] * 3, pa.binary())

    ids = WriteIds("query/7/0").of_rows(columns, properties, columns["body"]).to_pylist()

    assert ids == [
        "query/7/0/26e6403c37c7f4772a566e32602707af/0",
        "query/7/0/a63eaf215fab7d14cb6b3896a568d968/0",
        "query/7/0/26e6403c37c7f4772a566e32602707af/1",
    ]


def test_many_rows_that_differ_in_few_bits_have_hashes_of_their_own() -> None:
    rows = [bytes(32 + place) + bytes([1 << bit]) for place in range(64) for bit in range(8)]
    rows += [bytes(size) for size in range(1, 400)]
    columns = {"body": pa.array(rows, pa.binary())}
    properties = pa.array([b""] * len(rows), pa.binary())

    ids = WriteIds("q/0/0").of_rows(columns, properties, columns["body"]).to_pylist()

    hashes = [each.split("/")[3] for each in ids]
    assert len(rows) == len(set(hashes))
    # Digits are compared one by one, for rows that shared one of four would be seen as well.
    for digit in range(4):
        assert len(rows) == len({each[8 * digit : 8 * digit + 8] for each in hashes})


def test_ids_differ_by_where_a_row_goes() -> None:
    row = {"body": "a", "topic": "T", "brokerName": "b", "queueId": 0, "delayTimeLevel": 0}
    others = {"topic": "U", "brokerName": "c", "queueId": 1, "delayTimeLevel": 1}
    ids = set()
    for name in ("body", *others):
        changed = pa.RecordBatch.from_pylist([{**row, name: others.get(name, "a")}])
        encoded = encode_rows(changed, pa.array(["id"]), write_ids=WriteIds("q/1/0"))
        ids.add(parse_properties(encoded.properties[0].as_py().decode())["WRITE_ID"])

    assert len(ids) == 1 + len(others)
