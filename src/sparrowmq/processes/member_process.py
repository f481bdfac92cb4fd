"""A member of a consumer group, as a process: `python -m sparrowmq.processes.member_process`.

The member logs every delivery and every change of its queues before its next step: the logbook is
true up to the moment of a `kill -9`. After SIGTERM the member leaves gracefully.
Tests: drills/test_drill.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking import PushConsumer
from sparrowmq.errors import SparrowError
from sparrowmq.model import ConsumeContext, MessageExt, MessageQueue
from sparrowmq.processes.logbook import Failed, Logbook, open_logbook
from sparrowmq.processes.member_log import (
    CONSUMED_SUFFIX,
    Assigned,
    Consumed,
    Delivery,
    Left,
    Started,
)

_REPORT_INTERVAL_S = 0.2


class LoggedMember:
    """Writes a member's logbook: the listener and the rebalance callbacks of one consumer."""

    def __init__(self, name: str, *, directory: Path, pause_s: float = 0.0) -> None:
        self.events = open_logbook(directory, name)
        self.stopped = threading.Event()
        self._deliveries = Logbook(directory / f"{name}{CONSUMED_SUFFIX}")
        self._pause_s = pause_s
        self._counts: Counter[int] = Counter()
        self._counts_reported: dict[int, int] = {}
        # The consumer calls one callback at a time.
        self._owned: set[int] = set()
        # Listeners run in several threads.
        self._lock = threading.Lock()

    def on_messages(self, messages: list[MessageExt], context: ConsumeContext) -> None:
        """Log the deliveries; the return acknowledges them."""
        at_ms = monotonic_ms()
        lines = [
            Delivery(at_ms, m.queue_id, m.queue_offset, m.keys[0] if m.keys else "").encode()
            for m in messages
        ]
        self._deliveries.write("".join(lines).encode())
        with self._lock:
            self._counts[context.queue.queue_id] += len(messages)
        # After the request to leave, no listener delays the end.
        self.stopped.wait(self._pause_s)

    def on_assign(self, queues: Sequence[MessageQueue]) -> None:
        """Log the queues that are owned from now on."""
        self._owned |= {queue.queue_id for queue in queues}
        self._write_owned()

    def on_revoke(self, queues: Sequence[MessageQueue]) -> None:
        """Log the queues that are left."""
        self._owned -= {queue.queue_id for queue in queues}
        self._write_owned()

    def on_lost(self, queues: Sequence[MessageQueue]) -> None:
        """Log the queues that are left after others were lost without being given up."""
        self._owned -= {queue.queue_id for queue in queues}
        self._write_owned(is_lost=True)

    def _write_owned(self, *, is_lost: bool = False) -> None:
        owned = tuple(sorted(self._owned))
        self.events.write_event(Assigned(at_ms=monotonic_ms(), queue_ids=owned, is_lost=is_lost))

    def report_counts(self) -> None:
        """Log the number of consumed messages, if it changed."""
        with self._lock:
            counts = dict(self._counts)
        if counts != self._counts_reported:
            self._counts_reported = counts
            self.events.write_event(Consumed(at_ms=monotonic_ms(), counts=counts))


def run(options: argparse.Namespace) -> None:
    """Consume as a member until SIGTERM, then leave."""
    member = LoggedMember(
        options.name, directory=options.logbooks, pause_s=options.listener_ms / 1000
    )
    signal.signal(signal.SIGTERM, lambda *_: member.stopped.set())
    try:
        _consume(member, options)
    except SparrowError as error:
        member.events.write_event(Failed(at_ms=monotonic_ms(), reason=str(error)))
        raise SystemExit(f"{options.name}: {error}") from error


def _consume(member: LoggedMember, options: argparse.Namespace) -> None:
    # By messages, no queue has an owner.
    has_queues = options.balance == "queues"
    consumer = PushConsumer(
        options.group,
        name_server=options.name_server,
        listener=member.on_messages,
        on_assign=member.on_assign if has_queues else None,
        on_revoke=member.on_revoke if has_queues else None,
        on_lost=member.on_lost if has_queues else None,
        balance=options.balance,
        start="first",
        consume_message_batch_max_size=options.messages_per_call,
        client_ip=options.client_ip,
        instance_name=options.instance_name,
        pull_batch_size=options.pull_batch_size,
        consume_thread_count=options.threads,
    )
    consumer.subscribe(options.topic, "*")
    member.events.write_event(
        Started(at_ms=monotonic_ms(), client_id=consumer.client_id, pid=os.getpid())
    )
    consumer.start()
    while not member.stopped.wait(_REPORT_INTERVAL_S):
        member.report_counts()
    consumer.close()
    member.report_counts()
    member.events.write_event(Left(at_ms=monotonic_ms()))


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sparrowmq.processes.member_process", description=__doc__)
    for name in ("--name", "--group", "--name-server", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--logbooks", type=Path, required=True)
    parser.add_argument("--balance", choices=("queues", "messages"), default="queues")
    parser.add_argument("--client-ip", default=None)
    parser.add_argument("--instance-name", default=None)
    parser.add_argument("--listener-ms", type=int, default=0, help="each call takes so long")
    parser.add_argument("--messages-per-call", type=int, default=1)
    parser.add_argument("--pull-batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())
