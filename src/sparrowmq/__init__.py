"""Apache RocketMQ for Python."""

from __future__ import annotations

from sparrowmq.client.blocking import Admin, Producer, PushConsumer
from sparrowmq.model import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)

__all__ = [
    "Admin",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeStatus",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
]
