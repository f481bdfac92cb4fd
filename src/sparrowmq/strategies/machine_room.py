"""MACHINE_ROOM and MACHINE_ROOM_NEARBY: queues of the member's own machine room first.

MACHINE_ROOM reads the room from the broker's name, `room@broker`, and divides the queues of the
configured rooms. MACHINE_ROOM_NEARBY asks the user's resolver for the room of each queue and each
member. Its inner strategy divides each room among the room's own members, and a room without
members among all members.

Source: AllocateMessageQueueByMachineRoom.java, AllocateMachineRoomNearby.java of 4.9.
Tests: test_strategies.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.strategy import (
    AllocateMessageQueueStrategy,
    TopicStrategy,
    check_arguments,
    find_index,
)

# Character.isWhitespace: Unicode separators except the no-break ones, and these controls. Python's
# str.isspace also takes the no-break blanks and U+0085.
_NOT_JAVA_WHITESPACE = frozenset("\u0085\u00a0\u2007\u202f")


class AllocateMessageQueueByMachineRoom(TopicStrategy):
    """Divides the queues of brokers in the given rooms into equal shares.

    Args:
        consumeridcs: the rooms; None, as in Java, until the user sets them.
    """

    name = "MACHINE_ROOM"

    def __init__(self, consumeridcs: Collection[str] | None = None) -> None:
        self.consumeridcs = consumeridcs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.consumeridcs!r})"

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return a run of the rooms' queues and at most one remaining queue; often no queue.

        Raises: ValueError if the client id is blank; TypeError, for Java's NullPointerException, if
        a broker's name has a room and no rooms were set.
        """
        if _is_blank(current_cid):
            raise ValueError("currentCID is empty")
        index = find_index(cids, current_cid)
        if index is None:
            return []
        rooms_queues = [queue for queue in queues if self._serves(queue.broker_name)]
        share, surplus = divmod(len(rooms_queues), len(cids))
        result = rooms_queues[index * share : (index + 1) * share]
        if index < surplus:
            result.append(rooms_queues[share * len(cids) + index])
        return result

    def _serves(self, broker_name: str) -> bool:
        parts = _split_room(broker_name)
        if len(parts) != 2:
            return False
        if self.consumeridcs is None:
            raise TypeError(
                f"MACHINE_ROOM was given no machine rooms (consumeridcs is None), "
                f"and broker {broker_name!r} stands in one"
            )
        return parts[0] in self.consumeridcs


class MachineRoomResolver(Protocol):
    """Names the machine room of a queue and of a member."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str | None:
        """Return the room of the queue's broker; None or "" if the broker has none."""
        ...

    def consumer_deploy_in(self, client_id: str) -> str | None:
        """Return the room of the member; None or "" if the member has none."""
        ...


class PrefixMachineRoomResolver:
    """Finds rooms by the usual convention: the room is the text before a name's first `-`.

    A broker `room1-broker-a` and a client id `room1-10.0.0.1@77` are in `room1`.
    """

    def broker_deploy_in(self, message_queue: MessageQueue) -> str | None:
        """Return the room of the queue's broker; None if its name has no `-`."""
        return _room_prefix(message_queue.broker_name)

    def consumer_deploy_in(self, client_id: str) -> str | None:
        """Return the room of the member; None if its id has no `-`."""
        return _room_prefix(client_id)


class AllocateMachineRoomNearby:
    """Applies an inner strategy to each machine room.

    Args:
        allocate_message_queue_strategy: the inner strategy, which divides the queues of one room.
        machine_room_resolver: names the rooms; `PrefixMachineRoomResolver` by default.

    Raises: TypeError if the inner strategy is None.
    """

    def __init__(
        self,
        allocate_message_queue_strategy: AllocateMessageQueueStrategy,
        machine_room_resolver: MachineRoomResolver | None = None,
    ) -> None:
        # An untyped caller may pass None, for which Java throws a NullPointerException.
        inner = allocate_message_queue_strategy
        if inner is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError("allocateMessageQueueStrategy is null")
        self.allocate_message_queue_strategy = inner
        self.machine_room_resolver: MachineRoomResolver = (
            PrefixMachineRoomResolver() if machine_room_resolver is None else machine_room_resolver
        )

    def __repr__(self) -> str:
        resolver = self.machine_room_resolver
        end = "" if type(resolver) is PrefixMachineRoomResolver else f", {resolver!r}"
        return f"{type(self).__name__}({self.allocate_message_queue_strategy!r}{end})"

    @property
    def name(self) -> str:
        """`MACHINE_ROOM_NEARBY-` and the inner strategy's name."""
        return f"MACHINE_ROOM_NEARBY-{self.allocate_message_queue_strategy.name}"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return this member's share of its own room, then of each room without a member.

        Raises: ValueError if an argument is empty or a room is unknown; TypeError if the inner
        strategy returns None; errors of the inner strategy.
        """
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        if find_index(cids, current) is None:
            return []
        queues_by_room = self._queues_by_room(queues)
        cids_by_room = self._cids_by_room(cids)
        # current_cid is in the list, so the resolver has named its room.
        own_room = self.machine_room_resolver.consumer_deploy_in(current) or ""
        result: list[MessageQueue] = []
        own_queues = queues_by_room.pop(own_room, None)
        if own_queues:
            result += self._share(consumer_group, current, own_queues, cids_by_room[own_room])
        for room in sorted(queues_by_room, key=java_order):
            if room not in cids_by_room:
                result += self._share(consumer_group, current, queues_by_room[room], cids)
        return result

    def _share(
        self,
        consumer_group: str,
        current_cid: str,
        queues: Sequence[MessageQueue],
        cids: Sequence[str],
    ) -> list[MessageQueue]:
        strategy = self.allocate_message_queue_strategy
        share = strategy.allocate(consumer_group, current_cid, queues, cids)
        if share is None:
            raise TypeError(f"strategy {strategy.name} within {self.name} gave None for a room")
        return share

    def _queues_by_room(self, queues: Sequence[MessageQueue]) -> dict[str, list[MessageQueue]]:
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self.machine_room_resolver.broker_deploy_in(queue)
            if not room:
                raise ValueError(f"Machine room is null for mq {queue}")
            by_room.setdefault(room, []).append(queue)
        return by_room

    def _cids_by_room(self, cids: Sequence[str]) -> dict[str, list[str]]:
        by_room: dict[str, list[str]] = {}
        for cid in cids:
            room = self.machine_room_resolver.consumer_deploy_in(cid)
            if not room:
                raise ValueError(f"Machine room is null for consumer id {cid}")
            by_room.setdefault(room, []).append(cid)
        return by_room


def _is_blank(text: str) -> bool:
    return all(char.isspace() and char not in _NOT_JAVA_WHITESPACE for char in text)


def _split_room(broker_name: str) -> list[str]:
    """Split at each `@` as Java's `split("@")` does, which drops trailing empty parts."""
    parts = broker_name.split("@")
    # Java returns a text without `@` whole, even the empty text.
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _room_prefix(name: str) -> str | None:
    room, dash, _ = name.partition("-")
    return room if dash else None
