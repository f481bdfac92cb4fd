"""Checks how often the broker's list of members names our own client id. Pure.

The list must name our id once. If the list names our id twice, another process uses the same id,
and some queues are unowned. If our id is missing for the first time, the list counts as one that
came too early and is not believed. If our id is missing again, the list is believed, because the
other members have taken our queues. Tests: test_reconcile.py, test_handover.py.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.membership.actions import DuplicateClientId, Fact, NotListed


class ListedIds:
    """Counts our client id in the broker's list of members: once, several times or not at all.

    Args:
        client_id: our own client id.
    """

    __slots__ = ("_client_id", "_group", "_has_reported_duplicate", "_missing_count")

    def __init__(self, group: str, client_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self._has_reported_duplicate = False
        self._missing_count = 0

    @property
    def is_missing(self) -> bool:
        """Whether our id was not in the last list."""
        return self._missing_count > 0

    @property
    def is_early(self) -> bool:
        """Whether our id was missing for the first time: the list is not believed yet."""
        return self._missing_count == 1

    def note(self, lists: Collection[tuple[str, ...]], facts: list[Fact]) -> None:
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
