"""A member of a drill's group, as a process: `python -m sparrowmq.cli.rebalance_drill_member`.

It tells, as JSON lines, when it starts, which queues it has, and every message that it gets, each
with the machine's monotonic time, which all processes of a machine share. It leaves the group when
its standard input ends, or upon SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.blocking import PushConsumer
from sparrowmq.model import ConsumeContext, ConsumeFromWhere, MessageExt, MessageQueue

_LOCK = threading.Lock()


def main() -> None:
    """Be a member until the standard input ends."""
    parser = argparse.ArgumentParser()
    for name in ("--nameserver", "--group", "--topic", "--ip", "--instance"):
        parser.add_argument(name, required=True)
    parser.add_argument("--listener-ms", type=int, default=0)
    options = parser.parse_args()
    # The drill shows what warnings say.
    logging.disable(logging.CRITICAL)
    # The main thread waits in read(), which a signal's exception ends.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    pause = threading.Event()

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        tell("messages", queue_id=context.queue.queue_id, ids=[m.queue_offset for m in messages])
        pause.wait(options.listener_ms / 1000)

    held: set[int] = set()

    def gain(queues: Sequence[MessageQueue]) -> None:
        held.update(queue.queue_id for queue in queues)
        tell("holds", queue_ids=sorted(held))

    def give_up(queues: Sequence[MessageQueue]) -> None:
        held.difference_update(queue.queue_id for queue in queues)
        tell("holds", queue_ids=sorted(held))

    def lose(queues: Sequence[MessageQueue]) -> None:
        held.difference_update(queue.queue_id for queue in queues)
        tell("holds", queue_ids=sorted(held), is_lost=True)

    consumer = PushConsumer(
        options.group,
        name_server=options.nameserver,
        listener=listen,
        client_ip=options.ip,
        instance_name=options.instance,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        on_assign=gain,
        on_revoke=give_up,
        on_lost=lose,
    )
    consumer.subscribe(options.topic)
    tell("starts")
    with consumer:
        consumer.start()
        try:
            sys.stdin.read()
        finally:
            # A listener that sleeps would hold up the end.
            pause.set()
    tell("left")


def tell(event: str, **facts: object) -> None:
    """Write a line at once: the process may be killed any time."""
    line = json.dumps({"event": event, "at_ms": monotonic_ms(), **facts}) + "\n"
    with _LOCK:
        os.write(sys.stdout.fileno(), line.encode())


if __name__ == "__main__":
    main()
