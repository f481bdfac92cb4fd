"""The extension in C gives the bytes that Python's code gives, or leaves the work to it."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tomllib
import zipfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.extension import (
    HOSTS,
    compare_batch,
    compare_checks,
    compare_entries,
    compare_keys,
    compare_record,
    compare_runs,
    log_of,
    make_batch,
    make_header,
)
from sparrowmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from sparrowmq.protocol import speedups
from sparrowmq.protocol.headers import SendMessageRequestHeader
from sparrowmq.protocol.record import BatchEntry, Record, encode_batch, encode_record
from sparrowmq.store.queue_reader import find_run

ROOT = Path(__file__).resolve().parents[2]

plain_texts = st.text(alphabet="abK #=\x7f", max_size=12)
any_texts = st.text(max_size=5)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "XTAGS", "XKEYS", "WAIT", "n"])
pairs = st.lists(st.tuples(names, plain_texts), max_size=5)
plain_properties = pairs.map(lambda pairs: "\x02".join(f"{name}\x01{v}" for name, v in pairs))
properties = st.one_of(
    plain_properties,
    plain_properties.map(lambda text: f"{text}\x02" if text else text),
    any_texts,
    st.sampled_from(
        [
            "DELAY\x013",
            "XDELAY\x01",
            "__CRC32#\x010123456789\x02",
            "TAGS\x01\x02TAGS",
            "\x01",
            "\x02",
        ]
    ),
    st.sampled_from([32_600, 32_700, 32_730, 32_760]).map(lambda n: "n\x01" + "v" * n),
)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(BatchEntry, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), properties),
        max_size=10,
    ),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.sampled_from([0, 1, 0x30]),
    st.sampled_from(["CLUSTER\x01c", "é\x01c\x02", "TAGS\x01c", "X__CRC32#\x01c"]),
)
def test_batch_is_laid_out_alike(
    messages: list[BatchEntry], born_host: bytes, store_host: bytes, sys_flag: int, added: str
) -> None:
    batch = make_batch(
        encode_batch(messages),
        born_host=born_host,
        store_host=store_host,
        sys_flag=sys_flag,
        added=added,
    )

    is_taken = compare_batch(batch)

    if not 0 < len(messages) < 10:
        assert not is_taken


@given(
    st.lists(
        st.builds(BatchEntry, st.integers(0, 9), st.binary(max_size=50), plain_properties),
        min_size=1,
        max_size=9,
    )
)
def test_extension_takes_every_plain_batch(messages: list[BatchEntry]) -> None:
    assert compare_batch(make_batch(encode_batch(messages)))


@settings(deadline=None)
@given(
    st.lists(st.builds(BatchEntry, st.just(1), st.binary(max_size=9), properties), max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_damaged_batch_is_laid_out_alike_or_left_alone(
    messages: list[BatchEntry], damage: list[tuple[int, int]], cut: int
) -> None:
    body = bytearray(encode_batch(messages))
    for at, value in damage:
        if body:
            body[at % len(body)] = value
    batch = make_batch(bytes(body[: len(body) - cut]))

    compare_batch(batch)


int32s = st.integers(-(2**31), 2**31 - 1)


@settings(deadline=None)
@given(
    st.builds(make_header, flag=int32s, sys_flag=int32s, reconsume_times=st.none() | int32s),
    st.binary(max_size=50),
    properties.filter(bool),
    st.sampled_from(HOSTS),
    st.sampled_from([0, 2**63 - 1]),
)
def test_record_is_laid_out_alike(
    header: SendMessageRequestHeader, body: bytes, text: str, store_host: bytes, position: int
) -> None:
    is_taken = compare_record(header, body, text, store_host=store_host, position=position)

    if not text.isascii() or store_host != HOSTS[0]:
        assert not is_taken


@given(st.binary(max_size=50), plain_properties.filter(bool))
def test_extension_takes_every_plain_message(body: bytes, text: str) -> None:
    assert compare_record(make_header(), body, text)


records = st.builds(
    Record,
    topic=st.sampled_from(["T", "a-topic", "é"]),
    queue_id=st.just(0),
    body=st.binary(max_size=30),
    properties=properties,
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    store_timestamp_ms=st.integers(0, 2**62),
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(HOSTS),
)


@settings(deadline=None)
@given(st.lists(records, max_size=5), st.integers(0, 200))
def test_keys_are_found_alike(found: list[Record], cut: int) -> None:
    chunk = b"".join(map(encode_record, found))

    taken = compare_keys(chunk[: len(chunk) - cut])

    if all(record.topic.isascii() and record.properties.isascii() for record in found):
        assert taken


@settings(deadline=None)
@given(
    st.lists(records, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_keys_of_damaged_records_are_found_alike_or_left_alone(
    found: list[Record], damage: list[tuple[int, int]]
) -> None:
    chunk = bytearray(b"".join(map(encode_record, found)))
    for at, value in damage:
        chunk[at % len(chunk)] = value

    compare_keys(bytes(chunk))


logged = st.builds(
    Record,
    topic=st.sampled_from(["T", "a-topic", SCHEDULE_TOPIC, TIMER_TOPIC]),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=30),
    properties=properties
    | st.sampled_from(["DELAY\x013", "TIMER_OUT_MS\x017", "A\x01\x02TAGS\x01"]),
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(HOSTS),
)


@settings(deadline=None)
@given(st.lists(logged, min_size=1, max_size=5), st.booleans(), st.integers(0, 200))
def test_records_of_a_log_are_checked_alike(
    found: list[Record], append_crc: bool, cut: int
) -> None:
    chunk = log_of(found, append_crc=append_crc)

    compare_checks(chunk[: len(chunk) - cut], checksummed_position=0 if append_crc else None)


@settings(deadline=None)
@given(
    st.lists(logged, min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_records_of_a_log_are_found_alike(
    found: list[Record], append_crc: bool, damage: list[tuple[int, int]]
) -> None:
    chunk = bytearray(log_of(found, append_crc=append_crc))
    for at, value in damage:
        if chunk:
            chunk[at % len(chunk)] = value

    compare_checks(bytes(chunk), checksummed_position=0 if append_crc else None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=30), plain_properties), min_size=1, max_size=5))
def test_extension_checks_every_plain_record(messages: list[tuple[bytes, str]]) -> None:
    found = [
        Record(
            topic="T",
            queue_id=0,
            body=body,
            properties=text,
            born_host=HOSTS[0],
            store_host=HOSTS[0],
        )
        for body, text in messages
    ]

    assert compare_checks(log_of(found, append_crc=True), checksummed_position=0) == len(found)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-5, 2**62)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([-1, 0, 1, 2**40]),
    st.sampled_from([1, 2, 1_000_000]),
)
def test_entries_are_added_alike(
    entries: list[tuple[int, int, int]],
    slot_count: int,
    page_slots: int,
    begin_ms: int,
    number: int,
) -> None:
    compare_entries(
        entries,
        slot_count=slot_count,
        page_slots=page_slots,
        begin_ms=begin_ms,
        number=number,
    )


@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**64 - 1)), min_size=1),
    st.integers(0, 10_000),
    st.binary(max_size=1),
)
def test_a_run_is_found_alike(
    begin: int, records: list[tuple[int, int]], at: int, damage: bytes
) -> None:
    entries, position = bytearray(), begin
    for size, tags_code in records:
        entries += struct.pack(">QIQ", position, size, tags_code)
        position += size
    at %= len(entries)
    entries[at : at + len(damage)] = damage

    assert compare_runs(bytes(entries)) or damage


@pytest.mark.parametrize(
    ("places", "run"),
    [
        ([(7, 3)], (7, 3)),
        ([(7, 3), (10, 90), (100, 1)], (7, 94)),
        ([(7, 3), (11, 1)], None),
        ([(10, 3), (7, 3)], None),
        ([(0, 0x7FFFFFFF)] * 2, None),
        ([(2**64 - 1, 1), (0, 1)], None),
    ],
)
def test_records_that_lie_apart_are_no_run(
    built_speedups: speedups.Speedups, places: list[tuple[int, int]], run: tuple[int, int] | None
) -> None:
    entries = b"".join(struct.pack(">QI8x", *place) for place in places)

    assert built_speedups.find_run(entries) == find_run(entries) == run


def test_wrong_arguments_are_errors(built_speedups: speedups.Speedups) -> None:
    functions: Any = built_speedups
    one, slots, page = array("q", [1]), array("i", [0]), bytearray(1)
    key = array("i", [1])
    calls: tuple[Callable[[], object], ...] = (
        lambda: functions.add_entries(slots, page, 1, key, array("q", [1, 2]), one, 0, 1),
        lambda: functions.add_entries(slots, page, 1, key, one, array("q"), 0, 1),
        lambda: functions.add_entries(array("i"), page, 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, bytearray(), 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, page, 0, key, one, one, 0, 1),
        lambda: functions.add_entries(array("i", [0] * 3), page, 2, key, one, one, 0, 1),
        lambda: functions.add_entries(b"1234", page, 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, page, 1, [1], [1], [1], 0, 1),
        lambda: functions.encode_batch(b"", b"", b"", b"", 0, 0, 0),
        lambda: functions.collect_keys("", 0),
        lambda: functions.check_records(b"", 1, 0, {}, tuple, []),
        lambda: functions.check_records(b"", 0, 0, {}, int, []),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
            call()


def test_other_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("Module", (), {"INTERFACE": 1})()
    monkeypatch.setattr(speedups, "import_module", lambda name: module)

    assert speedups._find() == (
        None,
        f"has interface 1, and {speedups.INTERFACE} is needed",
    )


def test_extra_names_the_version_of_this_interface(built_speedups: speedups.Speedups) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "speedups/pyproject.toml").read_text())["project"]["version"]

    assert built_speedups.INTERFACE == speedups.INTERFACE
    assert version.partition(".")[0] == str(speedups.INTERFACE)
    assert extras["optional-dependencies"]["speedups"] == [
        f"sparrowmq-speedups=={speedups.INTERFACE}.*"
    ]


@pytest.mark.slow
def test_one_wheel_serves_later_pythons(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    source = shutil.copytree(ROOT / "speedups", tmp_path / "source")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "-w", tmp_path, source], check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".dist-info/" not in name]

    assert "-cp311-abi3-" in wheel.name
    assert libraries == ["sparrowmq_speedups.abi3.so"]
