"""What a group member is configured with. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrowmq.membership.process_queue import CONSUME_TIMEOUT_MS, FlowLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What a member is and how it behaves; `client.config.ConsumerConfig` explains the fields."""

    group: str
    client_id: str
    is_broadcasting: bool = False
    # Whether what a call did not finish comes again in BROADCASTING too; RocketMQ drops it there.
    keeps_unfinished: bool = False
    # Whether queues are handed over by their locks; never in a BROADCASTING group.
    locks_queues: bool = True
    # Whether each queue is consumed in order, one call of the listener at a time.
    is_orderly: bool = False
    # How often a message consumed in order may come again; None for no end.
    orderly_reconsume_times_max: int | None = None
    # Whether the user has callbacks for queues that come or go.
    has_callbacks: bool = False
    batch_size: int = 1
    deliveries_max: int = 20
    flow: FlowLimits = field(default_factory=FlowLimits)
    heartbeat_ms: int = 30_000
    rebalance_ms: int = 20_000
    route_refresh_ms: int = 30_000
    route_retry_max_ms: int = 30_000
    commit_ms: int = 1_000
    drain_timeout_ms: int = 10_000
    consume_timeout_ms: int = CONSUME_TIMEOUT_MS
