"""Runs of records of one shape are indexed byte for byte as record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.store import MessageStore, PutStatus, StoreConfig
from sparrowmq.store import message_index as index
from sparrowmq.store.even_batch import EVEN_COUNT_MIN
from sparrowmq.store.even_index import KeyRun, find_run
from sparrowmq.store.file_storage import FileStorage
from steps import run_steps

pytestmark = pytest.mark.usefixtures("without_speedups")

HOSTS = tuple(map(encode_host, ("1.2.3.4:5", "[::1]:6")))
# What the properties of a group are like; `{0}` is another text of one length in each record.
SHAPES = [
    "",
    "UNIQ_KEY\x01{0}\x02KEYS\x01{0}",
    "KEYS\x01{0}\x02UNIQ_KEY\x01A{0}",
    "UNIQ_KEY\x01{0}\x02KEYS\x01",
    "KEYS\x01first\x02KEYS\x01{0}",
    "a\x01{0}\x02XKEYS\x01{0}",
    "no name{0}",
    "KEYS\x01{0}\x02\x02a\x01b",
    "KEYS\x01" + "{0}" * 40,
]
CONFIG = StoreConfig(commit_log_file_size=1 << 16, index_slot_count=97, index_entry_count=151)

groups = st.lists(
    st.tuples(
        st.sampled_from(SHAPES),
        st.sampled_from([1, EVEN_COUNT_MIN - 1, EVEN_COUNT_MIN, 70]),
        st.sampled_from(["0123", "ab cé", "x\x01y", "z"]),
        st.sampled_from(["T", "U"]),
        st.sampled_from(HOSTS),
        st.sampled_from([0, 4, 8, 12]),
    ),
    min_size=1,
    max_size=4,
)


def records_of(group: tuple[str, int, str, str, bytes, int], seed: int) -> Iterator[Record]:
    shape, count, letters, topic, host, sys_flag = group
    for number in range(count):
        mixed = seed + number * number
        text = "".join(letters[mixed // 5**place % len(letters)] for place in range(4))
        yield Record(
            topic=topic,
            queue_id=number % 2,
            body=b"body",
            properties=shape.format(text),
            sys_flag=sys_flag,
            born_host=host,
            store_host=HOSTS[0],
        )


def index_files(root: Path, records: list[Record]) -> dict[str, bytes]:
    """Store records and have them indexed, some milliseconds apart; return the index's files."""
    store = MessageStore(FileStorage(root), CONFIG)
    store.load(timestamp_ms=1)
    for number, record in enumerate(records):
        status = store.put(record, timestamp_ms=1_700_000_000_000 + 150 * number).status
        assert status is PutStatus.PUT_OK
    store.dispatch()
    query = store.query(
        "T", "k", count_max=1, bytes_max=1, begin_timestamp_ms=0, end_timestamp_ms=1 << 62
    )
    run_steps(query)
    store.close()
    return {path.name: path.read_bytes() for path in root.glob("index/*")}


@settings(deadline=None, max_examples=60)
@given(groups=groups, seed=st.integers(0, 999))
def test_an_index_is_the_same_by_runs_and_by_records(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Any], seed: int
) -> None:
    records = [record for group in groups for record in records_of(group, seed)]

    by_runs = index_files(tmp_path_factory.mktemp("runs"), records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "may_begin_run", lambda chunk, at: False)
        by_records = index_files(tmp_path_factory.mktemp("records"), records)

    assert by_records == by_runs


def test_a_run_is_taken_at_once_and_split_among_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def find(chunk: bytes, position: int, **how: Any) -> KeyRun | None:
        run = find_run(chunk, position, **how)
        taken.append(0 if run is None else len(np.unique(run.positions)))
        return run

    monkeypatch.setattr(index, "find_run", find)
    group = ("UNIQ_KEY\x01{0}\x02KEYS\x01{0}", 200, "0123", "T", HOSTS[0], 0)

    files = index_files(tmp_path, list(records_of(group, 0)))

    assert taken == [200]
    assert len(files) == 3


def test_entries_that_a_disk_does_not_take_leave_no_trace(storage: Any) -> None:
    records = list(records_of(("KEYS\x01{0}", 100, "0123", "T", HOSTS[0], 0), 0))
    store = MessageStore(storage, CONFIG)
    store.load(timestamp_ms=1)
    put_all(store, records[:1])
    store.build_index()
    put_all(store, records[1:])
    storage.bytes_left = 0
    store.build_index()
    storage.bytes_left = None
    store.build_index()

    found, _ = run_steps(
        store.query(
            "T", "0000", count_max=99, bytes_max=99999, begin_timestamp_ms=0, end_timestamp_ms=9
        )
    )

    wanted = sum(each.properties == "KEYS\x010000" for each in records)
    assert wanted > 1
    assert found.records.count(b"KEYS\x010000") == wanted
    store.close()


def put_all(store: MessageStore, records: list[Record]) -> None:
    for record in records:
        assert PutStatus.PUT_OK is store.put(record, timestamp_ms=1).status
    work = store.flush_work()
    assert work is not None
    work.run()
    store.flush_done(work, None)
    store.dispatch()
