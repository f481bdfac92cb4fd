"""What peers may take from a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what peers may take from a server.

    Args:
        connections_max: accepted at once; further ones are closed at once. Fewer, where the
            process may have fewer descriptors (`serving/descriptors.py`).
        first_frame_ms: from the connection to its first whole frame.
        started_frame_ms: from a frame's first byte to its last.
        idle_ms: without a byte in either direction. NettyServerConfig:
            serverChannelMaxIdleTimeSeconds.
        frame_bytes_max: a whole frame. NettyDecoder: com.rocketmq.remoting.frameMaxLength.
        started_frame_bytes_max: of all frames begun and not finished, or not yet served, over all
            connections.
        send_buffer_bytes_max: answers a peer has not taken. None is made for a peer that has not
            taken half of that, so this holds for every answer up to the other half, as those to
            pulls are; a larger one goes beyond by itself.
        send_stall_ms: how long a peer may stay at that half before its connection is closed.
        unsent_bytes_max: answers not taken, over all connections; beyond, the connection is closed
            that has left some for the longest time.
        turn_ms_max: for serving requests in one turn of the loop; one request may take longer.
        sweep_ms: how often the limits on time are checked.
    """

    connections_max: int = 20_000
    first_frame_ms: int = 10_000
    started_frame_ms: int = 30_000
    idle_ms: int = 120_000
    frame_bytes_max: int = 16 * 1024 * 1024
    started_frame_bytes_max: int = 256 * 1024 * 1024
    send_buffer_bytes_max: int = 8 * 1024 * 1024
    send_stall_ms: int = 30_000
    unsent_bytes_max: int = 256 * 1024 * 1024
    turn_ms_max: int = 10
    sweep_ms: int = 1_000
