"""Push consumers in a process: `python live_member.py JSON`; ends with its standard input.

The JSON has a consumer's settings, or a list of them. At the end each prints how many messages its
listener got; with one thread that is exact. One process refuses consumers of one group that differ
in what all members must have in common.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from sparrowmq import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageModel,
    PushConsumer,
)


def join(held: ExitStack, asked: dict[str, Any]) -> Callable[[], int]:
    """Start a consumer; return a function that counts its messages."""
    pause_s, fails_every = asked.pop("pause_s", 0), asked.pop("fails_every", 0)
    topic, expression = asked.pop("topic"), asked.pop("expression", "*")
    unsubscribes = asked.pop("unsubscribes", False)
    asked["message_model"] = MessageModel(asked.pop("message_model", MessageModel.CLUSTERING))
    outcome = (
        ConsumeOrderlyStatus.SUCCESS if asked.get("orderly") else ConsumeStatus.CONSUME_SUCCESS
    )
    delivered = 0

    def listen(messages: Any, context: Any) -> Any:
        nonlocal delivered
        delivered += len(messages)
        time.sleep(pause_s)
        fails = fails_every and messages[0].queue_offset % fails_every == 0
        return ConsumeStatus.RECONSUME_LATER if fails else outcome

    asked.setdefault("client_ip", "172.17.0.1")
    group = asked.pop("group")
    member = held.enter_context(PushConsumer(group, listener=listen, start="first", **asked))
    member.subscribe(topic, expression)
    member.start()
    if unsubscribes:
        member.unsubscribe(topic)
    return lambda: delivered


def main() -> None:
    """Consume until standard input ends."""
    asked = json.loads(sys.argv[1])
    with ExitStack() as held:
        counts = [join(held, each) for each in (asked if isinstance(asked, list) else [asked])]
        print("started", flush=True)
        sys.stdin.read()
    for count in counts:
        print(count(), flush=True)


if __name__ == "__main__":
    main()
