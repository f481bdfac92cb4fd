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
# mypy: disable-error-code="misc, no-any-return, has-type, call-arg"
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportAssignmentType=false
# pyright: reportReturnType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
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
from faststream._internal.testing.broker import TestBroker
from faststream.exceptions import FeatureNotSupportedException, SubscriberNotFound
from faststream.message import StreamMessage, decode_message
from faststream.middlewares import AckPolicy
from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import BrokerSpec, Operation, PublisherSpec, SubscriberSpec
from faststream.specification.schema import Message as MessageSpec

from sparrowmq.client.config import KINDS, PUSH, ClientConfig, ClientKind, ProducerConfig
from sparrowmq.client.faces.aio import AsyncProducer, AsyncPushConsumer
from sparrowmq.client.faces.aio_admin import AsyncAdmin
from sparrowmq.client.outgoing import check_and_encode, check_batch, check_sendable_topic
from sparrowmq.errors import SendFailed, SparrowError, UsageError
from sparrowmq.model import (
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
)
from sparrowmq.model.message import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RESERVED_PROPERTIES,
)

LOG = logging.getLogger("sparrowmq.faststream")
# The properties for FastStream's fields beside headers.
CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
# The headers for a message's fields beside properties.
TAGS, SHARDING_KEY = "tags", "sharding_key"
NACK_DELAY = timedelta(seconds=1)
# As of `AsyncProducer.request`.
REPLY_TIMEOUT_S = 3.0
# The limits of a message in a test.
_CHECKED = ProducerConfig(group="GID_of_a_test", client_id="test")
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
        # Of a message sent by `request`, the cluster knows the way back; `_Reply` takes it.
        reply_to=properties.pop(REPLY_TO, "")
        or message.properties.get(PROPERTY_REPLY_TO_CLIENT, ""),
        headers=properties,
        message_id=message.msg_id,
    )


async def _decode(message: StreamMessage[Any]) -> Any:
    return decode_message(message)


async def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise FeatureNotSupportedException("single messages: take sparrowmq's PollConsumer")


