"""What the broker's list of members says of our own client id. Pure.

It is to stand there once. Twice means that another process uses it, and that part of the queues is
consumed by nobody. Once, an own id that is missing counts as a list that came too early; then the
list is believed, as others have taken our queues.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.membership.actions import DuplicateClientId, Fact, NotListed


class ListedIds:
    """Finds out whether our client id stands in the broker's list once, twice or not at all.

    Args:
        group: the consumer group.
        client_id: our own.
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
        """Whether that was for the first time, so that the list is not to be believed yet."""
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
