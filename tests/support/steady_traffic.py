"""Messages without a break, to the members of one group, while a test does things to the brokers.

Producer and members are processes that the interop fixtures start; they tell what they do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from waiting import JVM_LIMIT_S, wait_until

# The sends under way at a kill and their repetitions; a queue that moves doubles dozens.
TWICE_MAX = 10


class SteadyTraffic:
    """A producer of some hundred messages a second, and the members that consume them.

    Args:
        names: what the members are called where the counts are told; None to tell counts alone.
    """

    def __init__(
        self, producer: Any, members: Sequence[Any], names: Sequence[str] | None = None
    ) -> None:
        self.producer = producer
        self.members = members
        self._names = names

    @property
    def sent_count(self) -> int:
        return len(self.producer.named("sent"))

    @property
    def twice_count(self) -> int:
        """Deliveries of a message beyond its first."""
        got = _consumed(self.members)
        return got.total() - len(got)

    def _twice_by(self, names: Sequence[str]) -> Counter[str]:
        """Count the deliveries of a message beyond its first, by who got it before and then."""
        deliveries = sorted(
            (each["at"], name, each["body"])
            for name, member in zip(names, self.members, strict=True)
            for each in member.named("message")
        )
        twice: Counter[str] = Counter()
        last: dict[str, str] = {}
        for _, name, body in deliveries:
            if body in last:
                twice[f"{name} after {last[body]}"] += 1
            last[body] = name
        return twice

    def assert_in_order(self) -> None:
        """Check that no queue's message was delivered before an earlier one of its queue."""
        deliveries = sorted(
            (each["at"], each["broker"], each["queueId"], each["offset"])
            for member in self.members
            for each in member.named("message")
        )
        by_queue: dict[tuple[str, int], list[int]] = defaultdict(list)
        for _, broker, queue_id, offset in deliveries:
            by_queue[broker, queue_id].append(offset)
        breaks = {queue: breaks_in(offsets) for queue, offsets in by_queue.items()}
        assert {queue: found for queue, found in breaks.items() if found} == {}

    def assert_keys_in_order(self) -> None:
        """Check that no message `<key>-<number>` was delivered before its key's earlier ones."""
        by_key: dict[str, list[int]] = defaultdict(list)
        for each in self._deliveries():
            key, _, number = each["body"].partition("-")
            by_key[key].append(int(number))
        breaks = {key: breaks_in(numbers) for key, numbers in by_key.items()}
        assert {key: found for key, found in breaks.items() if found} == {}

    def longest_wait_ms(self) -> float:
        """Return the longest time from a message's acknowledgement to its first delivery."""
        first: dict[str, float] = {}
        for each in self._deliveries():
            first.setdefault(each["body"], each["at"])
        waits_ms: list[float] = [
            first[each["body"]] - each["at"] for each in self.producer.named("sent")
        ]
        return max(waits_ms)

    def _deliveries(self) -> list[dict[str, Any]]:
        told = [each for member in self.members for each in member.named("message")]
        return sorted(told, key=lambda each: each["at"])

    def send_more(self, count: int) -> None:
        """Wait until so many further messages are acknowledged."""
        wanted = self.sent_count + count
        wait_until(f"{count} more sent", lambda: self.sent_count >= wanted, timeout_s=JVM_LIMIT_S)

    def wait_consumed(self, when: str, members: Sequence[Any] | None = None) -> None:
        """Wait until the members, or others, have got all that is acknowledged now."""
        sent = {each["body"] for each in self.producer.named("sent")}
        consumers = members or self.members
        wait_until(
            f"all consumed {when}",
            lambda: sent <= _consumed(consumers).keys(),
            timeout_s=JVM_LIMIT_S,
        )

    def wait_shared(self, queues: Sequence[str]) -> None:
        """Wait until each of these queues, `broker:id`, has one owner and no other has one."""
        wait_until(
            f"{len(queues)} queues shared",
            lambda: (
                sorted(queue for each in self.members for queue in _owned(each)) == sorted(queues)
            ),
            timeout_s=JVM_LIMIT_S,
            found=lambda: [_owned(each) for each in self.members],
        )

    def stop(self) -> str:
        """Stop sending, wait until all is consumed, and tell the counts."""
        assert self.producer.stop() == 0
        self.wait_consumed("at the end")
        failed = len(self.producer.named("failed"))
        told = f"{self.sent_count} sent, {failed} sends failed, 0 lost, {self.twice_count} twice"
        twice_by = self._twice_by(self._names) if self._names else {}
        return f"{told} {dict(twice_by)}" if twice_by else told


def breaks_in(offsets: list[int]) -> list[tuple[int, int]]:
    """Return where a message came before all earlier ones had come; repetitions are none."""
    breaks: list[tuple[int, int]] = []
    latest = -1
    for offset in offsets:
        if offset > latest + 1:
            breaks.append((latest, offset))
        latest = max(latest, offset)
    return breaks


def _consumed(members: Sequence[Any]) -> Counter[str]:
    return Counter(each["body"] for member in members for each in member.named("message"))


def _owned(member: Any) -> list[str]:
    told = member.named("assignment")
    return list(told[-1]["queues"]) if told else []


@contextmanager
def steady_traffic(
    java: Any,
    cluster: Any,
    start_member: Callable[..., Any],
    languages: Sequence[str],
    *,
    topic: str,
    group: str,
    orderly: bool = False,
    keys: int | None = None,
) -> Generator[SteadyTraffic]:
    """Start a member in each language, and a producer of ours, which may send by sharding keys."""
    options = {"topic": topic, "group": group} | ({"orderly": "true"} if orderly else {})
    members = [start_member(each, cluster, **options) for each in languages]
    verb, more = ("produce", {}) if keys is None else ("produce-by-key", {"keys": keys})
    at = {"nameServer": cluster.name_server, "topic": topic}
    producer = java.python_peer(verb, **at, rate=100, **more)
    try:
        yield SteadyTraffic(producer, members, languages)
    finally:
        producer.kill()
