"""Compressed bodies: each kind both ways, bounds, damage, packages that are missing."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import CompressionType
from sparrowmq.protocol.compression import (
    COMPRESSED,
    COMPRESSION_ZLIB,
    compress_body,
    find_missing_package,
    inflate,
)

SYS_FLAGS = {
    CompressionType.ZLIB: 0x1,
    CompressionType.LZ4: 0x101,
    CompressionType.ZSTD: 0x201,
}
PACKAGES = {CompressionType.LZ4: "lz4.frame", CompressionType.ZSTD: "zstandard"}
kinds = pytest.mark.parametrize("kind", CompressionType)
MIB = 1024 * 1024


@kinds
@given(body=st.binary(min_size=1, max_size=300), level=st.integers(1, 9))
def test_body_survives_and_the_sys_flag_says_how(
    kind: CompressionType, body: bytes, level: int
) -> None:
    packed, sys_flag = compress_body(body, kind, level=level)

    assert SYS_FLAGS[kind] == sys_flag
    assert body == inflate(packed, sys_flag=sys_flag, bytes_max=len(body))


@kinds
def test_body_is_inflated_up_to_a_limit_and_no_farther(kind: CompressionType) -> None:
    packed, sys_flag = compress_body(bytes(100_000), kind, level=5)

    assert bytes(100_000) == inflate(packed, sys_flag=sys_flag, bytes_max=100_000)
    assert inflate(packed, sys_flag=sys_flag, bytes_max=99_999) is None


def test_zstd_frames_that_do_not_say_their_size_are_limited_too() -> None:
    """As Java's ZstdOutputStream writes them; level 22 asks for a window of 128 MiB."""
    stream = zstandard.ZstdCompressor(level=22).compressobj()
    packed = stream.compress(bytes(100_000)) + stream.flush()

    assert bytes(100_000) == inflate(packed, sys_flag=0x201, bytes_max=100_000)
    assert inflate(packed, sys_flag=0x201, bytes_max=99_999) is None


@kinds
def test_a_bomb_costs_no_more_memory_than_the_limit(kind: CompressionType) -> None:
    packed, sys_flag = compress_body(bytes(64 * MIB), kind, level=5)
    # Loads the package.
    inflate(packed, sys_flag=sys_flag, bytes_max=1)

    tracemalloc.start()
    try:
        assert inflate(packed, sys_flag=sys_flag, bytes_max=MIB) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 3 * MIB


def test_zlib_is_known_by_two_numbers() -> None:
    packed = zlib.compress(b"body")

    for sys_flag in (COMPRESSED, COMPRESSED | COMPRESSION_ZLIB):
        assert inflate(packed, sys_flag=sys_flag, bytes_max=4) == b"body"


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_type_is_named(number: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"compression type {number} is none"):
        inflate(b"x", sys_flag=COMPRESSED | number << 8, bytes_max=100)


@kinds
def test_cut_body_is_refused(kind: CompressionType) -> None:
    packed, sys_flag = compress_body(b"abc" * 1000, kind, level=5)

    with pytest.raises(RemoteProtocolError, match=r"ends early|not a zstd frame"):
        inflate(packed[:-3], sys_flag=sys_flag, bytes_max=10_000)


@kinds
@given(data=st.binary(max_size=300), bytes_max=st.integers(1, 1000))
def test_garbage_is_refused_whatever_it_is(
    kind: CompressionType, data: bytes, bytes_max: int
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        plain = inflate(data, sys_flag=SYS_FLAGS[kind], bytes_max=bytes_max)
        assert plain is None or len(plain) <= bytes_max


@pytest.mark.parametrize("kind", list(PACKAGES))
def test_a_missing_package_is_named_with_its_cure(
    kind: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, sys_flag = compress_body(b"body", kind, level=5)
    monkeypatch.setitem(sys.modules, PACKAGES[kind], None)

    name = PACKAGES[kind].partition(".")[0]
    cure = rf"the package {name}, which is not installed \(pip install '\.\[compression\]' in a"
    with pytest.raises(RemoteProtocolError, match=cure):
        inflate(packed, sys_flag=sys_flag, bytes_max=4)
    assert find_missing_package(kind) is not None
    assert find_missing_package(CompressionType.ZLIB) is None
