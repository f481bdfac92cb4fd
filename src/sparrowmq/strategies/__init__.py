"""Strategies, which divide queues among the members of a consumer group. Pure."""

from __future__ import annotations

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.across_topics import AllocateMessageQueueAcrossTopics
from sparrowmq.strategies.averagely import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
)
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad
from sparrowmq.strategies.consistent_hash import AllocateMessageQueueConsistentHash
from sparrowmq.strategies.consistent_hash_bounded import AllocateMessageQueueConsistentHashBounded
from sparrowmq.strategies.group_strategy import GroupStrategy, TopicView
from sparrowmq.strategies.machine_room import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueByMachineRoom,
    MachineRoomResolver,
    PrefixMachineRoomResolver,
)
from sparrowmq.strategies.minimal_move import AllocateMessageQueueMinimalMove
from sparrowmq.strategies.registry import SPARROW_STRATEGIES, STRATEGIES, strategy_from
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy, FunctionStrategy

__all__ = [
    "SPARROW_STRATEGIES",
    "STRATEGIES",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAcrossTopics",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByLoad",
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
