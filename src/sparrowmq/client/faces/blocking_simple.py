# Made of aio_simple.py by `make generate`; change that file.
"""The synchronous face of consumption message by message: each method runs one operation.
Tests: client/test_simple_consumer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Self, Unpack

from sparrowmq.client.arguments import read_topics
from sparrowmq.client.assembly import (
    check_count,
    invisible_ms,
    make_pop_source,
    subscribe_pops,
    wait_ms,
)
from sparrowmq.client.faces.thread_host import open_driver
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.client.operations import pop
from sparrowmq.client.setting_types import SimpleConsumerSettings
from sparrowmq.client.subscriber import Topics
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageExt, MessageSelector
from sparrowmq.model.names import check_topic

# The messages of one `receive`: brokers give at most so many.
COUNT_MAX = 32
INVISIBLE = timedelta(seconds=60)
WAIT = timedelta(seconds=10)


@for_users
class SimpleConsumer:
    """A consumer of single messages: `receive` them, and `ack` each when it is done.

    No queue has an owner. Any number of consumers of a group receive messages of any queue, and a
    message that a consumer has received is invisible to the others for a time. If the message is
    not acknowledged in time, it comes again, and after too many attempts it becomes a dead letter.
    Needs SparrowMQ's broker or RocketMQ 5. Threads may share a consumer.

    Args:
        group: the consumer group. All its members consume by messages, none by queues.
        topics: a topic, a list of topics, or topics with their expressions, such as
            `{"orders": "new || paid"}`; None leaves them to `subscribe`.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        settings: see `SimpleConsumerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        **settings: Unpack[SimpleConsumerSettings],
    ) -> None:
        self._group = group
        self._source = make_pop_source(group, name_server, **settings)
        for topic, expression in read_topics(topics).items():
            subscribe_pops(self._source, topic, expression)
        self._driver = open_driver(self._source.directory.client)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of group {self._group}>"

    def __enter__(self) -> Self:
        self._check_open()
        self._driver.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield one message after another, each invisible for 60 s, until `close`."""
        while not self._is_closed:
            try:
                found = self.receive(1)
            except UsageError:
                if self._is_closed:
                    return
                raise
            if found:
                yield found[0]

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Receive messages of a topic too; a new group begins at its oldest message.

        Args:
            expression: `*` for all messages, tags such as `TagA || TagB`, or
                `MessageSelector.by_sql(...)`. All members of a group must have the same.

        Raises: ConfigError for a bad topic name; UsageError for a bad expression.
        """
        subscribe_pops(self._source, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic."""
        wrapped = self._source.directory.namespace.wrap(check_topic(topic))
        self._source.subscriptions.pop(wrapped, None)

    def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        invisible: timedelta = INVISIBLE,
        wait: timedelta = WAIT,
    ) -> list[MessageExt]:
        """Return messages as soon as there are any; [] if none comes in time.

        Args:
            count_max: the most messages, 1 to 32.
            invisible: the time within which to acknowledge them, 0 s to 12 hours.
            wait: the longest wait, 0 s to 30 s.

        Raises: UsageError before `subscribe` and after `close`; ConfigError; TopicRouteNotFound;
            TransportError; BrokerError.
        """
        self._check_open()
        received = pop.ReceivedMessages()
        operation = pop.receive(
            self._source,
            count_max=check_count(count_max),
            invisible_ms=invisible_ms(invisible),
            wait_ms=wait_ms(wait),
            received=received,
        )
        try:
            return self._driver.run(operation)
        except BaseException:
            # The caller is interrupted when the messages have come, and before it gets them.
            if received.messages:
                with suppress(UsageError):
                    self._driver.spawn(
                        pop.give_back(self._source, received.messages), name="return of messages"
                    )
            raise

    def ack(self, *messages: MessageExt) -> None:
        """Acknowledge messages: they are done, and do not come again.

        Several messages are one request to each broker. If some came again meanwhile, the others
        are done; RocketMQ's brokers answer a request for several with success then.

        Raises: UsageError; TransportError; BrokerError with NO_MESSAGE for a message that came
            again meanwhile, since its time was over.
        """
        self._check_open()
        self._driver.run(pop.acknowledge(self._source, messages))

    def change_invisible(self, message: MessageExt, invisible: timedelta) -> MessageExt:
        """Let a message be invisible for a time from now on; return it, to be acknowledged.

        A longer time is for work that takes longer. A time of 0 gives the message back at once.
        The message that was given in can no longer be acknowledged.

        Raises: as `ack`; ConfigError.
        """
        self._check_open()
        operation = pop.change_invisible(
            self._source, message, invisible_ms=invisible_ms(invisible)
        )
        return self._driver.run(operation)

    def reject(self, message: MessageExt) -> None:
        """Put a message among the group's dead letters. Raises: as `ack`."""
        self._check_open()
        self._driver.run(pop.reject(self._source, message))

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        if self._is_closed:
            return
        self._driver.check_outside()
        self._is_closed = True
        self._driver.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(f"the SimpleConsumer of group {self._group} is closed; make a new one")
