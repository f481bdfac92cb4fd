"""Apache RocketMQ for Python."""

from __future__ import annotations

from sparrowmq.client.aio import AsyncAdmin, AsyncProducer, AsyncPushConsumer
from sparrowmq.client.aio_pull import AsyncLitePullConsumer
from sparrowmq.client.blocking import Admin, Producer, PushConsumer
from sparrowmq.client.blocking_pull import LitePullConsumer
from sparrowmq.client.lite_pull import PullResult
from sparrowmq.client.operations.pull import PullStatus
from sparrowmq.model import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
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
    "AsyncLitePullConsumer",
    "AsyncProducer",
    "AsyncPushConsumer",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeStatus",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "SendResult",
    "SendStatus",
]
