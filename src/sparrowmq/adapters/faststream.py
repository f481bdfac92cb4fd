"""A broker for FastStream: handlers of RocketMQ's topics with FastStream's types and dependencies.

    broker = RocketBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="GID_billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

A subscriber is a member of a consumer group: all members share the topic's queues. A handler
decides on each message alone: `ack` acknowledges it, `nack` has it delivered again later, `reject`
makes it a dead letter. An undecided message is delivered again. With `orderly=True`, a message that
is not acknowledged holds its queue and is delivered again, and `reject` is refused.

FastStream has no public interface for brokers. This module uses `faststream._internal` of 0.7,
which may change with each minor version, and the extra `faststream` allows 0.7 only.
"""

# FastStream's classes are Any to mypy. pyright reports the same differences for FastStream's own
# brokers as for this one.
# mypy: disable-error-code="misc, no-any-return, has-type"
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportAssignmentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from fast_depends import dependency_provider
from faststream._internal import configs
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage, decode_message
from faststream.middlewares import AckPolicy
from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import BrokerSpec, Operation, PublisherSpec, SubscriberSpec
from faststream.specification.schema import Message as MessageSpec

from sparrowmq.client.config import KINDS, PUSH
from sparrowmq.client.faces.aio import AsyncProducer, AsyncPushConsumer
from sparrowmq.client.faces.aio_admin import AsyncAdmin
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model import (
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
)
from sparrowmq.model.message import PROPERTY_SHARDING_KEY, PROPERTY_TAGS, RESERVED_PROPERTIES

LOG = logging.getLogger("sparrowmq.faststream")
# The properties for FastStream's fields beside headers.
CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
# The headers for a message's fields beside properties.
TAGS, SHARDING_KEY = "tags", "sharding_key"
NACK_DELAY = timedelta(seconds=1)
_NO_REJECT_IN_ORDER = (
    "with orderly=True a failed message holds its queue and cannot become a dead letter at once; "
    "use AckPolicy.NACK_ON_ERROR or NackMessage, and max_reconsume_times=n for a dead letter after "
    "n repetitions"
)


class _InOrder:
    """The decision on one message of a consumer in order, by the methods of `ConsumeContext`."""

    def __init__(self) -> None:
        self.is_done = False

    def ack(self, _: MessageExt) -> None:
        self.is_done = True

    def retry(self, _: MessageExt, *, delay: timedelta) -> None:
        self.is_done = False

    def dead_letter(self, _: MessageExt, *, reason: str) -> NoReturn:
        raise FeatureNotSupportedException(f"{reason}: {_NO_REJECT_IN_ORDER}")


class _Delivery(NamedTuple):
    """A message, and what takes the decision on it."""

    message: MessageExt
    context: ConsumeContext | _InOrder


class RocketMessage(StreamMessage[_Delivery]):
    """The message that handlers get."""

    async def ack(self) -> None:
        """Acknowledge the message."""
        if self.committed is None:
            self.raw_message.context.ack(self.raw_message.message)
        await super().ack()

    async def nack(self) -> None:
        """Have the message delivered again."""
        if self.committed is None:
            self.raw_message.context.retry(self.raw_message.message, delay=NACK_DELAY)
        await super().nack()

    async def reject(self) -> None:
        """Put the message among the group's dead letters."""
        if self.committed is None:
            self.raw_message.context.dead_letter(self.raw_message.message, reason="rejected")
        await super().reject()


async def _parse(delivery: _Delivery) -> RocketMessage:
    message, own = delivery.message, RESERVED_PROPERTIES
    properties = {name: text for name, text in message.properties.items() if name not in own}
    for header, name in ((TAGS, PROPERTY_TAGS), (SHARDING_KEY, PROPERTY_SHARDING_KEY)):
        if name in message.properties:
            properties[header] = message.properties[name]
    return RocketMessage(
        delivery,
        message.body,
        content_type=properties.pop(CONTENT_TYPE, None),
        correlation_id=properties.pop(CORRELATION_ID, None),
        reply_to=properties.pop(REPLY_TO, ""),
        headers=properties,
        message_id=message.msg_id,
    )


async def _decode(message: StreamMessage[Any]) -> Any:
    return decode_message(message)


