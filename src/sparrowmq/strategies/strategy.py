"""What an allocation strategy is, the argument checks most share, and functions as strategies.

Every member of a group runs the same strategy on the same two lists and takes its own share;
nobody hands shares out. So a strategy must be a function of its arguments alone, and all members
must run the same one. Lists are used as given: the caller sorts them (`model.queue.queue_order`,
`model.queue.java_order`) and keeps duplicates, as RocketMQ's clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from sparrowmq.model import MessageQueue

AllocateFunction: TypeAlias = Callable[
    [str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue] | None
]


class AllocateMessageQueueStrategy(Protocol):
    """Decides which queues of a topic one member of a group consumes."""

    @property
    def name(self) -> str:
        """The name RocketMQ's `getName()` gives, or the user's own."""
        ...

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue] | None:
        """Return this member's share of the queues.

        Args:
            consumer_group: the group's name.
            current_cid: the client id of the member that asks.
            mq_all: every queue of the topic.
            cid_all: the client ids of the group as the broker lists them.

        Returns: the queues in the strategy's order; None (only from CONFIG without a list) counts
        as no queue.
        Raises: ValueError if an argument is empty; `TypeError` where Java meets a null.
        """
        ...


def check_arguments(
    current_cid: str | None,
    mq_all: Sequence[MessageQueue] | None,
    cid_all: Sequence[str] | None,
) -> tuple[str, Sequence[MessageQueue], Sequence[str]]:
    """Return the arguments, none of them None or empty.

    Raises: ValueError with RocketMQ's words for the first that is.
    Source: AbstractAllocateMessageQueueStrategy.java.
    """
    if not current_cid:
        raise ValueError("currentCID is empty")
    if not mq_all:
        raise ValueError("mqAll is null or mqAll empty")
    if not cid_all:
        raise ValueError("cidAll is null or cidAll empty")
    return current_cid, mq_all, cid_all


def find_index(cid_all: Sequence[str], current_cid: str) -> int | None:
    """Return the index of the first entry equal to the client id, or None.

    A client id that is listed twice has one share only, the first: what belongs to its second
    place is consumed by nobody. This is RocketMQ's behaviour with equal client ids.
    """
    try:
        return cid_all.index(current_cid)
    except ValueError:
        return None


class FunctionStrategy:
    """A user's function as a strategy.

    Args:
        function: takes the four arguments of `allocate`, never None or empty.
        name: what `name` reports; the function's own name by default.
    """

    __slots__ = ("_function", "name")

    def __init__(self, function: AllocateFunction, *, name: str | None = None) -> None:
        self._function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))

    def __repr__(self) -> str:
        return f"FunctionStrategy({self.name})"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return what the function returns, None as no queue."""
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        result = self._function(consumer_group, current, queues, cids)
        return [] if result is None else list(result)