class _Producer(ProducerProto[PublishCommand]):
    """Sends the messages that handlers publish."""

    def __init__(self) -> None:
        self._parser = _parse
        self._decoder = _decode
        self.codec = DefaultCodec()
        self.client: AsyncProducer | None = None
        self.serializer: Any = None

    async def publish(self, cmd: PublishCommand) -> Any:
        message, asked = await self._encode(cmd, cmd.body), getattr(cmd, "asked", None)
        if asked is not None:
            return await self._reply(asked, message)
        return await self._client().send(message)

    async def _reply(self, asked: MessageExt, message: Message) -> SendResult | None:
        try:
            return await self._client().reply(asked, message.body, properties=message.properties)
        except SendFailed as error:
            # Whoever asked is gone: it would not help to call the handler again.
            LOG.warning("the reply to message %s cannot be delivered: %s", asked.msg_id, error)
            return None

    async def request(self, cmd: RocketCommand) -> _Delivery:
        message = await self._encode(cmd, cmd.body)
        timeout_ms = round(cmd.timeout * 1000)
        reply = await self._client().request(message, timeout_ms=timeout_ms)
        return _Delivery(reply, _InOrder())

    async def publish_batch(self, cmd: PublishCommand) -> Any:
        return await self._client().send_batch(
            [await self._encode(cmd, body) for body in cmd.batch_bodies]
        )

    def _client(self) -> AsyncProducer:
        if self.client is None:
            raise UsageError("this RocketBroker is not connected; await its start or connect first")
        return self.client

    async def _encode(self, cmd: PublishCommand, sent: Any) -> Message:
        body, content_type = await self.codec.encode(sent, self.serializer)
        if not body and sent in (None, ""):
            # RocketMQ carries no empty body, as of a handler without a result.
            body, content_type = b"null" if sent is None else b'""', "application/json"
        own = {CORRELATION_ID: cmd.correlation_id, REPLY_TO: cmd.reply_to or None}
        own[CONTENT_TYPE] = content_type or None
        headers = {**cmd.headers, **own}
        # RocketMQ carries no empty property.
        texts = {name: "" if value is None else str(value) for name, value in headers.items()}
        properties = {name: text for name, text in texts.items() if text}
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
    """FastStream's order to send: bodies, keys, delay, and the time limit of a reply."""

    def __init__(
        self,
        *bodies: Any,
        keys: Sequence[str] = (),
        delay: timedelta | None = None,
        timeout: float = REPLY_TIMEOUT_S,
        **fields: Any,
    ) -> None:
        super().__init__(*bodies, **fields)
        # `Message` refuses a text, whose letters a tuple would have as keys.
        self.keys, self.delay, self.timeout = keys, delay, timeout


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

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> dict[str, str]:
        """Return the schema of any value: AsyncAPI cannot know the body's type."""
        return {"type": "any"}

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

    @property
    def topic(self) -> str:
        """The topic with the router's prefix."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._config.group

    def takes(self, message: MessageExt) -> bool:
        """Return whether topic and tag are the subscriber's."""
        tags = {tag.strip() for tag in self._config.expression.split("||")}
        return message.topic == self.topic and (bool(tags & {"*", ""}) or message.tags in tags)

    def deliver(self, message: MessageExt) -> _Delivery:
        """Return a delivery of one message for `process_message`."""
        if self._config.settings.get("orderly"):
            return _Delivery(message, _InOrder())
        return _Delivery(message, ConsumeContext(message.queue, messages=(message,)))

    def get_log_context(self, message: StreamMessage[_Delivery] | None) -> dict[str, str]:
        message_id = "" if message is None else message.message_id
        return {"topic": self._config.topic, "group": self._config.group, "message_id": message_id}

    async def start(self) -> None:
        if self._consumer is not None:
            # A second member would take queues from the first, which nobody would close.
            return
        await super().start()
        self._post_start()
        if not self.calls:
            return
        config, settings = self._config, {**self._outer_config.client, **self._config.settings}
        listener = self._listen_in_order if settings.get("orderly") else self._listen
        self._consumer = consumer = AsyncPushConsumer(config.group, listener=listener, **settings)
        try:
            await consumer.subscribe(self.topic, config.expression)
            await consumer.start()
        except BaseException:
            # The cause may be away at the next start.
            self._consumer = None
            await consumer.close()
            raise

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._closing = asyncio.create_task(consumer.close())
        # A handler that stops its subscriber cannot wait: the consumer closes when handlers end.
        if self._closing is not None and asyncio.current_task() not in self._listening:
            # A stop that is cancelled leaves the consumer to close; the next one waits for its end.
            await asyncio.shield(self._closing)
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
        return (_Reply(self._outer_config.producer, message),)


class _Reply(FakePublisher):
    """Sends a handler's result to who asked by `request`, or to the topic named for replies."""

    def __init__(self, producer: _Producer, message: StreamMessage[_Delivery]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> PublishCommand:
        cmd = super().patch_command(cmd)
        cmd.destination = self._message.reply_to
        asked = self._message.raw_message.message
        if PROPERTY_REPLY_TO_CLIENT in asked.properties:
            cmd.asked = asked
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
    config: Any,
    *bodies: Any,
    correlation_id: str | None = None,
    kind: PublishType = PublishType.PUBLISH,
    **fields: Any,
) -> RocketCommand:
    fields["correlation_id"] = correlation_id or config.id_generator()
    return RocketCommand(*bodies, _publish_type=kind, **fields)