async def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise FeatureNotSupportedException("requests and single messages: take sparrowmq's own clients")


class _Producer(ProducerProto[PublishCommand]):
    """Sends the messages that handlers publish."""

    request = _refuse

    def __init__(self) -> None:
        self._parser = _parse
        self._decoder = _decode
        self.codec = DefaultCodec()
        self.client: AsyncProducer | None = None
        self.serializer: Any = None

    async def publish(self, cmd: PublishCommand) -> Any:
        return await self._client().send(await self._encode(cmd, cmd.body))

    async def publish_batch(self, cmd: PublishCommand) -> Any:
        return await self._client().send_batch(
            [await self._encode(cmd, body) for body in cmd.batch_bodies]
        )

    def _client(self) -> AsyncProducer:
        assert self.client is not None, "the broker is not connected; start it first"
        return self.client

    async def _encode(self, cmd: PublishCommand, sent: Any) -> Message:
        body, content_type = await self.codec.encode(sent, self.serializer)
        own = {CORRELATION_ID: cmd.correlation_id, REPLY_TO: cmd.reply_to or None}
        own[CONTENT_TYPE] = content_type or None
        headers = {**cmd.headers, **own}
        properties = {name: str(value) for name, value in headers.items() if value is not None}
        tags, key = properties.pop(TAGS, ""), properties.pop(SHARDING_KEY, "")
        return Message(
            cmd.destination,
            body,
            tags=tags,
            sharding_key=key,
            properties=properties,
            # Handlers that return no RocketResponse have FastStream's own commands.
            keys=getattr(cmd, "keys", ()),
            delay=getattr(cmd, "delay", None),
        )


