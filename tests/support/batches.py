"""Reads the body of SEND_BATCH_MESSAGE as the entries that `encode_batch` writes."""

from __future__ import annotations

from sparrowmq.protocol.record import BatchEntry, scan_batch


def decode_batch(body: bytes) -> list[BatchEntry]:
    """Raises: RemoteProtocolError if the body is malformed."""
    return [
        BatchEntry(flag, body[at : properties_at - 2], body[properties_at:end].decode())
        for flag, at, properties_at, end in scan_batch(body)
    ]
