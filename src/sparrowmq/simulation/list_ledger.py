"""The brokers' lists of a group's members, and the members' shares of its queues.

If nothing delays bytes or processes, brokers list exactly the live members after a short time, and
the members' shares have every queue exactly once. Tests: test_list_ledger.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from sparrowmq.model import MessageQueue

# Members hear of a change and divide the queues within this.
SHARE_NOTICE_MS = 5_000


class OwnershipCheck(NamedTuple):
    """Queues that do not have exactly one owner."""

    unowned: tuple[MessageQueue, ...]
    doubled: tuple[MessageQueue, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every queue has exactly one owner."""
        return not (self.unowned or self.doubled)


def judge_ownership(
    queues: Iterable[MessageQueue], assignments: Mapping[str, Iterable[MessageQueue]]
) -> OwnershipCheck:
    """Return the queues that are assigned to no member or to several."""
    owners: dict[MessageQueue, int] = dict.fromkeys(queues, 0)
    for assigned in assignments.values():
        for queue in assigned:
            if queue in owners:
                owners[queue] += 1
    return OwnershipCheck(
        tuple(queue for queue, count in owners.items() if count == 0),
        tuple(queue for queue, count in owners.items() if count > 1),
    )


class ListLedger:
    """The lists of a run's brokers, and for how long lists or shares have been wrong."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        # Every client id that a broker has listed.
        self._listed: dict[str, set[str]] = {}
        # The instant since which some queue is in no share or in several.
        self._unshared_since_ms: int | None = None
        # The instants since which a broker wrongly lists, or does not list, a client id.
        self._unnoticed_since_ms: dict[tuple[str, str], int] = {}

    def note_gone(self, broker_name: str) -> None:
        """Note that a broker has started: its members have to come back, and to divide again."""
        for key in [key for key in self._unnoticed_since_ms if key[0] == broker_name]:
            del self._unnoticed_since_ms[key]
        self._unshared_since_ms = None

    def check(
        self,
        broker_name: str,
        listed: Collection[str],
        *,
        live: Collection[str],
        leaving: Collection[str],
        now_ms: int,
        bound_ms: int,
    ) -> None:
        """Check that a broker's list of members is right, or has been wrong only for a short time.

        Args:
            listed: the client ids that the broker lists.
            live: the client ids of members that stay. A newcomer counts once the broker has listed
                it: before, the newcomer may find no route.
            leaving: the client ids of members that may be listed until they have left.
            bound_ms: how long a leave, a death or a lost connection may go unnoticed.
        """
        known = self._listed.setdefault(broker_name, set())
        known.update(listed)
        wrong = known.intersection(live).difference(listed) | set(listed).difference(live, leaving)
        since_ms = self._unnoticed_since_ms
        for key in [k for k in since_ms if k[0] == broker_name and k[1] not in wrong]:
            del since_ms[key]
        for client_id in sorted(wrong):
            if now_ms - since_ms.setdefault((broker_name, client_id), now_ms) > bound_ms:
                does = "lists" if client_id in listed else "does not list"
                self._fail(
                    f"{broker_name} {does} {client_id}, {bound_ms} ms after its list changed"
                )

    def check_shares(self, found: OwnershipCheck | None, *, now_ms: int) -> None:
        """Check that every queue is in one share, or has been in none or several for a short time.

        Args:
            found: of the live members' shares; None while there are none, or brokers list others.
        """
        if found is None or found.is_exact:
            self._unshared_since_ms = None
            return
        if self._unshared_since_ms is None:
            self._unshared_since_ms = now_ms
        if now_ms - self._unshared_since_ms > SHARE_NOTICE_MS:
            self._fail(f"{SHARE_NOTICE_MS} ms after a change of members: {found}")
