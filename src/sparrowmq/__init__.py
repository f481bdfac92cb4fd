"""Apache RocketMQ for Python."""

from __future__ import annotations

from sparrowmq.client.aio import AsyncAdmin, AsyncProducer, AsyncPushConsumer
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
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncPushConsumer",
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
