"""Decides whether a broker's list of members is believed yet. Pure.

The list must name our own client id once. If the list names our id twice, another process uses the
same id, and some queues are unowned. If our id is missing for the first time, the list counts as
one that came too early and is not believed. If our id is missing again, the list is believed,
because the other members have taken our queues.

A broker that was restarted lists those who have come back, and the first of them would take all
queues. So once such a broker has answered, a list that lacks members counts together with the lists
of the topic's other brokers; a member that none of them lists has time to come back as well.
`Differs from RocketMQ:` there each member divides by the short list at once, and messages are
consumed twice. Tests: test_listed_ids.py, test_handover.py.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.membership.actions import DuplicateClientId, Fact, NotListed

# How long the other members may take to come back to a broker after this member has.
RETURN_MS = 2_000
# How long such a broker's list may lack members that other brokers list: RocketMQ's members read
# routes anew every 30 s, and send heartbeats every 30 s.
REGISTERED_MS = 60_000


class ListedIds:
    """Counts our client id in the broker's list of members, and waits for members to come back.

    Args:
        client_id: our own client id.
    """

    __slots__ = (
        "_believed",
        "_client_id",
        "_group",
        "_has_reported_duplicate",
        "_lacks_members",
        "_missing_count",
        "_registered_by_ms",
        "_return_until_ms",
    )

    def __init__(self, group: str, client_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self._has_reported_duplicate = False
        self._missing_count = 0
        # The ids of the last list that was believed.
        self._believed: frozenset[str] = frozenset()
        # Until when members may come back to a broker, and whether the last list lacked some then.
        self._return_until_ms = 0
        self._lacks_members = False
        # Until when a broker may not know members that have not heard of it yet.
        self._registered_by_ms = 0

    def broker_returned(self, now_ms: int) -> None:
        """Wait for members: a broker answers that did not, or was perhaps restarted."""
        self._registered_by_ms = now_ms + REGISTERED_MS
        if self._believed:
            self._return_until_ms = now_ms + RETURN_MS

    def may_lack(self, cid_all: Collection[str], now_ms: int) -> bool:
        """Return whether other brokers may list members that this list lacks."""
        if now_ms >= self._registered_by_ms:
            return False
        return not self._believed or not self._believed <= set(cid_all)

    @property
    def is_missing(self) -> bool:
        """Whether our id was not in the last list."""
        return self._missing_count > 0

    @property
    def is_early(self) -> bool:
        """Whether the list is not believed yet."""
        return self._missing_count == 1 or self._lacks_members

    def note(self, lists: Collection[tuple[str, ...]], facts: list[Fact], *, now_ms: int) -> None:
        """Take the lists of one rebalance; add a fact for each change worth a line in the log."""
        if not lists:
            return
        own = self._client_id
        most = max(lists, key=lambda cids: cids.count(own))
        count = most.count(own)
        if count > 1 and not self._has_reported_duplicate:
            facts.append(DuplicateClientId(self._group, own, count, most))
        self._has_reported_duplicate = count > 1
        self._missing_count = 0 if count else self._missing_count + 1
        if self._missing_count > 1:
            facts.append(NotListed(self._group, own, most))
        listed = frozenset().union(*lists)
        self._lacks_members = now_ms < self._return_until_ms and not listed >= self._believed
        if not self._lacks_members:
            self._believed = listed
