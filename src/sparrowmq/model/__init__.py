"""The nouns of RocketMQ: message, queue, group, names. Pure."""

from __future__ import annotations

from sparrowmq.model.consuming import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    UnreadablePolicy,
)
from sparrowmq.model.delay import shortest_delay_level
from sparrowmq.model.message import (
    CompressionType,
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    TransactionState,
)
from sparrowmq.model.queue import MessageQueue
from sparrowmq.model.selector import MessageSelector

__all__ = [
    "CompressionType",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeStatus",
    "ConsumeType",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "SendResult",
    "SendStatus",
    "TransactionState",
    "UnreadablePolicy",
    "shortest_delay_level",
]
