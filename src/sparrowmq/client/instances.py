"""The instances that clients of one process share, and the conflicts between its consumers.

In RocketMQ a process has one client instance for each client id. Clients with equal ids and name
servers share its connections and threads, and one heartbeat names all their groups. By default ids
are unique, and every client has its own instance.

Two members of a group under one client id consume the same queues, and no member consumes the
others; within a process this is refused. Members of one group with different subscriptions are
refused too, because a broker keeps only the last one. For other processes the doctor reports both
from the broker's list.

Source: MQClientManager.java, MQClientInstance.java.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet, WeakValueDictionary, ref

from sparrowmq.calling import clock
from sparrowmq.calling.effects import Answer
from sparrowmq.calling.tls import check_context
from sparrowmq.client.config import ClientConfig
from sparrowmq.client.member_events import note_connection_lost, serve_request
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.replies import Replies, note_reply
from sparrowmq.client.subscriber import SilentBrokers, Subscriber
from sparrowmq.client.transaction_outcomes import Coordinator, note_broker_lost, note_question
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand

D = TypeVar("D")
# By topic, the kind of a subscription and its tags or its text.
_Expressions: TypeAlias = dict[str, tuple[str, frozenset[str] | str]]


class ClientInstance(Generic[D]):
    """One client id's connections, and the consumers that run on them, by group."""

    def __init__(self, make_driver: Callable[..., D], client: ClientConfig) -> None:
        self.consumers: dict[str, Subscriber] = {}
        # Of transactional producers, by group.
        self.coordinators: dict[str, Coordinator] = {}
        # Of producers that wait for one.
        self.replies: Replies = {}
        # A producer that was never closed may be collected.
        self._publishers: list[ref[Publisher]] = []
        self.user_count = 0
        self.driver = make_driver(
            on_request=self._answer,
            on_connection_lost=self._note_connection_lost,
            # Each consumer adds its own.
            pool_size=1,
            tls=client.tls,
            credentials=client.credentials,
        )

    def watch(self, publisher: Publisher) -> None:
        """Tell a producer which connections are lost."""
        self._publishers.append(ref(publisher, self._publishers.remove))

    def _answer(self, address: str, request: RemotingCommand) -> Answer:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            note_question(self.coordinators, address, request)
            return None
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return note_reply(self.replies, request)
        return serve_request(
            self.consumers,
            request,
            now_ms=clock.monotonic_ms(),
            timestamp_ms=clock.timestamp_ms(),
        )

    def _note_connection_lost(self, address: str) -> None:
        now_ms = clock.monotonic_ms()
        note_connection_lost(self.consumers, address, now_ms=now_ms)
        note_broker_lost(self.coordinators, address, now_ms=now_ms)
        for each in list(self._publishers):
            if (publisher := each()) is not None:
                publisher.known_until_ms.pop(address, None)


