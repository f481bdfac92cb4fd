"""Who consumes what: strategies, client ids, reconciliation, process queues, queue locks. Pure."""

from __future__ import annotations

from sparrowmq.model import MessageQueue
from sparrowmq.rebalance.across_topics import AllocateMessageQueueAcrossTopics
from sparrowmq.rebalance.averagely import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
)
from sparrowmq.rebalance.by_config import AllocateMessageQueueByConfig
from sparrowmq.rebalance.consistent_hash import AllocateMessageQueueConsistentHash
from sparrowmq.rebalance.consistent_hash_bounded import AllocateMessageQueueConsistentHashBounded
from sparrowmq.rebalance.group_strategy import GroupStrategy, TopicView
from sparrowmq.rebalance.machine_room import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueByMachineRoom,
    MachineRoomResolver,
    PrefixMachineRoomResolver,
)
from sparrowmq.rebalance.minimal_move import AllocateMessageQueueMinimalMove
from sparrowmq.rebalance.strategies import SPARROW_STRATEGIES, STRATEGIES, strategy_from
from sparrowmq.rebalance.strategy import AllocateMessageQueueStrategy, FunctionStrategy

__all__ = [
    "SPARROW_STRATEGIES",
    "STRATEGIES",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAcrossTopics",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueConsistentHashBounded",
    "AllocateMessageQueueMinimalMove",
    "AllocateMessageQueueStrategy",
    "FunctionStrategy",
    "GroupStrategy",
    "MachineRoomResolver",
    "MessageQueue",
    "PrefixMachineRoomResolver",
    "TopicView",
    "strategy_from",
]
