"""Apache RocketMQ for Python.

The names below are loaded when they are first asked for: whoever imports one room of the package
(each of Spark's Python processes does) does not pay for the others. Even `typing` is left out: the
command line cannot answer Ctrl-C before this file is loaded.
"""

from __future__ import annotations

from importlib import import_module

# True for type checkers, by its name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sparrowmq.client.directory import QueueLag
    from sparrowmq.client.faces.aio import AsyncProducer, AsyncPushConsumer
    from sparrowmq.client.faces.aio_admin import AsyncAdmin
    from sparrowmq.client.faces.aio_poll import AsyncPollConsumer
    from sparrowmq.client.faces.aio_simple import AsyncSimpleConsumer
    from sparrowmq.client.faces.aio_transaction import AsyncTransactionProducer
    from sparrowmq.client.faces.blocking import Producer, PushConsumer
    from sparrowmq.client.faces.blocking_admin import Admin
    from sparrowmq.client.faces.blocking_poll import PollConsumer
    from sparrowmq.client.faces.blocking_simple import SimpleConsumer
    from sparrowmq.client.faces.blocking_transaction import TransactionProducer
    from sparrowmq.client.operations.accounts import BrokerAccount
    from sparrowmq.client.operations.consumer_health import ConsumerHealth
    from sparrowmq.client.operations.groups import GroupChange
    from sparrowmq.client.operations.message_trace import TraceStep
    from sparrowmq.client.operations.overview import Overview
    from sparrowmq.client.operations.pull import PullStatus
    from sparrowmq.client.operations.reset import ResetPlan
    from sparrowmq.client.operations.routes import BrokerAt
    from sparrowmq.client.operations.topics import TopicChange, TopicStatus
    from sparrowmq.client.polling import PullResult
    from sparrowmq.client.route_cache import TopicRoute
    from sparrowmq.client.selectors import (
        select_at_random,
        select_by_hash,
        select_by_machine_room,
        select_in_turn,
    )
    from sparrowmq.client.serializers import JsonSerializer
    from sparrowmq.client.setting_types import (
        AdminSettings,
        PollConsumerSettings,
        ProducerSettings,
        PushConsumerSettings,
        SimpleConsumerSettings,
    )
    from sparrowmq.client.transaction_outcomes import HalfMessage
    from sparrowmq.doctor import GroupSnapshot
    from sparrowmq.errors import (
        BrokerError,
        BufferFull,
        ConfigError,
        ConnectFailed,
        ConnectionLost,
        InvokeTimeout,
        NoWritableQueue,
        RouteError,
        SendFailed,
        SparrowError,
        TopicRouteNotFound,
        TransportError,
        UnreadableMessage,
        UsageError,
    )
    from sparrowmq.membership.client_id import ClientIdRule
    from sparrowmq.model import (
        CompressionType,
        ConsumeContext,
        ConsumeFromWhere,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        ConsumeStatus,
        Message,
        MessageExt,
        MessageModel,
        MessageQueue,
        MessageSelector,
        SendResult,
        SendStatus,
        TransactionState,
        UnreadablePolicy,
        shortest_delay_level,
    )
    from sparrowmq.protocol.bodies import ConsumerConnection

# The one place of the version; the package's metadata comes from here.
__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AdminSettings",
    "AsyncAdmin",
    "AsyncPollConsumer",
    "AsyncProducer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransactionProducer",
    "BrokerAccount",
    "BrokerAt",
    "BrokerError",
    "BufferFull",
    "ClientIdRule",
    "CompressionType",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeStatus",
    "ConsumerConnection",
    "ConsumerHealth",
    "GroupChange",
    "GroupSnapshot",
    "HalfMessage",
    "InvokeTimeout",
    "JsonSerializer",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "NoWritableQueue",
    "Overview",
    "PollConsumer",
    "PollConsumerSettings",
    "Producer",
    "ProducerSettings",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueLag",
    "ResetPlan",
    "RouteError",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerSettings",
    "SparrowError",
    "TopicChange",
    "TopicRoute",
    "TopicRouteNotFound",
    "TopicStatus",
    "TraceStep",
    "TransactionProducer",
    "TransactionState",
    "TransportError",
    "UnreadableMessage",
    "UnreadablePolicy",
    "UsageError",
    "select_at_random",
    "select_by_hash",
    "select_by_machine_room",
    "select_in_turn",
    "shortest_delay_level",
]