class ClientInstances:
    """The instances and running consumers of a process. Threads share one."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget everything: in a forked process the parent's clients do not run."""
        self._lock = threading.Lock()
        # Weak references: a client that was never closed must not block others after it is
        # collected.
        self._instances: WeakValueDictionary[Hashable, ClientInstance[Any]] = WeakValueDictionary()
        self._running: WeakSet[Subscriber] = WeakSet()
        self._silent = SilentBrokers()

    def open(
        self,
        make_driver: Callable[..., D],
        client_id: str,
        *,
        addresses: Sequence[str],
        scope: Hashable,
        client: ClientConfig,
    ) -> ClientInstance[D]:
        """Return the instance of a client id at these name servers; end the use with `close`.

        Args:
            scope: only clients of equal scope share; a scope has drivers of one kind.
            client: only clients that connect and sign alike share.

        Raises: ConfigError if `tls` is not a TLS context.
        """
        check_context(client.tls)
        key = (client_id, frozenset(addresses), scope, client.tls, client.credentials)
        with self._lock:
            instance = self._instances.get(key)
            if instance is None or not instance.user_count:
                instance = ClientInstance(make_driver, client)
                self._instances[key] = instance
            instance.user_count += 1
            return instance

    def close(self, instance: ClientInstance[D]) -> bool:
        """End a use of an instance; return True after the last use: then close its driver."""
        with self._lock:
            instance.user_count -= 1
            return not instance.user_count

    def register(self, subscriber: Subscriber, instance: ClientInstance[D]) -> None:
        """Record that a consumer starts on an instance.

        Raises: UsageError if a consumer of its group runs under its client id; ConfigError if a
        consumer of its group has other subscriptions.
        """
        ours = _expressions(subscriber)
        with self._lock:
            for other in self._running:
                if _are_of_one_group(subscriber, other):
                    _check_id(subscriber, other)
                    _check_subscriptions(subscriber, ours, other)
            self._running.add(subscriber)
            subscriber.companions = instance.consumers
            subscriber.silent = self._silent
            instance.consumers[subscriber.config.group] = subscriber

    def register_coordinator(self, coordinator: Coordinator, instance: ClientInstance[D]) -> None:
        """Record that a transactional producer starts on an instance.

        Raises: UsageError if a transactional producer of its group runs there: a broker's question
        could reach either.
        """
        config = coordinator.publisher.config
        with self._lock:
            if config.group in instance.coordinators:
                raise UsageError(
                    f"producer group {config.group} has a transactional producer with client id "
                    f"{config.client_id} in this process already; give each its own "
                    f"instance_name, or close the first"
                )
            instance.coordinators[config.group] = coordinator

    def unregister_coordinator(self, coordinator: Coordinator, instance: ClientInstance[D]) -> None:
        """Record that a transactional producer has ended."""
        with self._lock:
            del instance.coordinators[coordinator.publisher.config.group]

    def unregister(self, subscriber: Subscriber) -> None:
        """Record that a consumer has ended."""
        with self._lock:
            self._running.discard(subscriber)
            subscriber.companions.pop(subscriber.config.group, None)


def _are_of_one_group(one: Subscriber, other: Subscriber) -> bool:
    if one.config.group != other.config.group:
        return False
    ours, theirs = one.name_servers.addresses, other.name_servers.addresses
    return ours == theirs or not set(ours).isdisjoint(theirs)


def _check_id(subscriber: Subscriber, other: Subscriber) -> None:
    config = subscriber.config
    if config.client_id == other.config.client_id:
        raise UsageError(
            f"consumer group {config.group} has a consumer with client id {config.client_id} in "
            "this process already. Members that share an id consume the same queues, and nobody "
            "consumes the other queues. Give each its own instance_name (the default of "
            f"CLUSTERING is unique), or another group, or close the first"
        )


def _check_subscriptions(subscriber: Subscriber, ours: _Expressions, other: Subscriber) -> None:
    theirs = _expressions(other)
    # A consumer without subscriptions subscribes later, or gets its queues by `assign`.
    if ours and theirs and ours != theirs:
        group = subscriber.config.group
        raise ConfigError(
            f"consumer group {group}: this consumer ({subscriber.config.client_id}) subscribes "
            f"{_text(ours)}, but {other.config.client_id} of the same group in this process "
            f"subscribes {_text(theirs)}. A broker keeps only the last subscription of a group, so "
            "each would miss messages. Subscribe the same topics and expressions in "
            f"all consumers of a group, or give this one a group of its own"
        )


def _expressions(subscriber: Subscriber) -> _Expressions:
    """Return the subscriptions by topic in a form in which equal expressions compare equal."""
    if subscriber.is_assigned:
        return {}
    return {
        topic: (data.expression_type, data.tags_set or data.sub_string)
        for topic, data in dict(subscriber.subscriptions).items()
        if topic != subscriber.retry_topic
    }


def _text(expressions: _Expressions) -> str:
    def show(expression: frozenset[str] | str) -> str:
        return expression if isinstance(expression, str) else " || ".join(sorted(expression))

    return ", ".join(
        f"{topic} ({show(expression)})" for topic, (_, expression) in sorted(expressions.items())
    )


INSTANCES = ClientInstances()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INSTANCES.begin_anew)
