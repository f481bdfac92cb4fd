"""The members of each consumer group and producer group.

Members are keyed by their connection, as in RocketMQ. Two connections with the same client id are
two members, and the list of members has the id twice. Some queues are then unowned, so the broker
returns a fact for the operator's log.

A change of a large group costs a notice to each member, and each member then asks for the list. So
the cost of n joins is n², unless changes are gathered: the first change is announced at once, and
the changes of the next moments together. The answer with the list is encoded once for each change.

Source: ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java. Differs from RocketMQ:
a member removed because its heartbeats stopped is announced to the rest of the group, as a closed
connection is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from sparrowmq.broker.message_filter import MessageFilter, make_filter
from sparrowmq.coordination.member_marker import MARKED_EXPIRY_MS, is_marked
from sparrowmq.errors import LocalProtocolError
from sparrowmq.model import ConsumeFromWhere, ConsumeType, MessageModel
from sparrowmq.protocol.bodies import (
    ConsumerData,
    ConsumerListBody,
    SubscriptionData,
    encode_body,
)
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.serving.connections import Connection

# ConsumerManager.CHANNEL_EXPIRED_TIMEOUT, ProducerManager.CHANNEL_EXPIRED_TIMEOUT.
HEARTBEAT_EXPIRY_MS = 120_000
SUBSCRIPTIONS_MAX = 256
# Groups of up to this many members hear of each change at once.
PROMPT_MEMBERS_MAX = 64
# The pause after the notices of a larger group, for each member and at most. A notice and the
# request that follows it cost broker and member together about half a millisecond.
NOTICE_PAUSE_MS = 0.5
NOTICE_PAUSE_MS_MAX = 1_000


class ListedMember(NamedTuple):
    """A client, as described by its last heartbeat."""

    client_id: str
    language: LanguageCode | None
    version: int
    seen_ms: int
    # The access key that signed the heartbeat; empty if it was not signed.
    access_key: str = ""

    @property
    def expiry_ms(self) -> int:
        """How long the client may be silent; much shorter for SparrowMQ members than for others."""
        return MARKED_EXPIRY_MS if is_marked(self.version) else HEARTBEAT_EXPIRY_MS


class Subscription(NamedTuple):
    """A group's subscription to a topic.

    Args:
        data: the subscription in the heartbeat.
        wanted: the filter; None if the condition cannot be parsed, for the reason `fault`.
    """

    data: SubscriptionData
    wanted: MessageFilter | None
    fault: str = ""


@dataclass(slots=True)
class ConsumerGroup:
    """One group: its members, and the way of consuming that the last heartbeat gave."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[Connection, ListedMember] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    # Before this, further changes are gathered.
    quiet_until_ms: float = -inf
    # By client id, the number of its connections.
    _counts: dict[str, int] = field(default_factory=dict)
    # The encoded list of client ids, until the next change.
    _encoded: bytes | None = None

    def put(self, member: ListedMember, connection: Connection) -> bool:
        """Apply a member's heartbeat; return whether the connection is new."""
        known = self.members.get(connection)
        self.members[connection] = member
        if known is None or known.client_id != member.client_id:
            if known is not None:
                self._uncount(known.client_id)
            self._counts[member.client_id] = self._counts.get(member.client_id, 0) + 1
            self._encoded = None
        return known is None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; return whether it was a member."""
        member = self.members.pop(connection, None)
        if member is None:
            return False
        self._uncount(member.client_id)
        self._encoded = None
        return True

    def _uncount(self, client_id: str) -> None:
        self._counts[client_id] -= 1
        if not self._counts[client_id]:
            del self._counts[client_id]

    def client_ids(self) -> list[str]:
        """Return every member's client id; an id of two connections is listed twice."""
        return [member.client_id for member in self.members.values()]

    def encoded_ids(self) -> bytes:
        """Return the body of the answer with `client_ids`, which all members share."""
        if self._encoded is None:
            self._encoded = encode_body(ConsumerListBody(consumer_id_list=self.client_ids()))
        return self._encoded

    def lists(self, client_id: str) -> bool:
        """Return whether a member has the client id."""
        return client_id in self._counts


class Joined(NamedTuple):
    """The changes that a heartbeat made.

    Args:
        is_changed: members or subscribed topics changed, so the group must be notified.
        is_new_member: the connection was not in the group before.
    """

    is_changed: bool
    is_new_member: bool = False


