"""The doctor's findings and the queues in their texts. Pure. Tests: test_diagnosis_queues.py."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words import Phrase

# How to pass a message that no listener can handle.
SKIP_REMEDY = (
    "if no listener can handle the message, stop the group's members, skip the message, and start "
    "them again; the message stays in the topic"
)
# The queues whose messages a finding names commands for.
QUEUES_SHOWN_MAX = 3


class Severity(IntEnum):
    """The severity of a finding; a greater value is worse."""

    INFO = 1
    WARN = 2
    ERROR = 3


class NextCommand(NamedTuple):
    """A command of `sparrowmq` that shows a finding's cause, or ends it.

    Args:
        label: what the command does, in a word.
        arguments: the command's words behind `sparrowmq`. A command that changes something shows
            the change, and makes it with `--yes`.
    """

    label: str
    arguments: tuple[str, ...]

    def write(self, options: Iterable[str]) -> str:
        """Write the command as a shell takes it.

        Args:
            options: those that say which cluster is meant.
        """
        words, given = self.arguments[:2], self.arguments[2:]
        if given[0].startswith("-"):
            # A name that would be taken for an option stands behind all options.
            at = next((at for at, word in enumerate(given[1:], 1) if word[:2] == "--"), len(given))
            given, options = given[at:], (*options, "--", *given[:at])
        return shlex.join(("sparrowmq", *words, *given, *options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of a group, or one fact that its operator should know.

    Args:
        rule: the rule's name, such as `R01`; `docs/howto/messages-pile-up.md` lists the rules.
        severity: ERROR if messages are now consumed twice or not at all.
        title: the finding in one line.
        evidence: the facts seen: ids, addresses, queues, offsets.
        consequence: the effect on the messages.
        remedy: the change to make.
        commands: what to type, in this order; none where a program or a machine must change.
        unowned: the queues that nobody consumes because of the fault.
        double: the queues that more than one member consumes because of the fault.
        members: the client ids concerned.
        effects: what other rules find only because of this fault: it is their first cause.
    """

    rule: str
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    consequence: str = ""
    remedy: str = ""
    commands: tuple[NextCommand, ...] = ()
    unowned: tuple[MessageQueue, ...] = ()
    double: tuple[MessageQueue, ...] = ()
    members: tuple[str, ...] = ()
    effects: tuple[Finding, ...] = ()


def describe_queues(queues: Iterable[MessageQueue]) -> Phrase:
    """Write queues briefly: `flights at broker-a: 2, 5-7; at broker-b: 0`."""
    places: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues, key=queue_order):
        places.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    if not places:
        return Phrase("none")
    each = tuple(
        Phrase("{topic} at {broker}: {ids}", topic=topic, broker=broker, ids=describe_runs(ids))
        for (topic, broker), ids in places.items()
    )
    return Phrase("{places}", places=each)


def describe_state(queues: Iterable[MessageQueue], state: str) -> Phrase:
    """Write queues, and what is seen of them."""
    return Phrase("{queue}: {state}", queue=describe_queues(queues), state=state)


def describe_runs(numbers: Sequence[int]) -> str:
    """Write ascending numbers; a run of three or more becomes `first-last`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def commands_past(group: str, queue: MessageQueue, offset: int) -> tuple[NextCommand, ...]:
    """Return what shows the message that a queue waits for, and what skips this message."""
    place = spell_queue(queue)
    skip = ("group", "reset", group, "--topic", queue.topic, "--queue", place)
    return (
        NextCommand(Phrase("show"), ("msg", "at", queue.topic, place, str(offset))),
        NextCommand(Phrase("skip"), (*skip, "--to", str(offset + 1))),
    )


def command_for_members(group: str) -> NextCommand:
    """Return what shows a group's members, their connections and their paces."""
    return NextCommand(Phrase("members"), ("rebalance", "show", group, "--interval", "6"))
