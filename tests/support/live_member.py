"""A push consumer in a process: `python live_member.py JSON`; ends with its standard input.

At the end it prints how many messages its listener got; with one thread that is exact.
One process refuses consumers of one group that differ in what all members must have in common.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sparrowmq import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageModel,
    PushConsumer,
)


def main() -> None:
    """Consume until standard input ends."""
    asked = json.loads(sys.argv[1])
    pause_s = asked.pop("pause_s", 0)
    topic, expression = asked.pop("topic"), asked.pop("expression", "*")
    asked["message_model"] = MessageModel(asked.pop("message_model", MessageModel.CLUSTERING))
    outcome = (
        ConsumeOrderlyStatus.SUCCESS if asked.get("orderly") else ConsumeStatus.CONSUME_SUCCESS
    )

    delivered = 0

    def listen(messages: Any, context: Any) -> Any:
        nonlocal delivered
        delivered += len(messages)
        time.sleep(pause_s)
        return outcome

    with PushConsumer(
        asked.pop("group"),
        listener=listen,
        client_ip="172.17.0.1",
        start="first",
        **asked,
    ) as member:
        member.subscribe(topic, expression)
        member.start()
        print("started", flush=True)
        sys.stdin.read()
    print(delivered, flush=True)


if __name__ == "__main__":
    main()
