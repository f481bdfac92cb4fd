"""Compressed bodies: zlib, and LZ4 and ZSTD where the extra `compression` is installed. Pure.

The sys flag of a message says whether the body is compressed (`COMPRESSED`), and by which codec
(`COMPRESSION_TYPE`). LZ4 bodies are LZ4 frames, ZSTD bodies are zstd frames.

Rules of this file:
- Inflating never allocates more output than the caller allows: a message of a few bytes may stand
  for gigabytes.
- The first body of a codec loads the codec's package.

Source: RocketMQ 5.x common/compression, common/sysflag/MessageSysFlag.java.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from sparrowmq.errors import RemoteProtocolError, install_command
from sparrowmq.model import CompressionType

# MessageSysFlag.java.
COMPRESSED = 0x1
# RocketMQ 4.9.4 and later, the codec: 0 and 3 are zlib, 1 is LZ4, 2 is ZSTD.
COMPRESSION_TYPE = 0x700
COMPRESSION_ZLIB = 0x300

# ZLIB has no bits of its type: clients before 5.0 neither write nor read such bits.
_SYS_FLAGS: Mapping[CompressionType, int] = MappingProxyType(
    {
        CompressionType.ZLIB: COMPRESSED,
        CompressionType.LZ4: COMPRESSED | 0x100,
        CompressionType.ZSTD: COMPRESSED | 0x200,
    }
)
_MODULES: Mapping[CompressionType, str] = MappingProxyType(
    {CompressionType.LZ4: "lz4.frame", CompressionType.ZSTD: "zstandard"}
)
_INSTALL = install_command("compression")


def find_missing_package(kind: CompressionType) -> str | None:
    """Return the package that this codec still needs, None if it needs none."""
    try:
        if kind in _MODULES:
            import_module(_MODULES[kind])
    except ImportError:
        package = _MODULES[kind].partition(".")[0]
        return f"{kind.name} needs the package {package}, which is not installed ({_INSTALL})"
    return None


def compress_body(body: bytes, kind: CompressionType, *, level: int) -> tuple[bytes, int]:
    """Return the compressed body and its bits of the sys flag.

    Args:
        level: 1 to 9 for ZLIB, 1 to 22 for ZSTD; LZ4 ignores it.

    Raises: ImportError if the codec's package is missing.
    """
    if kind is CompressionType.LZ4:
        # Java's reader takes independent blocks only.
        packed: bytes = import_module("lz4.frame").compress(body, block_linked=False)
    elif kind is CompressionType.ZSTD:
        packed = import_module("zstandard").compress(body, level)
    else:
        packed = zlib.compress(body, level)
    return packed, _SYS_FLAGS[kind]


def inflate(body: bytes, *, sys_flag: int, bytes_max: int) -> bytes | None:
    """Return the inflated body, None if the body grows beyond `bytes_max` bytes.

    Raises: RemoteProtocolError if the body cannot be inflated; the text of the error completes a
        sentence.
    """
    inflate_kind = _INFLATERS.get(sys_flag & COMPRESSION_TYPE)
    if inflate_kind is None:
        number = (sys_flag & COMPRESSION_TYPE) >> 8
        raise RemoteProtocolError(f"its compression type {number} is none of RocketMQ's")
    return inflate_kind(body, bytes_max) if body else b""


def _inflate_zlib(body: bytes, bytes_max: int) -> bytes | None:
    # Clients of the gRPC service write gzip under the same flag; this reads both.
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = stream.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"its body is not a zlib stream ({error})") from error
    return _whole(plain, bytes_max, stream)


def _inflate_lz4(body: bytes, bytes_max: int) -> bytes | None:
    stream = _load(CompressionType.LZ4).LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=bytes_max + 1)
    except RuntimeError as error:
        raise RemoteProtocolError(f"its body is not an LZ4 frame ({error})") from error
    return _whole(plain, bytes_max, stream)


def _whole(plain: bytes, bytes_max: int, stream: Any) -> bytes | None:
    if len(plain) > bytes_max:
        return None
    if not stream.eof:
        raise RemoteProtocolError("its compressed body ends early")
    return plain


def _inflate_zstd(body: bytes, bytes_max: int) -> bytes | None:
    zstandard = _load(CompressionType.ZSTD)
    try:
        # -1 if the frame does not give the size, as with frames of Java's clients.
        if zstandard.frame_content_size(body) > bytes_max:
            return None
        # In one call: a stream would allocate the window that the frame asks for, up to 128 MiB.
        plain: bytes = zstandard.ZstdDecompressor().decompress(body, max_output_size=bytes_max)
    except zstandard.ZstdError as error:
        if _outgrows(zstandard, body, bytes_max):
            return None
        raise RemoteProtocolError(f"its body is not a zstd frame ({error})") from error
    return plain


def _outgrows(zstandard: Any, body: bytes, bytes_max: int) -> bool:
    """Return whether a frame was not inflated because it is too large, rather than damaged."""
    stream = zstandard.ZstdDecompressor().stream_reader(body)
    try:
        return len(stream.read(bytes_max + 1)) > bytes_max
    except zstandard.ZstdError:
        return False


def _load(kind: CompressionType) -> Any:
    try:
        return import_module(_MODULES[kind])
    except ImportError as error:
        why = find_missing_package(kind)
        raise RemoteProtocolError(f"its body is compressed, and {why}") from error


# By the bits of COMPRESSION_TYPE; 0 and 3 are zlib.
_INFLATERS: dict[int, Callable[[bytes, int], bytes | None]] = {
    0: _inflate_zlib,
    0x100: _inflate_lz4,
    0x200: _inflate_zstd,
    COMPRESSION_ZLIB: _inflate_zlib,
}
