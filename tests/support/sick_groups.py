"""Sick and healthy groups, and what the doctor says of each, on any live cluster.

Every group of `SICK` has one fault, and the rule beside it is all that the doctor says of more than
information; the groups of `HEALTHY` have none.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from live_groups import LiveCluster, LiveGroups, fail
from sparrowmq import (
    ConsumeStatus,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PollConsumer,
)
from sparrowmq.doctor import Finding, Severity
from waiting import wait_until

# The members' commits and reports say what they do only after some time of it.
WORK_S = 20
Findings = dict[str, list[Finding]]

# The doctor looks at the first groups first: what lasts for some seconds only stands at the top.
SICK: Mapping[str, tuple[str, Severity]] = {
    "frozen": ("R28", Severity.ERROR),
    "dead-letters": ("Q13", Severity.ERROR),
    "retries": ("Q13", Severity.WARN),
    "listener-kinds": ("Q14", Severity.WARN),
    "no-write": ("Q02", Severity.WARN),
    "models": ("Q15", Severity.ERROR),
    "strategies": ("R13", Severity.ERROR),
    "twins": ("R01", Severity.ERROR),
    "topics": ("R05", Severity.ERROR),
    "tags": ("R06", Severity.ERROR),
    "poison": ("R30", Severity.WARN),
    "hanging": ("Q06", Severity.ERROR),
    "slow": ("Q12", Severity.WARN),
    "too-many": ("R14", Severity.WARN),
    "nobody": ("Q04", Severity.ERROR),
}
HEALTHY = (
    *(
        "h-handover",
        "h-idle",
        "h-one",
        "h-three",
        "h-ordered",
        "h-tag",
        "h-sql",
        "h-broadcast",
        "h-long",
    ),
    *("h-topics", "h-hash", "h-moves-few", "h-fails-rarely", "h-polls"),
)


class Wards:
    """Starts the groups, and holds what their listeners wait for."""

    def __init__(self, groups: LiveGroups, directory: Path) -> None:
        self.groups = groups
        self.released = threading.Event()
        self._directory = directory

    def takes(self, seconds: float) -> Callable[[Any, Any], ConsumeStatus]:
        """Return a listener that takes so long for each call."""

        def listen(messages: Any, context: Any) -> ConsumeStatus:
            self.released.wait(seconds)
            return ConsumeStatus.CONSUME_SUCCESS

        return listen

    def _poison(self, messages: Any, context: Any) -> ConsumeStatus:
        if (messages[0].queue_id, messages[0].queue_offset) == (2, 5):
            self.released.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    @staticmethod
    def _fail_rarely(messages: Any, context: Any) -> ConsumeStatus:
        fails = messages[0].queue_offset % 50 == 7 and not messages[0].reconsume_times
        return ConsumeStatus.RECONSUME_LATER if fails else ConsumeStatus.CONSUME_SUCCESS

    def start_sick(self) -> None:
        """Start the groups of `SICK`, but for what happens between the doctor's looks."""
        on, join, process = self.groups, self.groups.join, self.groups.start_process
        join("dead-letters", on.topic("sick1"), listener=fail, max_reconsume_times=0)
        join("retries", on.topic("sick2"), listener=fail)
        on.topic("sick3")
        process("listener-kinds", "sick3", instance="1", orderly=True)
        process("listener-kinds", "sick3", instance="2")
        join("no-write", on.topic("sick4"))
        on.topic("sick5")
        process("models", "sick5", instance="1")
        offsets = str(self._directory)
        process(
            "models", "sick5", instance="2", message_model="BROADCASTING", local_offset_dir=offsets
        )
        on.topic("sick6", queues=8)
        process("strategies", "sick6", instance="1")
        process("strategies", "sick6", instance="2", strategy="AVG_BY_CIRCLE")
        process("strategies", "sick6", instance="3")
        on.topic("sick7")
        process("twins", "sick7", instance="1")
        process("twins", "sick7", instance="1")
        on.topic("sick8")
        on.topic("sick9")
        process("topics", "sick8", instance="1")
        process("topics", "sick9", instance="2")
        on.topic("sick10", tags="AB")
        process("tags", "sick10", instance="1", expression="A")
        process("tags", "sick10", instance="2", expression="B")
        join("poison", on.topic("sick11"), listener=self._poison)
        on.topic("sick12")
        self.freezing = process("frozen", "sick12", instance="1")
        process("frozen", "sick12", instance="2")
        join("hanging", on.topic("sick13"), listener=self.takes(600))
        on.topic("sick14", per_s=20)
        join("slow", "sick14", listener=self.takes(1.5), consume_thread_count=2)
        join("slow", "sick14", instance="2")
        on.topic("sick15")
        for instance in "123456":
            join("too-many", "sick15", instance=instance)
        on.admin.update_group("nobody")
        on.admin.update_committed_offset(
            "nobody", MessageQueue(on.topic("sick16"), "broker-a", 0), 0
        )

    def start_healthy(self) -> None:
        """Start the groups of `HEALTHY`."""
        on, join = self.groups, self.groups.join
        join("h-idle", on.topic("well1", per_s=0))
        join("h-one", on.topic("well2"))
        self._join_all("h-three", on.topic("well3"), "123")
        self._join_all("h-ordered", on.topic("well4"), "12", orderly=True)
        # A queue gets a message that matches every 20 s, and nine others between two of them.
        on.topic("well5", per_s=4, queues=8, tags="ABBBBBBBBB")
        self._join_all("h-tag", "well5", "12", expression="A")
        join("h-sql", "well5", expression=MessageSelector.by_sql("a = 'A'"))
        self._join_all(
            "h-broadcast",
            on.topic("well6"),
            "12",
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=str(self._directory),
        )
        join("h-long", on.topic("well7", per_s=1), listener=self.takes(2))
        self._join_all("h-topics", [on.topic("well8"), on.topic("well9", per_s=3)], "12")
        self._join_all("h-hash", on.topic("well10", queues=24), "12", strategy="CONSISTENT_HASH")
        self._join_all("h-moves-few", on.topic("well11", queues=8), "123", strategy="MINIMAL_MOVE")
        join("h-fails-rarely", on.topic("well12"), listener=self._fail_rarely)
        join("h-handover", on.topic("well13", per_s=1), listener=self.takes(15))
        self._poll(on.topic("well14"))

    def _join_all(self, group: str, topic: Any, instances: str, **settings: Any) -> None:
        for instance in instances:
            self.groups.join(group, topic, instance=instance, **settings)

    def _poll(self, topic: str) -> None:
        consumer = self.groups.hold(
            PollConsumer("h-polls", name_server=self.groups.cluster.name_server)
        )
        consumer.subscribe(topic)
        consumer.start()

        def poll() -> None:
            while not self.released.is_set():
                consumer.poll(200)

        threading.Thread(target=poll, name="poll", daemon=True).start()


def examine(cluster: LiveCluster, directory: Path) -> Findings:
    """Return what the doctor finds in each group, after the groups have worked for some time."""
    with LiveGroups(cluster) as groups:
        wards = Wards(groups, directory)
        try:
            wards.start_sick()
            wards.start_healthy()
            threading.Event().wait(WORK_S)
            groups.stop_sending("sick4")
            groups.admin.update_topic("sick4", perm="r")
            wards.freezing.send_signal(signal.SIGSTOP)
            # A member that drains for long hands over while the doctor looks.
            groups.join("h-handover", "well13", instance="2")
            wait_until("drain", lambda: groups.is_handing_over("h-handover"), timeout_s=30)
            return groups.examine([*HEALTHY, *SICK])
        finally:
            wards.released.set()


def alarms(found: Findings) -> dict[str, list[str]]:
    """Return what the doctor says of healthy groups that is more than information."""
    return {
        group: [f"{each.rule} {each.title}: {each.evidence}" for each in findings]
        for group, findings in found.items()
        if group in HEALTHY and any(each.severity > Severity.INFO for each in findings)
    }
