"""A member of a consumer group, as a process: `python -m sparrowmq.demo.member`.

It writes down every delivery and every change of its queues before anything else happens, so
its logbook is true to the moment of a `kill -9`. SIGTERM makes it leave gracefully.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.blocking import PushConsumer
from sparrowmq.demo.logbook import (
    CONSUMED_SUFFIX,
    EVENTS_SUFFIX,
    Assigned,
    Consumed,
    Failed,
    Journal,
    Left,
    Started,
    format_delivery,
)
from sparrowmq.errors import SparrowError
from sparrowmq.model import ConsumeContext, ConsumeFromWhere, MessageExt, MessageQueue

_REPORT_INTERVAL_S = 0.2
# Java's default is one message a call; a call per message would only measure the listener pool.
_MESSAGES_PER_CALL = 64
_LISTENER_THREADS = 2
_PULL_BATCH_SIZE = 512


class LoggedMember:
    """Writes a member's logbook: the listener and the rebalance callback of one consumer."""

    def __init__(self, name: str, *, topic: str, queue_count: int, directory: Path) -> None:
        self.events = Journal(directory / f"{name}{EVENTS_SUFFIX}")
        self._deliveries = Journal(directory / f"{name}{CONSUMED_SUFFIX}")
        self._topic = topic
        self._counts = [0] * queue_count
        self._counts_reported: tuple[int, ...] = ()
        # One callback is called at a time.
        self._owned: set[int] = set()
        # Listeners run in several threads.
        self._lock = threading.Lock()

    def on_messages(self, messages: list[MessageExt], context: ConsumeContext) -> None:
        """Write the deliveries down; returning says they are consumed."""
        at_ms = monotonic_ms()
        lines = [
            format_delivery(
                at_ms,
                message.queue_id,
                queue_offset=message.queue_offset,
                flight_id=message.keys[0],
            )
            for message in messages
        ]
        self._deliveries.write("".join(lines).encode())
        with self._lock:
            self._counts[context.queue.queue_id] += len(messages)

    def on_assign(self, queues: Sequence[MessageQueue]) -> None:
        """Write down which queues are owned from now on."""
        self._owned |= {queue.queue_id for queue in queues if queue.topic == self._topic}
        self._write_owned()

    def on_revoke(self, queues: Sequence[MessageQueue]) -> None:
        """Write down which queues are left."""
        self._owned -= {queue.queue_id for queue in queues if queue.topic == self._topic}
        self._write_owned()

    def _write_owned(self) -> None:
        queue_ids = tuple(sorted(self._owned))
        self.events.write_event(Assigned(at_ms=monotonic_ms(), queue_ids=queue_ids))

    def report_counts(self) -> None:
        """Write down how much was consumed, if that changed."""
        with self._lock:
            counts = tuple(self._counts)
        if counts != self._counts_reported:
            self._counts_reported = counts
            self.events.write_event(Consumed(at_ms=monotonic_ms(), counts=counts))


def run(options: argparse.Namespace) -> None:
    """Be a member until SIGTERM, then leave."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    member = LoggedMember(
        options.name,
        topic=options.topic,
        queue_count=options.queues,
        directory=options.logbooks,
    )
    try:
        _consume(member, options, stop)
    except SparrowError as error:
        member.events.write_event(Failed(at_ms=monotonic_ms(), reason=str(error)))
        raise SystemExit(f"{options.name}: {error}") from error


def _consume(member: LoggedMember, options: argparse.Namespace, stop: threading.Event) -> None:
    consumer = PushConsumer(
        options.group,
        name_server=options.name_server,
        listener=member.on_messages,
        on_assign=member.on_assign,
        on_revoke=member.on_revoke,
        on_lost=member.on_revoke,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=_MESSAGES_PER_CALL,
        consume_thread_count=_LISTENER_THREADS,
        pull_batch_size=_PULL_BATCH_SIZE,
        client_ip=options.client_ip,
        instance_name=options.instance_name,
    )
    consumer.subscribe(options.topic, "*")
    member.events.write_event(
        Started(at_ms=monotonic_ms(), client_id=consumer.client_id, pid=os.getpid())
    )
    consumer.start()
    while not stop.wait(_REPORT_INTERVAL_S):
        member.report_counts()
    consumer.close()
    member.report_counts()
    member.events.write_event(Left(at_ms=monotonic_ms()))


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sparrowmq.demo.member", description=__doc__)
    parser.add_argument("--name", required=True, help="names the logbook")
    parser.add_argument("--group", required=True)
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--logbooks", type=Path, required=True)
    parser.add_argument("--client-ip", default=None)
    parser.add_argument("--instance-name", default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())
