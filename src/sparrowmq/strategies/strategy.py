"""The protocol of allocation strategies, the checks that they share, and functions as strategies.

Every member of a group runs the same strategy on the same two lists and takes its own share; nobody
assigns shares. So a strategy must depend on its arguments alone, and all members must run the same
strategy. Strategies use the lists as given: the caller sorts them (`model.queue.queue_order`,
`model.queue.java_order`) and keeps duplicates, as RocketMQ's clients do. Tests: test_strategies.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
        """The name that RocketMQ's `getName()` returns, or the user's own name."""
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
            current_cid: this member's client id.
            mq_all: every queue of the topic, sorted.
            cid_all: the group's client ids by the broker's list, sorted, duplicates kept.

        Returns: the queues in the strategy's order; None (only from CONFIG without a list) means
        no queue.
        Raises: ValueError if an argument is empty; TypeError where Java throws a
        NullPointerException.
        """
        ...


def check_arguments(
    current_cid: str | None,
    mq_all: Sequence[MessageQueue] | None,
    cid_all: Sequence[str] | None,
) -> tuple[str, Sequence[MessageQueue], Sequence[str]]:
    """Return the arguments, none of which is None or empty.

    Raises: ValueError, with RocketMQ's text, for the first argument that is None or empty.
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
    """Return the index of the first entry equal to the client id; None if there is none.

    A client id that is listed twice gets only the share of its first place; nobody consumes the
    share of its second place. RocketMQ behaves the same with equal client ids.
    """
    try:
        return cid_all.index(current_cid)
    except ValueError:
        return None


class TopicStrategy(ABC):
    """A strategy that divides one topic among its subscribers, once the arguments are checked.

    Source: AbstractAllocateMessageQueueStrategy.java.
    """

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return this member's share of a topic, as `AllocateMessageQueueStrategy` describes."""
        return self.share(*check_arguments(current_cid, mq_all, cid_all))

    @abstractmethod
    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return this member's share of a topic; empty if the member is not in the list."""


class FunctionStrategy:
    """Makes a strategy of a user's function.

    Args:
        function: takes the four arguments of `allocate`, none of which is None or empty; its name
            is the strategy's.
    """

    __slots__ = ("_function", "name")

    def __init__(self, function: AllocateFunction) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def __repr__(self) -> str:
        return f"FunctionStrategy({self.name})"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return the function's result; None becomes an empty list."""
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        result = self._function(consumer_group, current, queues, cids)
        return [] if result is None else list(result)
