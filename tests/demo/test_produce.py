from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from sparrowmq.demo.produce import FlightSender
from sparrowmq.model import Message, MessageQueue
from sparrowmq.processes.logbook import Logbook


class QuickProducer:
    """Takes every batch at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []

    def select_queue(self, message: Message) -> MessageQueue:
        return MessageQueue("T", "b", int(message.sharding_key or 0) % 2)

    def send_batch(self, messages: Sequence[Message], *, queue: MessageQueue) -> None:
        self.sent.append((queue.queue_id, len(messages)))


def test_whole_round_is_reported_however_quick_it_was(tmp_path: Path) -> None:
    path = tmp_path / "producer.events.jsonl"
    producer = QuickProducer()
    sender = FlightSender(cast(Any, producer), Logbook(path), total=2_000, rate_max=1_000)
    sender.report()

    sender.send([Message("T", b"x", sharding_key=str(number)) for number in range(1_000)])

    counts = [msgspec.json.decode(line)["count"] for line in path.read_bytes().splitlines()]
    assert producer.sent == [(0, 250), (0, 250), (1, 250), (1, 250)]
    assert (counts[0], counts[-1]) == (0, 1_000)