class RocketCommand(BatchPublishCommand):
    """FastStream's order to send bodies, with the message's keys and delay."""

    def __init__(
        self,
        *bodies: Any,
        keys: Sequence[str] = (),
        delay: timedelta | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(*bodies, **fields)
        self.keys, self.delay = tuple(keys), delay


class RocketResponse(Response):
    """A handler's result with headers, keys, and the delay after which it is delivered."""

    def __init__(
        self,
        body: Any,
        *,
        keys: Sequence[str] = (),
        delay: timedelta | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(body, **fields)
        self._keys, self._delay = keys, delay

    def as_publish_command(self) -> RocketCommand:
        """Return the order to send the result."""
        return RocketCommand(
            self.body,
            keys=self._keys,
            delay=self._delay,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
        )


@dataclass(kw_only=True)
class _Config(configs.BrokerConfig):
    """The configuration that a broker's endpoints share; `client` has the settings of clients."""

    producer: _Producer = field(default_factory=_Producer)
    client: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class _SubscriberConfig(configs.SubscriberUsecaseConfig):
    """The configuration of one subscriber."""

    topic: str
    group: str
    expression: str
    settings: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        return self._ack_policy


def _channel_of(name: str, payload: Any, *, address: str) -> dict[str, Any]:
    message = MessageSpec(title=f"{name}:Message", payload=payload)
    return {"address": address, "operation": Operation(message, None), "bindings": None}


class _SubscriberSpecification(SubscriberSpecification[Any, Any]):
    """A subscriber in AsyncAPI, by its title, or else by its topic."""

    topic: str

    @property
    def channel_labels(self) -> list[str]:
        return [f"{self._outer_config.prefix}{self.topic}"]

    @property
    def name(self) -> str:
        return self.config.title_ or self.channel_labels[0]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        channel = _channel_of(self.name, payload, address=self.channel_labels[0])
        return {self.name: SubscriberSpec(description=self.description, **channel)}


class _Subscriber(SubscriberUsecase[_Delivery]):
    """A member of a consumer group that calls handlers."""

    get_one = __aiter__ = _refuse

    def __init__(
        self,
        config: _SubscriberConfig,
        specification: _SubscriberSpecification,
        calls: CallsCollection[_Delivery],
    ) -> None:
        config.parser, config.decoder = _parse, _decode
        super().__init__(config, specification, calls)
        self._config = config
        self._consumer: AsyncPushConsumer | None = None
        # The tasks that call handlers now.
        self._listening: set[asyncio.Task[Any] | None] = set()
        self._closing: asyncio.Task[None] | None = None

    def get_log_context(self, message: StreamMessage[_Delivery] | None) -> dict[str, str]:
        message_id = "" if message is None else message.message_id
        return {"topic": self._config.topic, "group": self._config.group, "message_id": message_id}

    async def start(self) -> None:
        await super().start()
        self._post_start()
        if not self.calls:
            return
        config, settings = self._config, {**self._outer_config.client, **self._config.settings}
        listener = self._listen_in_order if settings.get("orderly") else self._listen
        self._consumer = AsyncPushConsumer(config.group, listener=listener, **settings)
        topic = f"{self._outer_config.prefix}{config.topic}"
        await self._consumer.subscribe(topic, config.expression)
        await self._consumer.start()

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._closing = asyncio.create_task(consumer.close())
        # A handler that stops its subscriber cannot wait: the consumer closes when handlers end.
        if self._closing is not None and asyncio.current_task() not in self._listening:
            await self._closing
        await super().stop()

    async def _listen(self, messages: Sequence[MessageExt], context: ConsumeContext) -> None:
        for message in messages:
            await self._handle(_Delivery(message, context))
        # Earlier decisions stay; this one is for messages without a decision.
        context.retry(delay=NACK_DELAY)

    async def _handle(self, delivery: _Delivery) -> None:
        task = asyncio.current_task()
        self._listening.add(task)
        try:
            await self.consume(delivery)
        finally:
            self._listening.discard(task)

    async def _listen_in_order(
        self, messages: Sequence[MessageExt], _: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        for message in messages:
            decision = _InOrder()
            await self._handle(_Delivery(message, decision))
            if not decision.is_done:
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[Any]:
        return (_Reply(self._outer_config.producer, message.reply_to),)


class _Reply(FakePublisher):
    """Sends a handler's result to the topic that the message names for replies."""

    def __init__(self, producer: _Producer, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> PublishCommand:
        cmd = super().patch_command(cmd)
        cmd.destination = self._topic
        return cmd


class _PublisherSpecification(PublisherSpecification[Any, Any]):
    """A publisher in AsyncAPI, by its title, or else by its topic."""

    topic: str

    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        channel = _channel_of(self.name, payload, address=self.address)
        return {self.name: PublisherSpec(description=self.config.description_, **channel)}


def _command(
    config: Any, *bodies: Any, correlation_id: str | None = None, **fields: Any
) -> RocketCommand:
    fields["correlation_id"] = correlation_id or config.id_generator()
    return RocketCommand(*bodies, _publish_type=PublishType.PUBLISH, **fields)


class RocketPublisher(PublisherUsecase):
    """Sends to one topic."""

    request = _refuse
    specification: _PublisherSpecification

    async def publish(self, message: Any, **fields: Any) -> Any:
        """Send a message, as `RocketBroker.publish` does."""
        return await self._publish(
            _command(self._outer_config, message, **fields), _extra_middlewares=()
        )

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> Any:
        cmd.destination = cmd.destination or self.specification.address
        return await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class _Registrator(Registrator[_Delivery, _Config]):
    """What a broker and a router share: the decorators."""

    def subscriber(
        self,
        topic: str,
        *,
        group: str,
        expression: str = "*",
        ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        no_reply: bool = False,
        title: str | None = None,
        description: str | None = None,
        **settings: Any,
    ) -> _Subscriber:
        """Call a handler with the messages of a topic.

        Args:
            group: the consumer group.
            expression: tags, as for `PushConsumer.subscribe`.
            ack_policy: FastStream's policy; a message whose handler fails is delivered again.
            no_reply: whether the handler's result is not sent to the message's reply topic.
            title, description: for AsyncAPI.
            settings: further settings of `PushConsumer`, such as `orderly`.

        Raises: ConfigError for an unknown setting; UsageError for `orderly=True` with
            `AckPolicy.REJECT_ON_ERROR`.
        """
        KINDS[PUSH].check_names(settings)
        if settings.get("orderly") and ack_policy is AckPolicy.REJECT_ON_ERROR:
            raise UsageError(_NO_REJECT_IN_ORDER)
        config = _SubscriberConfig(
            _outer_config=self.config,
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topic=topic,
            group=group,
            expression=expression,
            settings=settings,
        )
        calls = CallsCollection[_Delivery]()
        shown = configs.SubscriberSpecificationConfig(title_=title, description_=description)
        specification = _SubscriberSpecification(self.config, shown, calls)
        specification.topic = topic
        made = _Subscriber(config, specification, calls)
        super().subscriber(made)
        return made.add_call(parser_=self._parser, decoder_=self._decoder, dependencies_=())

    def publisher(
        self, topic: str, *, title: str | None = None, description: str | None = None
    ) -> RocketPublisher:
        """Send a handler's result to a topic; the returned object also has `publish`."""
        shown = configs.PublisherSpecificationConfig(
            title_=title, description_=description, schema_=None
        )
        specification = _PublisherSpecification(self.config, shown)
        specification.topic = topic
        config = configs.PublisherUsecaseConfig(_outer_config=self.config)
        made = RocketPublisher(config, specification)
        super().publisher(made)
        return made


class RocketRouter(_Registrator, BrokerRouter[_Delivery, _Config]):
    """Handlers that a broker takes by `include_router`.

    Args:
        prefix: the beginning of the topics of all its subscribers and publishers.
        handlers, routers, middlewares: as for FastStream's other routers.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[Any] = (),
        *,
        routers: Iterable[Any] = (),
        middlewares: Sequence[Any] = (),
    ) -> None:
        config = _Config(prefix=prefix, broker_middlewares=middlewares)
        super().__init__(config=config, handlers=handlers, routers=routers)


class RocketBroker(_Registrator, BrokerUsecase[_Delivery, AsyncProducer, _Config]):
    """RocketMQ for FastStream.

    Args:
        name_server: the addresses of name servers, as for every client.
        group: the producer group.
        middlewares, routers: FastStream's middlewares and routers.
        settings: settings of every client: `tls`, `namespace`, `access_key`, `secret_key`.
    """

    def __init__(
        self,
        name_server: str,
        *,
        group: str = "GID_faststream",
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketRouter] = (),
        **settings: Any,
    ) -> None:
        self._group = group
        super().__init__(
            config=_Config(
                client={"name_server": name_server, **settings},
                broker_middlewares=middlewares,
                logger=make_logger_state(
                    logger=LOG, log_level=logging.INFO, default_storage_cls=DefaultLoggerStorage
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=True, provider=dependency_provider, context=ContextRepo()
                ),
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[name_server],
                protocol="rocketmq",
                **dict.fromkeys(("protocol_version", "description", "security"), None),
                tags=[],
            ),
            routers=routers,
        )

    request = _refuse

    async def _connect(self) -> AsyncProducer:
        producer = self.config.producer
        producer.client = AsyncProducer(self._group, **self.config.client)
        producer.serializer = self.config.fd_config._serializer  # pyright: ignore[reportPrivateUsage]
        return producer.client

    async def start(self) -> None:
        """Connect, and let the subscribers join their groups."""
        await self.connect()
        await super().start()

    async def stop(self, *error: Any) -> None:
        """Leave all groups, and close the connections."""
        await super().stop(*error)
        client, self._connection = self._connection, None
        if client is not None:
            await client.close()

    async def publish(self, message: Any = None, topic: str = "", **fields: Any) -> Any:
        """Send a message and return its `SendResult`.

        Args:
            fields: `headers`, `reply_to`, `correlation_id`, `keys`, `delay`. The headers `tags` and
                `sharding_key` become the message's, and a handler gets them as headers.
        """
        cmd = _command(self.config, message, destination=topic, **fields)
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def publish_batch(self, *messages: Any, topic: str, **fields: Any) -> Any:
        """Send messages as one batch, to one queue; `fields` as for `publish`, without `delay`."""
        cmd = _command(self.config, *messages, destination=topic, **fields)
        return await self._basic_publish_batch(cmd, producer=self.config.producer)

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a name server answers."""
        settings: dict[str, Any] = {} if timeout is None else {"timeout_ms": round(timeout * 1000)}
        try:
            async with AsyncAdmin(**self.config.client, **settings) as admin:
                await admin.list_topics()
        except SparrowError:
            return False
        return True
