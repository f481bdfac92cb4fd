"""The life of a client: settings by telemetry, heartbeats, and the end.

Source: ClientActivity, GrpcClientSettingsManager of 5.5.0. Differs from RocketMQ: a client whose
settings are not known yet, as after a restart of the service, is served by its group's settings.
Tests: test_server.py, test_large_requests.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import UNSET

from sparrowmq.errors import LocalProtocolError
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.checks import check_group
from sparrowmq.grpc_service.client_table import BrokerPort, Client, Clients
from sparrowmq.grpc_service.message_content import to_duration, to_ms
from sparrowmq.grpc_service.messages import (
    Code,
    CustomizedBackoff,
    Duration,
    ExponentialBackoff,
    FilterType,
    HeartbeatRequest,
    HeartbeatResponse,
    Metric,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    RetryPolicy,
    Settings,
)
from sparrowmq.grpc_service.renewals import Renewals
from sparrowmq.grpc_service.statuses import Rejected, ok
from sparrowmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.group_settings import ExponentialRetryPolicy, GroupRetryPolicy
from sparrowmq.protocol.headers import UnregisterClientRequestHeader, encode_header
from sparrowmq.protocol.subscription import parse_subscription

# ClientConfig and ProxyConfig of 5.5.0.
SEND_ATTEMPTS_MAX = 3
RECEIVE_BATCH_SIZE = 32
LONG_POLLING_MS = 20_000
# CustomizedRetryPolicy: the waits before the attempts after the first.
RETRY_WAITS_S = (
    *(1, 5, 10, 30),
    *(minutes * 60 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
# Of the settings of one client; the broker takes no more topics of a client either.
SETTINGS_BYTES_MAX = 256 * 1024
SUBSCRIBED_TOPICS_MAX, PUBLISHED_TOPICS_MAX = 256, 1_024
# google.protobuf.Duration: 10,000 years.
_WAIT_MS_MAX = 315_576_000_000 * 1_000


def merge_settings(
    given: Settings, group: SubscriptionGroupConfig | None, *, body_bytes_max: int
) -> Settings:
    """Return a client's settings with what the service decides."""
    merged = Settings()
    merged.CopyFrom(given)
    merged.metric.CopyFrom(Metric(on=False))
    if given.HasField("publishing"):
        merged.publishing.validate_message_type = True
        merged.publishing.max_body_size = body_bytes_max
        backoff = ExponentialBackoff(
            initial=to_duration(10), max=to_duration(1_000), multiplier=2.0
        )
        policy = RetryPolicy(max_attempts=SEND_ATTEMPTS_MAX, exponential_backoff=backoff)
    else:
        merged.subscription.fifo = group is not None and bool(group.consume_message_orderly)
        merged.subscription.receive_batch_size = RECEIVE_BATCH_SIZE
        merged.subscription.long_polling_timeout.CopyFrom(to_duration(LONG_POLLING_MS))
        policy = _retry_policy(group)
    merged.backoff_policy.CopyFrom(policy)
    return merged


def _retry_policy(group: SubscriptionGroupConfig | None) -> RetryPolicy:
    """Return how often and when a group's message that failed is consumed again."""
    given = UNSET if group is None else group.group_retry_policy
    wanted = GroupRetryPolicy() if given is UNSET else given
    policy = RetryPolicy(max_attempts=attempts_max(group))
    if wanted.type == "EXPONENTIAL":
        growing = wanted.exponential_retry_policy
        if growing is UNSET:
            growing = ExponentialRetryPolicy()
        backoff = ExponentialBackoff(
            initial=_to_wait(growing.initial),
            max=_to_wait(growing.max),
            multiplier=growing.multiplier,
        )
        policy.exponential_backoff.CopyFrom(backoff)
        return policy
    listed = wanted.customized_retry_policy
    # Java's client takes no empty list.
    waits_ms = ([] if listed is UNSET else listed.next) or [wait * 1_000 for wait in RETRY_WAITS_S]
    policy.customized_backoff.CopyFrom(CustomizedBackoff(next=map(_to_wait, waits_ms)))
    return policy


def _to_wait(wait_ms: int) -> Duration:
    """Return a wait that a tool has set; clients can read a duration of `_WAIT_MS_MAX`."""
    return to_duration(min(max(0, wait_ms), _WAIT_MS_MAX))


def attempts_max(group: SubscriptionGroupConfig | None) -> int:
    """Return how often a group's message is delivered before it is a dead letter."""
    defaults = SubscriptionGroupConfig(group_name="") if group is None else group
    return defaults.retry_max_times + 1


