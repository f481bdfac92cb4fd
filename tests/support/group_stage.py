"""Members of groups on a cluster, for pages that show them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any, Self

from members import MemberProcess
from sparrowmq import ConsumeStatus, Message, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

_NUMBERS = count()


def take_all(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.CONSUME_SUCCESS


class GroupStage:
    """A topic of its own name on a cluster, with members of its group as they are asked for."""

    def __init__(self, cluster: EmbeddedCluster, *, queues: int = 4) -> None:
        number = next(_NUMBERS)
        self.cluster = cluster
        self.topic, self.group = f"flights{number}", f"GID_board{number}"
        self._queues = queues
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self.cluster.create_topic(self.topic, queues=self._queues)
        self.producer = self._held.enter_context(
            Producer("GID_p", name_server=self.cluster.name_server)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def send(self, bodies: Sequence[bytes], **extra: Any) -> None:
        """Send messages to all queues in turn."""
        queues = self.producer.fetch_publish_queues(self.topic)
        for number, body in enumerate(bodies):
            queue = queues[number % len(queues)]
            self.producer.send(Message(self.topic, body, **extra), queue=queue)

    def join(self, instance: str, *, listener: Any = take_all, **extra: Any) -> PushConsumer:
        """Have a member join as `172.17.0.1@INSTANCE`, and wait until it has queues."""
        member = self._held.enter_context(
            PushConsumer(
                self.group,
                listener=listener,
                name_server=self.cluster.name_server,
                client_ip="172.17.0.1",
                instance_name=instance,
                start="first",
                **extra,
            )
        )
        member.subscribe(self.topic, "*")
        member.start()
        wait_until(f"queues of {instance}", member.assignment, timeout_s=30)
        return member

    def start_process(self, instance: str) -> MemberProcess:
        """Have a process of its own join as `172.17.0.1@INSTANCE`, which others may be too."""
        member = self._held.enter_context(
            MemberProcess(self.cluster, self.group, topic=self.topic, instance=instance)
        )
        wait_until(f"queues of {instance}", lambda: member.queue_ids, timeout_s=30)
        return member