class ConsumerGroups:
    """All consumer groups with at least one member.

    Args:
        prompt_members_max: groups of up to this many members hear of each change at once.
        notice_pause_ms: the pause after the notices of a larger group, for each member.
    """

    def __init__(
        self,
        *,
        prompt_members_max: int = PROMPT_MEMBERS_MAX,
        notice_pause_ms: float = NOTICE_PAUSE_MS,
    ) -> None:
        self._prompt_members_max = prompt_members_max
        self._notice_pause_ms = notice_pause_ms
        # Groups with changes that are announced later.
        self._gathered: dict[str, None] = {}
        self._groups: dict[str, ConsumerGroup] = {}
        self._of_connection: dict[Connection, set[str]] = {}
        # Connections with a client id that was in use already; each is reported once.
        self._duplicates: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, group: str) -> ConsumerGroup | None:
        """Return the group, or None if it has no member."""
        return self._groups.get(group)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to the topic, sorted."""
        return sorted(g.name for g in self._groups.values() if topic in g.subscriptions)

    def groups_of(self, connection: Connection) -> list[str]:
        """Return the groups that a connection is in, sorted."""
        return sorted(self._of_connection.get(connection, ()))

    def heartbeat(self, data: ConsumerData, member: ListedMember, connection: Connection) -> Joined:
        """Apply one group's part of a heartbeat."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(
                data.group_name,
                data.consume_type,
                data.message_model,
                data.consume_from_where,
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = group.put(member, connection)
        if is_new:
            self._of_connection.setdefault(connection, set()).add(group.name)
        topics_changed = _replace_subscriptions(group, data.subscription_data_set)
        return Joined(is_new or topics_changed, is_new)

    def find_sharing(
        self, data: ConsumerData, client_id: str, connection: Connection
    ) -> tuple[str, ...]:
        """Return the addresses of other connections with the same client id as a newcomer.

        A member of a BROADCASTING group gets none: members of such a group may share an id.
        """
        group = self._groups.get(data.group_name)
        is_new = group is not None and connection not in group.members
        if group is None or not is_new or data.message_model is MessageModel.BROADCASTING:
            return ()
        if not group.lists(client_id):
            return ()
        return tuple(
            other.address for other, known in group.members.items() if known.client_id == client_id
        )

    def note_duplicate(self, connection: Connection) -> bool:
        """Note that a connection uses a duplicate client id; return whether this is new."""
        is_new = connection not in self._duplicates
        self._duplicates.add(connection)
        return is_new

    def leave(self, group_name: str, connection: Connection) -> bool:
        """Remove a connection from a group; return whether it was a member."""
        group = self._groups.get(group_name)
        if group is None or not group.remove(connection):
            return False
        if not group.members:
            del self._groups[group_name]
            self._gathered.pop(group_name, None)
        names = self._of_connection[connection]
        names.discard(group_name)
        if not names:
            del self._of_connection[connection]
        return True

    def leave_all(self, connection: Connection) -> list[str]:
        """Remove a connection from every group; return the groups that it was in, sorted."""
        self._duplicates.discard(connection)
        names = self.groups_of(connection)
        for name in names:
            self.leave(name, connection)
        return names

    def announce(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Return whether to announce a change now; if not, `due_changes` returns the group soon."""
        if now_ms < group.quiet_until_ms:
            self._gathered[group.name] = None
            return False
        self._gathered.pop(group.name, None)
        count = len(group.members)
        if count > self._prompt_members_max:
            pause_ms = min(self._notice_pause_ms * count, NOTICE_PAUSE_MS_MAX)
            group.quiet_until_ms = now_ms + pause_ms
        return True

    def due_changes(self, now_ms: int) -> list[str]:
        """Return the groups whose gathered changes are to be announced now."""
        return [name for name in self._gathered if now_ms >= self._groups[name].quiet_until_ms]

    def expired(self, now_ms: int) -> list[Connection]:
        """Return the members' connections whose heartbeats have stopped."""
        silent = {
            connection: None
            for group in self._groups.values()
            for connection, member in group.members.items()
            if now_ms - member.seen_ms > member.expiry_ms
        }
        return sorted(silent, key=lambda connection: connection.number)


def _replace_subscriptions(group: ConsumerGroup, given: list[SubscriptionData]) -> bool:
    """Apply the subscriptions of a heartbeat; return whether a topic was added or removed.

    A newer version of a known topic's subscription replaces the old one and is not a change. Topics
    that this member does not subscribe to are removed, even if another member subscribes to them.
    RocketMQ keeps one set for the group, and members with different sets overwrite each other's.
    """
    changed = False
    for data in given:
        known = group.subscriptions.get(data.topic)
        if known is None:
            changed = True
        elif data.sub_version <= known.data.sub_version:
            continue
        group.subscriptions[data.topic] = _subscription(data)
    wanted = {data.topic for data in given}
    for topic in [topic for topic in group.subscriptions if topic not in wanted]:
        del group.subscriptions[topic]
        changed = True
    return changed


def _subscription(data: SubscriptionData) -> Subscription:
    try:
        return Subscription(data, make_filter(data))
    except LocalProtocolError as error:
        return Subscription(data, None, str(error))


class ProducerGroups:
    """All producer groups with at least one member."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Connection, ListedMember]] = {}
        # Each connection's groups.
        self._of_connection: dict[Connection, dict[str, None]] = {}
        self._chosen_count = 0
        # By client id; if several connections have one id, the last of them. Replies go there, so
        # no account takes an id that a connection of another account has.
        self._clients: dict[str, Connection] = {}
        # Each connection's last heartbeat.
        self._last: dict[Connection, ListedMember] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def choose(self, group: str, may: Callable[[ListedMember], bool]) -> Connection | None:
        """Return the next of a group's members that `may` accepts, in turn; None without any."""
        members = [at for at, member in self._groups.get(group, {}).items() if may(member)]
        if not members:
            return None
        self._chosen_count += 1
        return members[self._chosen_count % len(members)]

    def all(self) -> list[tuple[str, dict[Connection, ListedMember]]]:
        """Return all groups and their members, in the order of names."""
        return sorted(self._groups.items())

    def find_client(self, client_id: str) -> Connection | None:
        """Return a client's connection, None if the client is in no group."""
        return self._clients.get(client_id)

    def find_lost_id(self, connection: Connection) -> str | None:
        """Return a connection's client id if it stays with another account; None if it does not."""
        last = self._last.get(connection)
        owner = None if last is None else self._clients.get(last.client_id)
        if last is None or owner is None or self._last[owner].access_key == last.access_key:
            return None
        return last.client_id

    def find(self, group: str) -> dict[Connection, ListedMember] | None:
        """Return a group's members, or None for a group without members."""
        return self._groups.get(group)

    def heartbeat(self, group: str, member: ListedMember, connection: Connection) -> None:
        """Apply one producer group's part of a heartbeat."""
        self._groups.setdefault(group, {})[connection] = member
        self._of_connection.setdefault(connection, {})[group] = None
        last = self._last.get(connection)
        if last is not None and last.client_id != member.client_id:
            self._forget_id(connection)
        self._last[connection] = member
        owner = self._clients.get(member.client_id)
        if owner is None or self._last[owner].access_key == member.access_key:
            self._clients[member.client_id] = connection

    def _forget_id(self, connection: Connection) -> None:
        client_id = self._last.pop(connection).client_id
        if self._clients.get(client_id) is connection:
            del self._clients[client_id]

    def leave(self, group: str, connection: Connection) -> None:
        """Remove a connection from a group, if the connection is a member."""
        members = self._groups.get(group, {})
        if members.pop(connection, None) is None:
            return
        if not members:
            del self._groups[group]
        names = self._of_connection[connection]
        del names[group]
        if not names:
            del self._of_connection[connection]
            self._forget_id(connection)

    def leave_all(self, connection: Connection) -> None:
        """Remove a connection from every group."""
        for name in list(self._of_connection.get(connection, ())):
            self.leave(name, connection)

    def expire(self, now_ms: int) -> None:
        """Remove members whose heartbeats have stopped."""
        for name in list(self._groups):
            for connection, member in list(self._groups[name].items()):
                if now_ms - member.seen_ms > HEARTBEAT_EXPIRY_MS:
                    self.leave(name, connection)
                    if name not in self._groups:
                        break
