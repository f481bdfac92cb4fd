"""The bounds on the resources that peers may take from a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds on the resources that peers may take from a server.

    Args:
        connections_max: the most open connections; further ones are closed at once. The bound is
            lower if the process may have fewer descriptors (`serving/descriptors.py`).
        first_frame_ms: the time from the connection to its first whole frame.
        started_frame_ms: the time from a frame's first byte to its last.
        idle_ms: the time without a byte in either direction. NettyServerConfig:
            serverChannelMaxIdleTimeSeconds.
        frame_bytes_max: the size of a frame. NettyDecoder: com.rocketmq.remoting.frameMaxLength.
        started_frame_bytes_max: the size of all unfinished or unserved frames together, over all
            connections. Beyond it, the connection whose frames have waited for the longest time is
            closed.
        send_buffer_bytes_max: the size of the answers that a peer has not taken. No answer is made
            while half of this size is not taken. The bound therefore holds for every answer up to
            the other half, such as answers to pulls; only a larger answer exceeds the bound.
        send_stall_ms: how long a peer may stay at that half before its connection is closed.
        unsent_bytes_max: the size of all answers not taken, over all connections. Beyond it, the
            connection that has left answers for the longest time is closed.
        turn_ms_max: the time for requests in one turn of the loop; one request may take longer.
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
