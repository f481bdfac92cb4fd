"""A test's questions to a cluster: is a topic consumed, and which messages has it?

These functions block the calling thread. A test on an event loop calls them by `asyncio.to_thread`:
otherwise its own clients stand still. Tests: test_embedded.py.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from sparrowmq.client.directory import QueueLag
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.client.faces.blocking_poll import PollConsumer
from sparrowmq.errors import SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model import MessageExt
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX, TOOLS_GROUP

WAIT_MS: Final = 10_000
# The time between two looks at the cluster.
LOOK_MS: Final = 20
# The most messages of one topic; a test reads more messages by a consumer.
MESSAGES_MAX: Final = 100_000


class ClusterFailed(SparrowError):
    """A cluster for tests did not start, or did not reach the expected state in time."""


def start_or_close(
    start: Callable[[], None], close: Callable[[], None], *, runs_already: bool
) -> None:
    """Start a cluster; after a failure, also an interrupt, nothing that was started stays."""
    with ExitStack() as undo:
        if not runs_already:
            undo.callback(close)
        start()
        undo.pop_all()


def wait_until_consumed(
    name_server: str,
    group: str,
    *topics: str,
    timeout_ms: int = WAIT_MS,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Wait until a group has committed every message of the topics, and of its retry topic.

    A failed message that waits for its delay is not in the retry topic yet: the function does not
    wait for this message.

    Raises: ClusterFailed after the timeout, with each queue's missing messages; UsageError without
        a topic, and on an event loop.
    """
    _refuse_event_loop("wait_until_consumed")
    if not topics:
        raise UsageError(
            f"there is nothing to wait for: name the topics that group {group} consumes"
        )
    until_ms = _now_ms() + timeout_ms
    with Admin(name_server=name_server, tls=tls) as admin:
        while left := _lag_of(admin, group, topics):
            if _now_ms() >= until_ms:
                lines = ", ".join(
                    f"{lag.queue}: {lag.committed_offset} of {lag.max_offset}" for lag in left
                )
                members = ", ".join(admin.consumer_ids(group)) or "nobody"
                raise ClusterFailed(
                    f"group {group} has not consumed {', '.join(topics)} within {timeout_ms} ms "
                    f"({lines}); its members are {members}"
                )
            time.sleep(LOOK_MS / 1000)


def read_messages(
    name_server: str,
    topic: str,
    count: int = 0,
    *,
    timeout_ms: int = WAIT_MS,
    tls: ssl.SSLContext | None = None,
) -> list[MessageExt]:
    """Return all messages of a topic in the order of storing, without effect on groups.

    Args:
        count: the number of messages to wait for.

    Raises: ClusterFailed if there are fewer after the timeout, or more than `MESSAGES_MAX`;
        UsageError on an event loop; TopicRouteNotFound.
    """
    _refuse_event_loop("read_messages")
    until_ms = _now_ms() + timeout_ms
    found: list[MessageExt] = []
    with PollConsumer(TOOLS_GROUP, name_server=name_server, tls=tls) as consumer:
        positions = dict.fromkeys(consumer.fetch_subscribe_queues(topic), 0)
        while True:
            before = dict(positions)
            for queue, offset in before.items():
                pulled = consumer.pull(queue, offset)
                found += pulled.messages
                positions[queue] = pulled.next_offset
            if len(found) > MESSAGES_MAX:
                raise ClusterFailed(
                    f"topic {topic} has more than {MESSAGES_MAX} messages; read them by a consumer"
                )
            # The answer to an offset whose message has expired has no message either.
            if positions != before:
                continue
            if len(found) >= count:
                break
            if _now_ms() >= until_ms:
                raise ClusterFailed(
                    f"topic {topic} has {len(found)} messages after {timeout_ms} ms, not {count}"
                )
            time.sleep(LOOK_MS / 1000)
    return sorted(found, key=lambda message: message.commit_log_position)


def _lag_of(admin: Admin, group: str, topics: Sequence[str]) -> list[QueueLag]:
    left: list[QueueLag] = []
    for topic in topics:
        left += admin.group_lag(group, topic)
    # A missing retry topic means that no message has failed.
    with suppress(TopicRouteNotFound):
        left += admin.group_lag(group, f"{RETRY_GROUP_TOPIC_PREFIX}{group}")
    return [lag for lag in left if lag.lag]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _refuse_event_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{name} waits, and would stop the event loop that calls it: "
        f"await asyncio.to_thread({name}, ...)"
    )
