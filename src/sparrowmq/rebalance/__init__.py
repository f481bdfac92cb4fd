"""Who consumes what: strategies, client ids, reconciliation, process queues, queue locks. Pure."""

from __future__ import annotations

from sparrowmq.model import MessageQueue
from sparrowmq.rebalance.averagely import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
)
from sparrowmq.rebalance.by_config import AllocateMessageQueueByConfig
from sparrowmq.rebalance.consistent_hash import AllocateMessageQueueConsistentHash
from sparrowmq.rebalance.machine_room import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueByMachineRoom,
    MachineRoomResolver,
    PrefixMachineRoomResolver,
)
from sparrowmq.rebalance.strategies import STRATEGIES, strategy_from
from sparrowmq.rebalance.strategy import AllocateMessageQueueStrategy, FunctionStrategy

__all__ = [
    "STRATEGIES",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "FunctionStrategy",
    "MachineRoomResolver",
    "MessageQueue",
    "PrefixMachineRoomResolver",
    "strategy_from",
]
