"""The committed offset of each consumer group in each queue.

Source: ConsumerOffsetManager.java; `config/consumerOffset.json` has the same form, with keys
`topic@group`. Tests: test_offsets.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from sparrowmq.protocol.bodies import ConsumerOffsetTable

_SEPARATOR = "@"
# The queues of which it is known where a group began that has committed nothing there yet. Groups
# that never commit (BROADCASTING) would have ever more of them.
_BEGUN_MAX = 65_536


class ConsumerOffsets:
    """The table of committed offsets."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        # What does not count as consumed, since a group may begin at a queue's end: the sums of the
        # offsets at which groups began; and these offsets of queues without a commit, oldest first.
        self._begun_sums: dict[str, int] = {}
        self._begun: OrderedDict[tuple[str, int], int] = OrderedDict()
        self.is_changed = False
        # The keys of groups that pop, and the offsets that were set in other ways than by pops.
        self._popped: set[str] = set()
        self._moved: dict[tuple[str, str, int], int | None] = {}

    def load(self, table: ConsumerOffsetTable, *, end_of: Callable[[str, int], int]) -> int:
        """Load the table of a file, and cut offsets beyond their queue's end back to the end.

        A power cut may lose messages that a group has consumed, and a store may have been repaired
        or replaced. The group would skip the messages that are stored at these offsets next.

        Args:
            end_of: returns the end of a topic's queue.

        Returns: how many offsets were cut back.
        """
        count = 0
        for key, queues in table.offset_table.items():
            topic = key.partition(_SEPARATOR)[0]
            kept = self._offsets[key] = {
                queue_id: min(offset, end_of(topic, queue_id))
                for queue_id, offset in queues.items()
            }
            count += sum(offset != queues[queue_id] for queue_id, offset in kept.items())
        self.is_changed = count > 0
        return count

    def table(self) -> ConsumerOffsetTable:
        """Return a copy of the whole table."""
        return ConsumerOffsetTable(
            offset_table={key: dict(queues) for key, queues in self._offsets.items()}
        )

    def parts(self, size: int) -> Iterator[ConsumerOffsetTable]:
        """Yield the table in parts of some `size` offsets; the table may change meanwhile."""
        part: dict[str, dict[int, int]] = {}
        count = 0
        for key in list(self._offsets):
            if queues := self._offsets.get(key):
                part[key] = queues
                count += 1 + len(queues)
            if count >= size:
                yield ConsumerOffsetTable(offset_table=part)
                part, count = {}, 0
        if part:
            yield ConsumerOffsetTable(offset_table=part)

    def totals(self) -> dict[str, int]:
        """Return how many messages each group has consumed, by `topic@group`.

        The total of a loaded group counts from offset 0.
        """
        return {key: self._total(key) for key in self._offsets}

    def find_total(self, group: str, topic: str) -> int | None:
        """Return how many messages of a topic a group has consumed, None without a commit."""
        key = f"{topic}{_SEPARATOR}{group}"
        return self._total(key) if key in self._offsets else None

    def _total(self, key: str) -> int:
        return sum(self._offsets[key].values()) - self._begun_sums.get(key, 0)

    def _put(self, key: str, queue_id: int, offset: int) -> None:
        queues = self._offsets.setdefault(key, {})
        if queue_id not in queues:
            begun = self._begun.pop((key, queue_id), offset)
            self._begun_sums[key] = self._begun_sums.get(key, 0) + begun
        queues[queue_id] = offset
        self.is_changed = True

    def note_begin(self, group: str, topic: str, queue_id: int, *, offset: int) -> None:
        """Note where a group pulls first, unless it has committed an offset of the queue."""
        key = f"{topic}{_SEPARATOR}{group}"
        if queue_id not in self._offsets.get(key, ()):
            self._begun.setdefault((key, queue_id), offset)
            if len(self._begun) > _BEGUN_MAX:
                self._begun.popitem(last=False)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if the group has committed none."""
        queues = self._offsets.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, *, offset: int) -> None:
        """Store an offset, even one below the stored offset, as a reset or a seek needs."""
        key = f"{topic}{_SEPARATOR}{group}"
        self._put(key, queue_id, offset)
        if key in self._popped:
            self._moved[group, topic, queue_id] = offset

    def commit_popped(self, group: str, topic: str, queue_id: int, *, offset: int) -> None:
        """Store the offset of the first message that a group has neither popped nor finished.

        Whatever else sets an offset of this group and topic is noted from now on (`take_moved`).
        """
        key = f"{topic}{_SEPARATOR}{group}"
        self._popped.add(key)
        self._put(key, queue_id, offset)

    @property
    def has_popped(self) -> bool:
        """Whether there is an offset of a group that pops."""
        return bool(self._popped)

    def take_moved(self) -> dict[tuple[str, str, int], int | None]:
        """Return the offsets of popping groups that were set otherwise, None for removed ones."""
        if not self._moved:
            return self._moved
        moved, self._moved = self._moved, {}
        return moved

    def raise_to(self, group: str, topic: str, queue_id: int, *, offset: int) -> None:
        """Store an offset unless a higher one is stored.

        Used for the offset that a pull carries. Differs from RocketMQ: pulls are served late and
        out of order, so a pull that was under way in a handover would set the group back.
        """
        key = f"{topic}{_SEPARATOR}{group}"
        known = self._offsets.get(key, {}).get(queue_id)
        if known is None or offset > known:
            self._put(key, queue_id, offset)
            if key in self._popped:
                self._moved[group, topic, queue_id] = offset

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of the topic, sorted."""
        prefix = topic + _SEPARATOR
        return sorted(k.removeprefix(prefix) for k in self._offsets if k.startswith(prefix))

    def topics_of_group(self, group: str) -> list[str]:
        """Return the topics of which the group has committed offsets, sorted."""
        suffix = _SEPARATOR + group
        return sorted(k.removesuffix(suffix) for k in self._offsets if k.endswith(suffix))

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics of which each group has committed offsets."""
        topics: dict[str, list[str]] = {}
        for key in self._offsets:
            # Neither a topic's name nor a group's contains the separator.
            topic, _, group = key.partition(_SEPARATOR)
            topics.setdefault(group, []).append(topic)
        return topics

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of one group in one topic, by queue id."""
        return self._offsets.get(f"{topic}{_SEPARATOR}{group}", {})

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        suffix = _SEPARATOR + group
        self._forget_begun(lambda key: key.endswith(suffix))
        for topic in self.topics_of_group(group):
            self._remove(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets of a topic."""
        prefix = topic + _SEPARATOR
        self._forget_begun(lambda key: key.startswith(prefix))
        for group in self.groups_of_topic(topic):
            self._remove(group, topic)

    def _forget_begun(self, is_gone: Callable[[str], bool]) -> None:
        for place in [place for place in self._begun if is_gone(place[0])]:
            del self._begun[place]

    def _remove(self, group: str, topic: str) -> None:
        key = f"{topic}{_SEPARATOR}{group}"
        queues = self._offsets.pop(key)
        self._begun_sums.pop(key, None)
        self.is_changed = True
        if key in self._popped:
            self._popped.discard(key)
            self._moved.update(dict.fromkeys((group, topic, queue_id) for queue_id in queues))