class Sessions:
    """Serves settings, heartbeats and ends of clients.

    Args:
        timestamp_ms: the wall clock, in milliseconds since 1970.
    """

    def __init__(
        self,
        broker: BrokerPort,
        clients: Clients,
        renewals: Renewals,
        *,
        timestamp_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._renewals = renewals
        self._timestamp_ms = timestamp_ms

    def settle(self, client: Client, given: Settings) -> Settings:
        """Keep a client's settings; return them as the service answers. Raises: Rejected."""
        _check_size(given)
        group = None
        if given.HasField("subscription"):
            group = self._broker.find_group(check_group(given.subscription.group))
        elif not given.HasField("publishing"):
            text = "the settings have neither publishing nor subscription"
            raise Rejected(Code.UNRECOGNIZED_CLIENT_TYPE, text)
        merged = merge_settings(given, group, body_bytes_max=self._broker.body_bytes_max)
        client.consumers = _consumers(merged, self._timestamp_ms())
        client.published_topics = frozenset(topic.name for topic in merged.publishing.topics)
        if given.HasField("request_timeout"):
            client.request_timeout_ms = to_ms(given.request_timeout)
        return merged

    async def heartbeat(self, caller: Caller, request: HeartbeatRequest) -> HeartbeatResponse:
        """Register the client's groups at the broker.

        A client whose settings are not known is registered once they come.
        """
        del request
        client = self._clients.known(caller)
        if client is None:
            return HeartbeatResponse(status=ok())
        topics = sorted(client.transaction_topics | client.published_topics)
        data = HeartbeatData(
            client_id=caller.client_id,
            producer_data_set=[ProducerData(group_name=topic) for topic in topics],
            consumer_data_set=client.consumers,
        )
        if data.producer_data_set or data.consumer_data_set:
            await _register(self._clients, caller, data)
        return HeartbeatResponse(status=ok())

    async def terminate(
        self, caller: Caller, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Forget a client, and unregister its groups at the broker."""
        client = self._clients.known(caller)
        if client is None:
            return NotifyClientTerminationResponse(status=ok())
        # A client that ends has short deadlines, and nobody repeats the call.
        await asyncio.shield(self._clients.keep(self._end(client, caller, request)))
        return NotifyClientTerminationResponse(status=ok())

    async def _end(
        self, client: Client, caller: Caller, request: NotifyClientTerminationRequest
    ) -> None:
        await self._renewals.release(client)
        if request.HasField("group") and request.group.name:
            header = UnregisterClientRequestHeader(
                client_id=caller.client_id, consumer_group=check_group(request.group)
            )
            asked = RemotingCommand(
                code=RequestCode.UNREGISTER_CLIENT, ext_fields=encode_header(header)
            )
            await self._clients.ask_well(caller, asked)
        self._clients.forget(client)


async def register_producer(clients: Clients, caller: Caller, topic: str) -> None:
    """Make the caller a member of a topic's producer group, which is asked for outcomes."""
    client = clients.find(caller)
    if topic not in client.transaction_topics or client.connection is None:
        data = HeartbeatData(
            client_id=caller.client_id, producer_data_set=[ProducerData(group_name=topic)]
        )
        await _register(clients, caller, data)
        client.transaction_topics.add(topic)


async def _register(clients: Clients, caller: Caller, data: HeartbeatData) -> None:
    asked = RemotingCommand(code=RequestCode.HEART_BEAT, body=encode_body(data))
    await clients.ask_well(caller, asked)


def _check_size(given: Settings) -> None:
    """Refuse settings that would take the event loop's time, and memory with each stream.

    Raises: Rejected.
    """
    for noun, count, limit in (
        ("bytes", given.ByteSize(), SETTINGS_BYTES_MAX),
        ("subscriptions", len(given.subscription.subscriptions), SUBSCRIBED_TOPICS_MAX),
        ("topics", len(given.publishing.topics), PUBLISHED_TOPICS_MAX),
    ):
        if count > limit:
            text = f"the settings have {count} {noun}; the limit is {limit}"
            raise Rejected(Code.BAD_REQUEST, text)


def _consumers(settings: Settings, timestamp_ms: int) -> list[ConsumerData]:
    """Return the membership that settings ask for, if any. Raises: Rejected."""
    if not settings.HasField("subscription"):
        return []
    try:
        subscriptions: list[SubscriptionData] = [
            parse_subscription(
                entry.topic.name,
                entry.expression.expression or "*",
                sub_version=timestamp_ms,
                expression_type="SQL92" if entry.expression.type == FilterType.SQL else "TAG",
            )
            for entry in settings.subscription.subscriptions
        ]
    except LocalProtocolError as error:
        raise Rejected(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None
    group = settings.subscription.group.name
    return [ConsumerData(group_name=group, subscription_data_set=subscriptions)]