class RocketPublisher(PublisherUsecase):
    """Sends to one topic."""

    specification: _PublisherSpecification

    async def publish(self, message: Any, **fields: Any) -> Any:
        """Send a message, as `RocketBroker.publish` does."""
        return await self._publish(
            _command(self._outer_config, message, **fields), _extra_middlewares=()
        )

    async def request(self, message: Any, **fields: Any) -> RocketMessage:
        """Send a message and return its handler's reply, as `RocketBroker.request` does."""
        fields |= {"kind": PublishType.REQUEST, "destination": self.specification.address}
        cmd = _command(self._outer_config, message, **fields)
        return await self._basic_request(cmd, producer=self._outer_config.producer)

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
        persistent: bool = True,
        **settings: Any,
    ) -> _Subscriber:
        """Call a handler with the messages of a topic.

        Args:
            group: the consumer group.
            expression: tags, as for `PushConsumer.subscribe`.
            ack_policy: FastStream's policy; a message whose handler fails is delivered again.
            no_reply: whether the handler's result is not sent to the message's reply topic.
            title, description: for AsyncAPI.
            persistent: FastStream's; False forgets the subscriber with its last reference.
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
        super().subscriber(made, persistent=persistent)
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
        ClientKind("RocketBroker", (ClientConfig,)).check_names(settings)
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

    async def request(self, message: Any = None, topic: str = "", **fields: Any) -> RocketMessage:
        """Send a message and return the reply: what its handler, in any process, returns.

        Args:
            fields: as for `publish`, without `reply_to`; and `timeout`, the seconds to wait for.

        Raises: InvokeTimeout if no reply came in time.
        """
        cmd = _command(self.config, message, destination=topic, kind=PublishType.REQUEST, **fields)
        return await self._basic_request(cmd, producer=self.config.producer)

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


class TestRocketBroker(TestBroker[RocketBroker, Any], broker=RocketBroker):
    """Runs handlers in a test without a cluster, as FastStream's other test brokers do.

    What is published is handed at once to one subscriber of each group whose topic and tags fit; an
    error of a handler is raised where the message was published. Delays are left out.
    """

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None]:
        producer = broker.config.producer
        before, producer.client = producer.client, _HandingClient(self.brokers)
        producer.serializer = broker.config.fd_config._serializer  # pyright: ignore[reportPrivateUsage]
        try:
            yield
        finally:
            producer.client = before

    async def _fake_connect(self, broker: RocketBroker, *_: Any, **__: Any) -> Any:
        return broker.config.producer.client

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[_Subscriber, bool]:
        """Return a subscriber of a publisher's topic, and whether it is the program's own."""
        topic = publisher.specification.address
        for each in self.brokers:
            for subscriber in each.subscribers:
                if subscriber.topic == topic:
                    return subscriber, True
        return broker.subscriber(topic, group="GID_of_a_test", persistent=False), False


class _HandingClient:
    """Hands messages to the subscribers of brokers, in the place of an `AsyncProducer`.

    It refuses what a producer would: a test must not pass with messages that no cluster takes.
    """

    def __init__(self, brokers: Sequence[RocketBroker]) -> None:
        self._brokers = brokers
        self._count = 0
        self._replies: dict[str, MessageExt] = {}

    async def send(self, message: Message) -> SendResult:
        came = self._store(message)
        await self._hand(came)
        return SendResult(SendStatus.SEND_OK, came.msg_id, "", came.queue, came.queue_offset)

    async def send_batch(self, messages: Sequence[Message]) -> SendResult:
        check_batch(messages)
        results = [await self.send(message) for message in messages]
        return results[0]

    async def request(self, message: Message, *, timeout_ms: int) -> MessageExt:
        asked = self._store(message, {PROPERTY_REPLY_TO_CLIENT: "test"})
        async with asyncio.timeout(timeout_ms / 1000):
            await self._hand(asked)
        if asked.msg_id not in self._replies:
            raise SubscriberNotFound(f"no handler of topic {message.topic!r} replies")
        return self._replies.pop(asked.msg_id)

    async def reply(
        self, message: MessageExt, body: bytes, *, properties: Mapping[str, str]
    ) -> None:
        self._replies[message.msg_id] = self._store(
            Message(message.topic, body, properties=properties)
        )

    def _store(self, message: Message, marks: Mapping[str, str] | None = None) -> MessageExt:
        check_sendable_topic(message.topic)
        check_and_encode(message, "", config=_CHECKED, has_timer=message.delay is not None)
        self._count += 1
        own = {
            PROPERTY_TAGS: message.tags,
            PROPERTY_KEYS: KEY_SEPARATOR.join(message.keys),
            PROPERTY_SHARDING_KEY: message.sharding_key,
            PROPERTY_UNIQ_KEY: f"{self._count:032X}",
            **(marks or {}),
        }
        return MessageExt(
            topic=message.topic,
            body=message.body,
            properties={**message.properties, **{name: text for name, text in own.items() if text}},
            broker_name="test",
            queue_id=0,
            queue_offset=self._count - 1,
            commit_log_position=0,
        )

    async def _hand(self, message: MessageExt) -> None:
        groups = set()
        for broker in self._brokers:
            for subscriber in broker.subscribers:
                if subscriber.takes(message) and subscriber.group not in groups:
                    groups.add(subscriber.group)
                    await subscriber.process_message(subscriber.deliver(message))
