"""mqadmin's daily commands, under its names and with its options.

`sparrowmq topicRoute -t flights` runs `sparrowmq topic show flights` and prints that name, which a
user of mqadmin so learns. Our own options (`--json`, `--yes`) may follow.
Tests: test_mqadmin_names.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# Options by mqadmin's letter and name: whether a value follows. Each has one meaning everywhere.
_NAME_SERVER = {"n": "--nameserver", "namesrvAddr": "--nameserver"}


class Alias(NamedTuple):
    """One of mqadmin's commands.

    Args:
        words: our command.
        arguments: the options whose values are our arguments, in order, each by its names.
        options: our options by mqadmin's names; None takes the value and drops it.
        tail: the further arguments of our command.
    """

    words: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...] = ()
    options: Mapping[str, str | None] = {}
    tail: tuple[str, ...] = ()


_TOPIC, _GROUP = ("t", "topic"), ("g", "groupName", "consumerGroup", "group")
_CLUSTER: dict[str, str | None] = {"c": "--cluster", "clusterName": "--cluster"}
ALIASES: Mapping[str, Alias] = {
    # It shows every cluster, and each broker's.
    "clusterList": Alias(("broker", "ls"), options=dict.fromkeys(_CLUSTER)),
    "brokerStatus": Alias(("broker", "show"), (("b", "brokerAddr"),)),
    "getBrokerConfig": Alias(("broker", "config"), (("b", "brokerAddr"),)),
    "topicList": Alias(("topic", "ls"), tail=("--all",)),
    "topicRoute": Alias(("topic", "show"), (_TOPIC,)),
    "topicStatus": Alias(("topic", "show"), (_TOPIC,)),
    "updateTopic": Alias(
        ("topic", "update"),
        (_TOPIC,),
        {
            "r": "--read-queues",
            "readQueueNums": "--read-queues",
            "w": "--write-queues",
            "writeQueueNums": "--write-queues",
            "p": "--perm",
            "perm": "--perm",
            **_CLUSTER,
        },
    ),
    "deleteTopic": Alias(("topic", "delete"), (_TOPIC,), _CLUSTER),
    "consumerProgress": Alias(("group", "ls")),
    "consumerConnection": Alias(("group", "show"), (_GROUP,)),
    "consumerStatus": Alias(("rebalance", "show"), (_GROUP,)),
    "deleteSubGroup": Alias(("group", "delete"), (_GROUP,), _CLUSTER),
    "setConsumeMode": Alias(
        ("group", "mode"),
        (_GROUP,),
        {
            "t": "--topic",
            "topicName": "--topic",
            "m": "--mode",
            "mode": "--mode",
            "q": "--share",
            "popShareQueueNum": "--share",
            **_CLUSTER,
        },
    ),
    "resetOffsetByTime": Alias(
        ("group", "reset"),
        (_GROUP,),
        {
            "t": "--topic",
            "topic": "--topic",
            "s": "--to",
            "timestamp": "--to",
            "f": None,
            "force": None,
        },
    ),
    "skipAccumulatedMessage": Alias(
        ("group", "skip"), (_GROUP,), {"t": "--topic", "topic": "--topic", "f": None, "force": None}
    ),
    "queryMsgById": Alias(("msg", "get"), (("i", "msgId"),), {"t": "--topic", "topic": "--topic"}),
    "queryMsgByUniqueKey": Alias(
        ("msg", "get"), (("i", "msgId"),), {"t": "--topic", "topic": "--topic"}
    ),
    "queryMsgByKey": Alias(
        ("msg", "find"), (("k", "msgKey"),), {"t": "--topic", "topic": "--topic"}
    ),
    "queryMsgTraceById": Alias(
        ("msg", "trace"), (("i", "msgId"),), {"t": None, "traceTopic": None, "c": None}
    ),
    "printMsg": Alias(("tail",), (_TOPIC,), tail=("--from", "earliest")),
    "sendMessage": Alias(
        ("send",),
        (_TOPIC, ("p", "body")),
        {"k": "--key", "keys": "--key", "c": "--tag", "tags": "--tag"},
    ),
}


class WrongOption(Exception):
    """An option that the command does not take; the text lists the options that it takes."""


def _to_perm(text: str) -> str:
    """Return a topic's permissions, which mqadmin numbers: 2, 4 or 6."""
    return {"2": "w", "4": "r", "6": "rw"}.get(text, text)


def _to_time(text: str) -> str:
    """Return a time that mqadmin takes: `now`, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS."""
    if text in ("now", "-1"):
        return "latest"
    # A small number would be an offset here; these milliseconds are of 1970.
    if re.fullmatch("[0-9]{1,10}", text):
        return "earliest"
    found = re.fullmatch(r"([0-9-]{10})#([0-9:]{8}):([0-9]{3})", text)
    return text if found is None else f"{found[1]}T{found[2]}.{found[3]}"


# How values of mqadmin's are spelt here, by our options.
_SPELLINGS: Mapping[str, Callable[[str], str]] = {"--perm": _to_perm, "--to": _to_time}


def translate(arguments: Sequence[str]) -> list[str]:
    """Return our command line for one of mqadmin's.

    Args:
        arguments: a name of `ALIASES` and what follows.

    Raises: WrongOption for an unknown option, and for a missing one.
    """
    name, *rest = arguments
    # With a group, the command shows that group.
    alias = ALIASES[name]
    given = {word.partition("=")[0] for word in rest}
    if name == "consumerProgress" and {f"-{_GROUP[0]}", f"--{_GROUP[1]}"} & given:
        alias = Alias(("group", "lag"), (_GROUP,), {"t": "--topic", "topic": "--topic"})
    options = {**_NAME_SERVER, **alias.options}
    values: dict[int, str] = {}
    ours: list[str] = []
    left = iter(rest)
    is_own = False
    for word in left:
        key, equals, attached = word.lstrip("-").partition("=")
        place = next((at for at, names in enumerate(alias.arguments) if key in names), None)
        if not word.startswith("-") and not is_own:
            raise WrongOption(f"{name} takes options only, not {word!r}")
        if not word.startswith("-") or (place is None and key not in options):
            # Our option, such as --json, or the value of the one before, as of --timeout 5.
            is_own = word.startswith("--")
            if not is_own and word.startswith("-"):
                raise WrongOption(f"{name} has no option {word}; it takes {_describe(alias)}")
            ours.append(word)
            continue
        is_own = False
        value = attached if equals else next(left, None)
        if value is None:
            raise WrongOption(f"option {word} of {name} needs a value")
        if place in values:
            raise WrongOption(f"option {word} of {name} is given twice")
        if place is not None:
            values[place] = value
        elif (option := options[key]) is not None:
            ours += [option, _SPELLINGS.get(option, str)(value)]
    missing = [names[0] for at, names in enumerate(alias.arguments) if at not in values]
    if missing:
        raise WrongOption(f"{name} needs -{missing[0]}; it takes {_describe(alias)}")
    placed = [values[at] for at in sorted(values)]
    if any(value.startswith("-") for value in placed):
        return [*alias.words, *alias.tail, *ours, "--", *placed]
    return [*alias.words, *placed, *alias.tail, *ours]


def _describe(alias: Alias) -> str:
    names = [names[0] for names in alias.arguments] + list(_NAME_SERVER) + list(alias.options)
    return ", ".join(dict.fromkeys(f"-{name}" for name in names if len(name) == 1))