# Where a name is defined, if not in `sparrowmq.model`.
_MODULES = {
    "Admin": "sparrowmq.client.faces.blocking_admin",
    "AdminSettings": "sparrowmq.client.setting_types",
    "AsyncAdmin": "sparrowmq.client.faces.aio_admin",
    "AsyncPollConsumer": "sparrowmq.client.faces.aio_poll",
    "AsyncProducer": "sparrowmq.client.faces.aio",
    "AsyncPushConsumer": "sparrowmq.client.faces.aio",
    "AsyncSimpleConsumer": "sparrowmq.client.faces.aio_simple",
    "AsyncTransactionProducer": "sparrowmq.client.faces.aio_transaction",
    "BrokerAccount": "sparrowmq.client.operations.accounts",
    "BrokerAt": "sparrowmq.client.operations.routes",
    "BrokerError": "sparrowmq.errors",
    "BufferFull": "sparrowmq.errors",
    "ClientIdRule": "sparrowmq.membership.client_id",
    "ConfigError": "sparrowmq.errors",
    "ConnectFailed": "sparrowmq.errors",
    "ConnectionLost": "sparrowmq.errors",
    "ConsumerConnection": "sparrowmq.protocol.bodies",
    "ConsumerHealth": "sparrowmq.client.operations.consumer_health",
    "GroupChange": "sparrowmq.client.operations.groups",
    "GroupSnapshot": "sparrowmq.doctor",
    "HalfMessage": "sparrowmq.client.transaction_outcomes",
    "InvokeTimeout": "sparrowmq.errors",
    "JsonSerializer": "sparrowmq.client.serializers",
    "NoWritableQueue": "sparrowmq.errors",
    "Overview": "sparrowmq.client.operations.overview",
    "PollConsumer": "sparrowmq.client.faces.blocking_poll",
    "PollConsumerSettings": "sparrowmq.client.setting_types",
    "Producer": "sparrowmq.client.faces.blocking",
    "ProducerSettings": "sparrowmq.client.setting_types",
    "PullResult": "sparrowmq.client.polling",
    "PullStatus": "sparrowmq.client.operations.pull",
    "PushConsumer": "sparrowmq.client.faces.blocking",
    "PushConsumerSettings": "sparrowmq.client.setting_types",
    "QueueLag": "sparrowmq.client.directory",
    "ResetPlan": "sparrowmq.client.operations.reset",
    "RouteError": "sparrowmq.errors",
    "SendFailed": "sparrowmq.errors",
    "SimpleConsumer": "sparrowmq.client.faces.blocking_simple",
    "SimpleConsumerSettings": "sparrowmq.client.setting_types",
    "SparrowError": "sparrowmq.errors",
    "TopicChange": "sparrowmq.client.operations.topics",
    "TopicRoute": "sparrowmq.client.route_cache",
    "TopicRouteNotFound": "sparrowmq.errors",
    "TopicStatus": "sparrowmq.client.operations.topics",
    "TraceStep": "sparrowmq.client.operations.message_trace",
    "TransactionProducer": "sparrowmq.client.faces.blocking_transaction",
    "TransportError": "sparrowmq.errors",
    "UnreadableMessage": "sparrowmq.errors",
    "UsageError": "sparrowmq.errors",
    "select_at_random": "sparrowmq.client.selectors",
    "select_by_hash": "sparrowmq.client.selectors",
    "select_by_machine_room": "sparrowmq.client.selectors",
    "select_in_turn": "sparrowmq.client.selectors",
}


# What a user of another client looks for here.
_NAMES_ELSEWHERE = {
    "AIOKafkaConsumer": "AsyncPollConsumer",
    "AIOKafkaProducer": "AsyncProducer",
    "AdminClient": "Admin",
    "AsyncConsumer": "AsyncPushConsumer or AsyncPollConsumer",
    "BlockingConnection": "Producer, PushConsumer or PollConsumer",
    "Client": "Producer, PushConsumer or PollConsumer",
    "Connection": "Producer, PushConsumer or PollConsumer",
    "Consumer": "PushConsumer or PollConsumer",
    "DefaultLitePullConsumer": "PollConsumer",
    "DefaultMQProducer": "Producer",
    "DefaultMQPushConsumer": "PushConsumer",
    "KafkaAdminClient": "Admin",
    "KafkaConsumer": "PollConsumer",
    "KafkaProducer": "Producer",
    "LitePullConsumer": "PollConsumer",
    "PullConsumer": "PollConsumer",
    "connect": "Producer, PushConsumer or PollConsumer",
}


if not TYPE_CHECKING:
    # Type checkers go by the imports above, so that a name that is not there is an error to them.
    def __getattr__(name: str) -> Any:
        if name not in __all__:
            hint = ""
            if ours := _NAMES_ELSEWHERE.get(name):
                hint = f"; did you mean {ours}?"
            elif name[:1].isupper():  # the names of modules are small
                nearest = import_module("sparrowmq.errors").did_you_mean
                hint = nearest(name, __all__, cutoff=0.7)
            if hint:
                # Of an AttributeError, `from sparrowmq import ...` would not show the text.
                raise ImportError(f"sparrowmq has no {name}{hint}", name=name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES.get(name, "sparrowmq.model")), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
