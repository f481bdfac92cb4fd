"""The settings of a group member. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrowmq.membership.process_queue import CONSUME_TIMEOUT_MS, FlowLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """The settings of one member; `client.config.ConsumerConfig` explains the fields."""

    group: str
    client_id: str
    is_broadcasting: bool = False
    # Whether messages that a call did not finish come again in BROADCASTING too. RocketMQ drops
    # them.
    keeps_unfinished: bool = False
    # Whether members hand queues over by locks; never in a BROADCASTING group.
    locks_queues: bool = True
    # Whether each queue is consumed in order, one call of the listener at a time.
    is_orderly: bool = False
    # How often a message consumed in order may come again; None for no limit.
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
