"""Handle messages of a read whose bodies cannot be read, by the option `unreadablePolicy`."""

from __future__ import annotations

import logging

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.send_back import send_dead_letter
from sparrowmq.errors import SparrowError, UnreadableMessage
from sparrowmq.model import MessageExt, MessageQueue, UnreadablePolicy
from sparrowmq.protocol.record import decode_message
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.topic_queues import Cluster, persist

_LOG = logging.getLogger("sparrowmq.spark")


class UnreadableMessages:
    """Handles the unreadable messages of one task, and counts those passed over.

    Args:
        cluster: the cluster for dead letters; None for a read of files, which sends none.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster | None = None) -> None:
        self._options = options
        self._cluster = cluster
        # By queue: the number of messages passed over, and the reason for the first.
        self._passed: dict[MessageQueue, tuple[int, str]] = {}

    def pass_over(self, broker_name: str, records: bytes, start: int, reason: str) -> None:
        """Pass over the message whose record, of a queue on this broker, begins at `start`.

        Raises: UnreadableMessage if the policy is to stop, or the dead letter could not be sent.
        """
        message = decode_message(records, start, broker_name=broker_name, hosts={}, check_crc=False)
        queue = self._options.namespace.unwrap_queue(message.queue)
        what = (
            f"message {message.msg_id} at offset {message.queue_offset} of queue "
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id} cannot be read: {reason}"
        )
        if self._options.unreadable_policy is UnreadablePolicy.STOP:
            raise UnreadableMessage(
                f'{what}; .option("unreadablePolicy", "skip") leaves such messages out, and '
                f'"dead-letter" has the broker put them among the dead letters of option group'
            )
        if self._options.unreadable_policy is UnreadablePolicy.DEAD_LETTER:
            self._send_dead_letter(message, what)
        count, first = self._passed.get(queue, (0, what))
        self._passed[queue] = count + 1, first

    def report(self) -> None:
        """Log one warning for each queue with messages that were passed over."""
        is_kept = self._options.unreadable_policy is UnreadablePolicy.DEAD_LETTER
        for queue in sorted(self._passed):
            count, first = self._passed[queue]
            _LOG.warning(
                "%d messages of queue %s/%s/%d %s for unreadablePolicy, the first: %s",
                count,
                *queue,
                "went to the dead letters" if is_kept else "were skipped",
                first,
            )

    def _send_dead_letter(self, message: MessageExt, what: str) -> None:
        options, cluster = self._options, self._cluster
        assert options.group is not None
        assert cluster is not None
        group = options.namespace.wrap(options.group)

        def send() -> Operation[None]:
            address, timeout_ms = cluster.stored_at(message), options.request_timeout_ms
            yield from send_dead_letter(address, group, message=message, timeout_ms=timeout_ms)

        try:
            cluster.run(persist(options.wait_for_brokers_ms, send))
        except SparrowError as error:
            raise UnreadableMessage(
                f"{what}; it could not be sent to the dead letters of {options.group}: {error}"
            ) from error
