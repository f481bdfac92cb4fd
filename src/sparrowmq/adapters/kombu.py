"""A kombu transport: Celery runs on RocketMQ.

    import sparrowmq.adapters.kombu
    app = Celery("tasks", broker="rocketmq://127.0.0.1:9876")

The import of this module registers the scheme `rocketmq` with kombu. A queue of Celery is a topic,
and its workers are a consumer group of the topic. The rules:

- A task is one message. While a worker has the task, a call of the group's listener waits for the
  acknowledgement. RocketMQ's rules for listeners therefore hold for tasks: a queue changes its
  owner once its tasks are done, and another worker gets the tasks of a killed worker. A worker
  does not begin the tasks of a queue that goes to another one.
- Offsets are committed up to the first unfinished task. After a kill, acknowledged tasks behind an
  unfinished one may run again.
- A task with an `eta` waits at the broker: in the longest delay level that ends before the `eta`,
  then in further levels. The worker waits for the last second.
- There are no fan-out exchanges and no queues that delete themselves: a topic stays, and all
  workers share it. What needs one of these fails with a UsageError: remote control (`revoke`,
  `inspect`), receivers of events, `rpc://`. Workers start without gossip and mingle.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from sparrowmq.calling.forks import tell_in_forks
from sparrowmq.client.faces.blocking import Producer, PushConsumer
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.config import check_range
from sparrowmq.errors import (
    ConfigError,
    ConnectFailed,
    RouteError,
    SendFailed,
    SparrowError,
    TopicRouteNotFound,
    TransportError,
    UsageError,
    did_you_mean,
)
from sparrowmq.model import ConsumeContext, Message, MessageExt, MessageQueue
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.names import CONSUMER_GROUP_LENGTH_MAX
from sparrowmq.model.namespace import Namespace

DEFAULT_PORT: Final = 9876
# The transport's options.
DEFAULTS: Final = {
    "name_server": None,
    "tls": None,
    "namespace": None,
    "topic_queues": 8,
    "balance": "queues",
    "unacked_max": 64,
    "visibility_timeout": 3_600,
}
RANGES: Final = {
    "topic_queues": (1, 65_536),
    "unacked_max": (1, 1_000),
    "visibility_timeout": (1, 86_400),
}
# What kombu itself reads, and what its retry policies add.
KOMBU_OPTIONS: Final = frozenset(
    (
        *("max_retries", "interval_start", "interval_step", "interval_max", "retry_errors"),
        *("connect_retries_timeout", "errback", "callback", "on_revive"),
        *("polling_interval", "body_encoding", "deadletter_queue"),
    )
)
# The time between two looks at empty queues.
POLLING_INTERVAL_S: Final = 0.02
# The time between two looks whether the queue of a task that waits goes to another worker.
LOOK_INTERVAL_S: Final = 1.0
# The time by which the queue has moved, `drain_timeout_ms` and the last commit included. The next
# owner gets its tasks; one that is given back before would come a second time.
MOVE_S: Final = 20.0
# The delay before a task that a worker gave back is delivered again.
REQUEUE_DELAY: Final = timedelta(seconds=1)
# Celery counts its retries itself: a task that was given back often must not become a dead letter.
RECONSUME_TIMES_MAX: Final = 2**31 - 1
_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-|")
# The exchanges and bindings that this process has declared, by name server and namespace: a
# connection that is made anew after a failure knows them, and so do all of a pool.
_STATES: dict[tuple[str, str], virtual.BrokerState] = {}
# Type checkers infer too narrow result types for kombu's methods.
_Channel: Any = virtual.Channel
_Transport: Any = virtual.Transport


class HeldTask:
    """A message at a worker, and the listener's call that waits for the worker's decision."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload
        self.is_done = False
        self._decided = threading.Event()

    def decide(self, *, is_done: bool) -> None:
        """Decide whether the task is done or is delivered again; the first decision counts."""
        if not self._decided.is_set():
            self.is_done = is_done
            self._decided.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the decision; return whether it has come."""
        return self._decided.wait(timeout_s)


class QueueTasks:
    """The consumer of one queue, and its tasks that the worker has not taken yet.

    Args:
        put_back: sends a task again that arrived before its eta.
    """

    def __init__(
        self, topic: str, settings: dict[str, Any], put_back: Callable[[dict[str, Any]], None]
    ) -> None:
        self._put_back = put_back
        self._shares_queues: bool = settings.get("balance") != "messages"
        self._waiting: deque[HeldTask] = deque()
        self._taken: set[HeldTask] = set()
        self._lock = threading.Lock()
        self._is_open = True
        self._consumer = PushConsumer(
            group_of(topic),
            listener=self._listen,
            start="first",
            max_reconsume_times=RECONSUME_TIMES_MAX,
            **settings,
        )
        self._consumer.subscribe(topic)
        self._consumer.start()

    def take(self) -> HeldTask:
        """Return a waiting task; receive tasks again after `pause`. Raises: queue.Empty."""
        if not self._is_open:
            self._is_open = True
            self._consumer.resume()
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
        raise queue.Empty

    def pause(self) -> None:
        """Receive no further tasks until `take`, and give back the waiting ones."""
        self._consumer.suspend()
        with self._lock:
            # Calls of the listener may have begun before.
            self._is_open = False
            waiting = tuple(self._waiting)
            self._waiting.clear()
        for task in waiting:
            task.decide(is_done=False)

    def close(self) -> None:
        """Give back all unfinished tasks, and leave the group."""
        with self._lock:
            self._is_open = False
            taken = tuple(self._taken)
        for task in taken:
            task.decide(is_done=False)
        self._consumer.close()

    def _listen(self, messages: list[MessageExt], context: ConsumeContext) -> None:
        for message in messages:
            try:
                payload = loads(message.body)
                payload["properties"]["delivery_info"]["redelivered"] = message.reconsume_times > 0
                is_early = delay_level_of(payload) > 0
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                context.dead_letter(message, reason=f"no message of kombu's: {error!r}")
                continue
            if is_early:
                self._put_back(payload)
            elif not self._is_done_by_worker(HeldTask(payload), context.queue):
                context.retry(message, delay=REQUEUE_DELAY)

    def _is_done_by_worker(self, task: HeldTask, place: MessageQueue) -> bool:
        with self._lock:
            if not self._is_open:
                return False
            self._taken.add(task)
            self._waiting.append(task)
        while not task.wait(LOOK_INTERVAL_S):
            if self._is_moving(place) and self._withdraw(task):
                task.wait(MOVE_S)
                break
        with self._lock:
            self._taken.discard(task)
        return task.is_done

    def _is_moving(self, place: MessageQueue) -> bool:
        """Return whether another worker is to have a queue of the topic or the retry topic."""
        if not self._shares_queues:
            return False
        # `PushConsumer.assignment` leaves out the retry topic.
        subscriber = self._consumer._subscriber  # pyright: ignore[reportPrivateUsage]
        queue = subscriber.config.namespace.wrap_queue(place)
        return queue not in subscriber.member.assigned

    def _withdraw(self, task: HeldTask) -> bool:
        """Take a task back from the worker; return False if the worker has it already."""
        with self._lock:
            if task not in self._waiting:
                return False
            self._waiting.remove(task)
            return True


class QueueChannel(_Channel):  # type: ignore[misc]
    """A channel whose queues are topics."""

    # The broker itself delivers unacknowledged messages again.
    do_restore = False
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._no_ack: set[str] = set()
        self.become_copy()
        tell_in_forks(self)

    def become_copy(self) -> None:
        """Begin without clients: those from before a fork serve the parent alone."""
        self._tasks: dict[str, QueueTasks] = {}
        self._taken: dict[str, HeldTask] = {}
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    def exchange_declare(
        self, exchange: str = "", type: str = "direct", *args: Any, **kwargs: Any
    ) -> None:
        """Declare an exchange. Raises: UsageError for a fan-out exchange."""
        if type == "fanout":
            raise UsageError(
                f"exchange {exchange!r} is a fan-out exchange, which RocketMQ does not have; "
                "remote control (revoke, inspect, control) and Broadcast queues need one: end a "
                "worker by a signal, and let a task ask a database whether it is still wanted"
            )
        super().exchange_declare(exchange, type, *args, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; create its topic.

        Raises: UsageError for a queue that deletes itself, for arguments that change a queue, and
        for a name that is too long.
        """
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            raise UsageError(
                f"queue {queue!r} is to delete itself, but RocketMQ's topics stay; replies of "
                "remote control (inspect), events and results by rpc:// need such queues: ask "
                "`sparrowmq group show` for workers, and take a database for results"
            )
        if arguments := kwargs.get("arguments"):
            raise UsageError(
                f"queue {queue!r} has arguments that RocketMQ's topics do not have: "
                f"{', '.join(sorted(arguments))}; remove them"
            )
        if queue and not passive:
            # Tasks would be stored that no worker could get.
            namespace = Namespace(self.connection.client_settings["namespace"] or "")
            length = len(namespace.wrap(group_of(topic_of(queue))))
            if length > CONSUMER_GROUP_LENGTH_MAX:
                raise UsageError(
                    f"queue {queue!r} has too long a name: the group of its workers would have "
                    f"{length} characters, and the limit is {CONSUMER_GROUP_LENGTH_MAX}; choose a "
                    "shorter name (a character that topics may not have counts as three a byte)"
                )
        return super().queue_declare(queue, passive, **kwargs)

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return a queue's arguments: those given by name too, for `queue_declare` to refuse."""
        given = {name: value for name, value in kwargs.items() if value is not None}
        return {**(arguments or {}), **given}

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> Any:
        """Send a message. Raises: UsageError if the exchange has no queue for it."""
        # Celery's workers send events, by their host's name alone, which nobody receives.
        is_event = message["headers"].keys() == {"hostname"}
        if exchange and not is_event and not self._lookup(exchange, routing_key):
            raise UsageError(
                f"exchange {exchange!r} has no queue with routing key {routing_key!r} in this "
                "process, and RocketMQ does not know those of others: nobody would get the "
                "message; name the queue instead of the exchange, or declare the queue first"
            )
        return super().basic_publish(message, exchange, routing_key, **kwargs)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Begin to consume a queue."""
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next task of a queue, or None."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self._decide(message.delivery_tag, is_done=True)
        return message

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming; the worker may still acknowledge the tasks that it has."""
        queue = self._tag_to_queue.get(consumer_tag)
        if queue in self._tasks:
            self._tasks[queue].pause()
        return super().basic_cancel(consumer_tag)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a task."""
        super().basic_ack(delivery_tag, multiple)
        self._decide(delivery_tag, is_done=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a task delivered again, or dropped."""
        self.qos.ack(delivery_tag)
        self._decide(delivery_tag, is_done=not requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Have all unacknowledged tasks delivered again."""
        for tag in tuple(self._taken):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        """Give back unacknowledged tasks, and close the connections."""
        if not self.closed:
            for tasks in self._tasks.values():
                tasks.close()
            self._tasks.clear()
            for client in (self._producer, self._admin):
                if client is not None:
                    client.close()
        super().close()

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if queue not in self._tasks:
            settings = self.connection.consumer_settings
            self._tasks[queue] = QueueTasks(topic_of(queue), settings, partial(self._put, queue))
        task = self._tasks[queue].take()
        tag = self.connection.next_tag()
        if queue in self._no_ack:
            task.decide(is_done=True)
        else:
            self._taken[tag] = task
        payload = task.payload
        payload["properties"]["delivery_tag"] = tag
        return payload

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        level = delay_level_of(message)
        self._get_producer().send(
            Message(topic_of(queue), dumps(message).encode(), delay_level=level)
        )

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        topic = topic_of(queue)
        if topic in self.connection.known_topics:
            return
        admin = self._get_admin()
        try:
            admin.route(topic)
        except TopicRouteNotFound:
            admin.create_topic(topic, self.connection.topic_queues)
        self.connection.known_topics.add(topic)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            self._get_admin().route(topic_of(queue))
        except TopicRouteNotFound:
            return False
        return True

    def _size(self, queue: str) -> int:
        topic = topic_of(queue)
        return sum(lag.lag for lag in self._get_admin().group_lag(group_of(topic), topic))

    def _purge(self, queue: str) -> int:
        topic, admin = topic_of(queue), self._get_admin()
        count = sum(lag.lag for lag in admin.group_lag(group_of(topic), topic))
        # Workers hear of a reset; a mere commit would be overwritten by their next ones.
        admin.reset_offsets(group_of(topic), topic, to="latest")
        return count

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._get_admin().delete_topic(topic_of(queue))
        self.connection.known_topics.discard(topic_of(queue))

    def _decide(self, delivery_tag: str, *, is_done: bool) -> None:
        task = self._taken.pop(delivery_tag, None)
        if task is not None:
            task.decide(is_done=is_done)

    def _get_producer(self) -> Producer:
        with self._lock:  # The calls of listeners send tasks back at the same time.
            if self._producer is None:
                self._producer = Producer("GID_kombu", **self.connection.client_settings)
            return self._producer

    def _get_admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(**self.connection.client_settings)
        return self._admin


class Transport(_Transport):  # type: ignore[misc]
    """Connections to a RocketMQ cluster.

    Options (`broker_transport_options`): `name_server` (several addresses, in place of the URL's),
    `tls` (an `ssl.SSLContext`), `namespace`, `topic_queues` (the queues of a new topic; 8),
    `balance` ("messages" lets idle workers take the tasks of busy workers' queues; "queues"),
    `unacked_max` (the most tasks of a worker at once; 64), `visibility_timeout` (the seconds after
    which an unacknowledged task is delivered to another worker; 3600).

    Raises: UsageError for `ssl`, and for a URL with a virtual host; ConfigError for an unknown
    option or a wrong number.
    """

    Channel = QueueChannel
    polling_interval = POLLING_INTERVAL_S
    default_port = DEFAULT_PORT
    driver_type = "rocketmq"
    driver_name = "sparrowmq"
    connection_errors = (*virtual.Transport.connection_errors, TransportError, SendFailed)
    recoverable_connection_errors = connection_errors
    channel_errors = (*virtual.Transport.channel_errors, RouteError)
    recoverable_channel_errors = channel_errors

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options: dict[str, Any] = {**DEFAULTS, **client.transport_options}
        for name in sorted(options.keys() - DEFAULTS.keys() - KOMBU_OPTIONS):
            hint = did_you_mean(name, DEFAULTS, cutoff=0.7) or f"; there are {', '.join(DEFAULTS)}"
            raise ConfigError(f"RocketMQ has no transport option {name!r}{hint}")
        for name, (low, high) in RANGES.items():
            check_range(f"the transport option {name}", options[name], low, high)
        if client.ssl and not options["tls"]:
            raise UsageError(
                "broker_use_ssl (ssl=) is not for RocketMQ, and the connection would not be "
                "encrypted; give broker_transport_options = "
                "{'tls': ssl.create_default_context(cafile=...)}"
            )
        if path := (client.virtual_host or "").strip("/"):
            raise UsageError(
                f"the URL names the virtual host {path!r}, which RocketMQ does not have: its "
                "tasks would be those of all others; give broker_transport_options = "
                f"{{'namespace': {path!r}}}"
            )
        host = client.hostname or "127.0.0.1"
        # The brackets of an IPv6 address are not among the URL's parts.
        host = f"[{host}]" if host.count(":") > 1 else host
        self.client_settings: dict[str, Any] = {
            "name_server": options["name_server"] or f"{host}:{client.port or DEFAULT_PORT}",
            "tls": options["tls"],
            "namespace": options["namespace"],
            "access_key": client.userid,
            "secret_key": client.password,
        }
        self.consumer_settings: dict[str, Any] = {
            **self.client_settings,
            "balance": options["balance"],
            "consume_thread_count": options["unacked_max"],
            "consume_timeout_ms": options["visibility_timeout"] * 1_000,
        }
        self.topic_queues: int = options["topic_queues"]
        place = str(self.client_settings["name_server"]), str(options["namespace"] or "")
        self.state = _STATES.setdefault(place, virtual.BrokerState())
        self.known_topics: set[str] = set()
        self._tags = itertools.count(1)

    def next_tag(self) -> str:
        """Return a tag that is unique within this connection."""
        return str(next(self._tags))

    def establish_connection(self) -> Any:
        """Connect. Raises: ConnectFailed if no name server answers."""
        with Admin(**self.client_settings) as admin:
            try:
                admin.list_topics()
            except ConnectFailed:
                raise
            except SparrowError as error:
                raise ConnectFailed(str(error), address=self.client_settings["name_server"]) from (
                    error
                )
        return super().establish_connection()


def topic_of(queue: str) -> str:
    """Return the topic of a queue; %XX replaces characters that topics may not have."""
    return "".join(
        character
        if character in _TOPIC_CHARACTERS
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in queue
    )


def group_of(topic: str) -> str:
    """Return the consumer group of a topic's workers."""
    return f"GID_celery_{topic}"


def delay_level_of(message: dict[str, Any]) -> int:
    """Return the longest delay level that ends before a task's eta; 0 for none."""
    try:
        eta = datetime.fromisoformat(message["headers"].get("eta"))
    except (TypeError, ValueError):
        # A program without Celery may have a header of this name.
        return 0
    left = (eta if eta.tzinfo else eta.replace(tzinfo=UTC)) - datetime.now(UTC)
    left_ms = left / timedelta(milliseconds=1)
    return sum(delay_ms <= left_ms for delay_ms in DELAY_LEVELS_MS)


TRANSPORT_ALIASES["rocketmq"] = "sparrowmq.adapters.kombu:Transport"
