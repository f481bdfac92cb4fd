"""Sick and healthy groups, and what the doctor says of each, on any live cluster.

Every group of `SICK` has one fault, and the rule beside it comes first and is all that the doctor
says of more than information; the groups of `HEALTHY` have none. `make generate` makes the table
of docs/reference/doctor-scenarios.md of both.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from foreign_member import ForeignMember
from live_groups import LiveCluster, LiveGroups, fail, fail_in_order
from sparrowmq import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PollConsumer,
    SimpleConsumer,
)
from sparrowmq.doctor import Finding, Severity
from sparrowmq.model.consuming import ConsumeFromWhere
from sparrowmq.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from waiting import wait_until

# The members' commits and reports say what they do only after some time of it.
WORK_S = 20
# More messages than a member consumes in its time, for one queue.
BACKLOG = 4_000
RECEIVE_WAIT = timedelta(seconds=1)
# Longer than the test runs.
HIDDEN = timedelta(minutes=30)
Findings = dict[str, list[Finding]]


class Scenario(NamedTuple):
    """A group with one fault.

    Args:
        fault: the fault, as the page of scenarios names it.
        rule, severity: the first finding. Of more than information it is the only one.
        remedy: words of the finding's remedy.
        is_ours: whether only SparrowMQ's broker has what the fault needs.
        effect: a rule whose finding is folded under the first.
    """

    fault: str
    rule: str
    severity: Severity
    remedy: str
    is_ours: bool = False
    effect: str = ""


_ERROR, _WARN, _INFO = Severity.ERROR, Severity.WARN, Severity.INFO
_INSTANCE = "give every process its own instance name"
_FAILING = "find out why listeners fail"
_SUSPENDED = "check whether the consumer is suspended"
_COMPARE = "compare the expression with the tags"
_PERMISSION = "set the topic's permission to 6"
# The doctor looks at the first groups first: what lasts for some seconds only stands at the top.
SICK: Mapping[str, Scenario] = {
    "h-handover": Scenario(
        "a queue is handed over while the doctor looks", "R19", _INFO, "look again in half a minute"
    ),
    "h-broadcast": Scenario("BROADCASTING", "R21", _INFO, "keep the instance name and the file"),
    "frozen": Scenario("a process is stopped (SIGSTOP)", "R28", _ERROR, "what the process does"),
    "new-queues": Scenario(
        "a member does not learn of a topic's new queues, where new queues are read from the end",
        "R10",
        _ERROR,
        "members learn of new queues",
        effect="R11",
    ),
    "deleted": Scenario("the topic is deleted", "Q02", _ERROR, "create the topic"),
    "dead-letters": Scenario("messages become dead letters", "Q13", _ERROR, _FAILING),
    "retries": Scenario("a listener fails for every message", "Q13", _WARN, _FAILING),
    "listener-kinds": Scenario(
        "one member consumes in order, another does not", "Q14", _WARN, "same kind of listener"
    ),
    "no-write": Scenario("a topic without write permission", "Q02", _WARN, _PERMISSION),
    "no-read": Scenario("a topic without read permission", "Q02", _ERROR, _PERMISSION),
    "surplus": Scenario(
        "writeQueueNums is more than readQueueNums", "Q01", _ERROR, "raise readQueueNums"
    ),
    "models": Scenario(
        "one member is BROADCASTING, another CLUSTERING", "Q15", _ERROR, "one model in all members"
    ),
    "strategies": Scenario("members run two strategies", "R13", _ERROR, "one strategy"),
    "unknown-strategy": Scenario(
        "a strategy with settings of its own", "Q05", _INFO, "compare the settings"
    ),
    "twins": Scenario("two containers with one client id", "R01", _ERROR, _INSTANCE),
    "triplets": Scenario("three containers with one client id", "R01", _ERROR, _INSTANCE),
    "twins-on-host": Scenario("two processes of a host with one id", "R02", _ERROR, _INSTANCE),
    "topics": Scenario("members subscribe different topics", "R05", _ERROR, "the same topics"),
    "tags": Scenario("members subscribe different tags", "R06", _ERROR, "the same expression"),
    "some-tags": Scenario(
        "one member subscribes a tag, another everything", "R06", _ERROR, "the same expression"
    ),
    "unsubscribed": Scenario(
        "a member has unsubscribed its only topic", "R12", _ERROR, "shut the consumer down"
    ),
    "poison": Scenario("one message blocks its queue", "R30", _WARN, "check the message at offset"),
    "poison-in-order": Scenario(
        "one message blocks its queue, in order", "R30", _WARN, "check the message at offset"
    ),
    "hanging": Scenario("every listener waits for ever", "Q06", _ERROR, "waits for its listener"),
    "suspended": Scenario("every member is suspended", "Q06", _ERROR, "is suspended"),
    "half-suspended": Scenario("one member of two is suspended", "R28", _WARN, _SUSPENDED),
    "slow": Scenario("a listener takes 1.5 s a message", "Q12", _WARN, "set a time-out there"),
    "behind": Scenario(
        "more comes than the member consumes", "Q07", _WARN, "listeners more threads"
    ),
    "crowded": Scenario("all messages go into one queue", "Q11", _WARN, "how producers choose"),
    "tilted": Scenario(
        "three topics give the first member all extra queues", "R15", _WARN, "a multiple of"
    ),
    "lagging-queue": Scenario(
        "one queue is far behind the others", "R17", _WARN, "whether producers choose queues"
    ),
    "churning": Scenario(
        "a strategy that moves most queues at a join", "R18", _INFO, "moves the fewest queues"
    ),
    "too-many": Scenario("more members than queues", "R14", _WARN, "as many queues as"),
    "disabled": Scenario("the group is disabled", "Q16", _ERROR, "enable the group again"),
    "no-match": Scenario("a tag matches nothing of what arrives", "Q17", _INFO, _COMPARE),
    "no-sql-match": Scenario("an SQL92 expression matches nothing", "Q17", _INFO, _COMPARE),
    "fails-in-order": Scenario("in order, every message fails", "Q13", _ERROR, _FAILING),
    "one-fails-in-order": Scenario(
        "in order, one message fails for ever", "Q13", _ERROR, _FAILING, effect="R30"
    ),
    "stopped-polling": Scenario(
        "a consumer's program polls no more", "Q06", _ERROR, "a consumer that polls"
    ),
    "failing-twins": Scenario(
        "two containers with one client id, whose listeners fail for some messages",
        "R01",
        _ERROR,
        _INSTANCE,
        effect="R04",
    ),
    "locked-elsewhere": Scenario(
        "in order, another client keeps a queue locked", "R22", _WARN, "which other member holds"
    ),
    "older-subscription": Scenario(
        "a broker knows an older subscription than the member", "R07", _WARN, "half a minute"
    ),
    "ordered-broadcast": Scenario(
        "BROADCASTING in order, by a client in Java", "R25", _ERROR, "concurrent listener"
    ),
    "mixed-clients": Scenario(
        "MINIMAL_MOVE beside a client in Java", "Q09", _ERROR, "another of RocketMQ's strategies"
    ),
    "nobody": Scenario("messages wait, and no member is there", "Q04", _ERROR, "start the group's"),
    "nobody-needed": Scenario(
        "no member is there, and nothing waits", "Q04", _WARN, "start the group's"
    ),
    "failed-and-left": Scenario(
        "messages have failed and wait for their next attempt, and no member is there",
        "Q04",
        _ERROR,
        "start the group's",
        effect="Q24",
    ),
    "reconnecting": Scenario(
        "members connect anew while the doctor looks", "R26", _WARN, "check the broker's load"
    ),
    "hanging-broadcast": Scenario(
        "BROADCASTING, and every listener waits for ever", "Q12", _WARN, "set a time-out there"
    ),
    "config-gap": Scenario(
        "CONFIG names two queues of four", "R10", _ERROR, "a list of queues or rooms"
    ),
    "raises": Scenario(
        "a strategy of the program's own raises an error", "R10", _ERROR, "errors of the strategy"
    ),
    "retry-unwritable": Scenario(
        "listeners fail, and the retry topic takes no message",
        "Q19",
        _ERROR,
        "permission of topic %RETRY%",
        effect="Q13",
    ),
    "retry-unreadable": Scenario(
        "listeners fail, and nobody may read the retry topic",
        "Q19",
        _ERROR,
        "permission of topic %RETRY%",
        effect="Q13",
    ),
    "never-commits": Scenario(
        "a program polls with auto_commit=False and never commits",
        "Q20",
        _WARN,
        "must call `commit`",
    ),
    "limited": Scenario(
        "a member limits itself to half of what comes", "Q07", _WARN, "raise messages_per_s_max"
    ),
    "reset": Scenario(
        "somebody has reset the offsets", "Q08", _INFO, "move the offsets back", is_ours=True
    ),
    "popped": Scenario("consumers by message keep up", "R32", _INFO, "", is_ours=True),
    "popped-behind": Scenario(
        "consumers by message fall behind", "Q10", _WARN, "start more consumers", is_ours=True
    ),
    "popped-again": Scenario(
        "consumers by message acknowledge nothing",
        "Q21",
        _WARN,
        "must acknowledge each message",
        is_ours=True,
    ),
}
# The healthy groups, and what might raise a false alarm of each.
HEALTHY: Mapping[str, str] = {
    "h-handover": "a queue is handed over while the doctor looks",
    "h-idle": "nothing is sent",
    "h-seldom": "a message every few seconds: the last has come and is not committed",
    "h-one": "one member has all queues",
    "h-three": "three members, four queues",
    "h-ordered": "consumption in order",
    "h-tag": "one message in ten matches the tag, so that offsets stand still between two",
    "h-sql": "the same by SQL92",
    "h-tenth": "the same with enough messages that none would be a finding",
    "h-broadcast": "BROADCASTING: brokers know no offset",
    "h-long": "a listener takes 2 s, and keeps up",
    "h-topics": "two topics, of different rates",
    "h-hash": "CONSISTENT_HASH: unequal shares",
    "h-moves-few": "MINIMAL_MOVE: shares by history",
    "h-fails-rarely": "one message in fifty fails once",
    "h-polls": "a consumer that polls",
    "h-assigns": "a consumer that assigns itself queues: no member is listed",
    "h-catches-up": "a backlog that is consumed soon",
    "h-by-load": "AVG_BY_LOAD: queues move for load",
    "h-same-id": "another group's member has the same client id",
    "h-bursts": "messages come in batches, each of which goes into one queue",
    "h-commits-by-hand": "a program polls, and commits every 2 s by hand",
    "h-long-calls": "a call of the listener lasts longer than the look, and the group keeps up",
}


class _Raising:
    """A strategy of a program's own, with a mistake."""

    name = "OUR_ZONES"

    def allocate(self, group: str, client_id: str, mq_all: Any, cid_all: Any) -> Any:
        raise KeyError("zone")


def _subscribing(topic: str) -> Callable[[PollConsumer], None]:
    return lambda consumer: consumer.subscribe(topic)


class Wards:
    """Starts the groups, and holds what their listeners wait for."""

    def __init__(self, groups: LiveGroups, directory: Path) -> None:
        self.groups = groups
        self.released = threading.Event()
        self._threads: list[threading.Thread] = []
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

    def _poison_in_order(self, messages: Any, context: Any) -> ConsumeOrderlyStatus:
        self._poison(messages, context)
        return ConsumeOrderlyStatus.SUCCESS

    @staticmethod
    def _fail_one(messages: Any, context: Any) -> ConsumeOrderlyStatus:
        fails = (messages[0].queue_id, messages[0].queue_offset) == (2, 5)
        return fail_in_order(messages, context) if fails else ConsumeOrderlyStatus.SUCCESS

    @staticmethod
    def _fail_rarely(messages: Any, context: Any) -> ConsumeStatus:
        fails = messages[0].queue_offset % 50 == 7 and not messages[0].reconsume_times
        return ConsumeStatus.RECONSUME_LATER if fails else ConsumeStatus.CONSUME_SUCCESS

    def start_sick(self) -> None:
        """Start the groups of `SICK`, but for what happens between the doctor's looks."""
        on, join, process = self.groups, self.groups.join, self.groups.plan_process
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
        join("hanging", on.topic("sick13"), listener=self.takes(600))
        on.topic("sick14", per_s=20)
        join("slow", "sick14", listener=self.takes(1.5), consume_thread_count=2)
        join("slow", "sick14", instance="2")
        on.topic("sick15")
        for instance in "123456":
            join("too-many", "sick15", instance=instance)
        on.topic("sick17", queues=6)
        for _ in range(3):
            process("triplets", "sick17", instance="1")
        on.topic("sick18")
        for _ in range(2):
            process("twins-on-host", "sick18", instance="1", client_ip="127.0.0.1")
        on.topic("sick19", tags="AB")
        process("some-tags", "sick19", instance="1", expression="A")
        process("some-tags", "sick19", instance="2")
        on.topic("sick20")
        process("unsubscribed", "sick20", instance="1")
        process("unsubscribed", "sick20", instance="2", unsubscribes=True)
        on.topic("sick42")
        for _ in range(2):
            process("failing-twins", "sick42", instance="1", fails_every=20)
        on.start_planned()
        self._start_sick_queues()
        self._start_sick_members()
        on.admin.update_group("nobody")
        on.admin.update_committed_offset(
            "nobody", MessageQueue(on.topic("sick16"), "broker-a", 0), 0
        )

    def _start_sick_queues(self) -> None:
        """Start the sick groups whose members may share this process."""
        on, join = self.groups, self.groups.join
        join("deleted", on.topic("sick22", per_s=0))
        join("no-read", on.topic("sick23"))
        on.topic("sick24")
        on.admin.update_topic("sick24", read_queues=2)
        join("surplus", "sick24")
        queues = [MessageQueue(on.topic("sick25"), "broker-a", number) for number in range(4)]
        join("unknown-strategy", "sick25", strategy=AllocateMessageQueueByConfig(queues))
        join("poison-in-order", on.topic("sick26"), listener=self._poison_in_order, orderly=True)
        join("suspended", on.topic("sick27")).suspend()
        join("half-suspended", on.topic("sick28"))
        join("half-suspended", "sick28", instance="2").suspend()
        on.topic("sick29", per_s=20, queues=1)
        join("behind", "sick29", listener=self.takes(0.25), consume_thread_count=1)
        on.topic("sick30", per_s=20, sends_to=1)
        join("crowded", "sick30", listener=self.takes(0.25), consume_thread_count=1)
        tilted = [on.topic(f"sick31-{number}", per_s=1, queues=3) for number in range(3)]
        self._join_all("tilted", tilted, "12")
        on.topic("sick32", queues=8)
        self._join_all("churning", "sick32", "12", strategy="AVG_BY_CIRCLE")
        # Few come in, so that also members that the machine slows down consume more: a member that
        # does not is Q07's, which explains its queue's backlog.
        backlog = MessageQueue(on.topic("sick35", per_s=1), "broker-a", 0)
        for message in [Message("sick35", b"x") for _ in range(BACKLOG)]:
            on.producer.send_nowait(message, queue=backlog)
        on.producer.flush()
        for instance in "1234":
            slow = self.takes(0.05)
            join(
                "lagging-queue", "sick35", instance=instance, listener=slow, consume_thread_count=1
            )
        on.admin.update_group("nobody-needed")
        on.topic("sick33", per_s=0)
        first = MessageQueue("sick33", "broker-a", 0)
        on.admin.update_committed_offset("nobody-needed", first, 0)

        self._fail_and_leave("failed-and-left", on.topic("sick59", per_s=0))

    def _fail_and_leave(self, group: str, topic: str) -> None:
        """Let every message come again after two hours, and leave."""
        failed: list[Any] = []

        def listen(messages: Any, context: Any) -> ConsumeStatus:
            failed.extend(messages)
            context.delay_level = 18
            return ConsumeStatus.RECONSUME_LATER

        for _ in range(4):
            self.groups.producer.send(Message(topic, b"x"))
        consumer = self.groups.join(group, topic, listener=listen)
        wait_until("the failures", lambda: len(failed) == 4)
        consumer.close()

    def _start_sick_members(self) -> None:
        """Start the sick groups with members that stop at a message, or of other clients."""
        on, join = self.groups, self.groups.join
        join("disabled", on.topic("sick38"))
        on.topic("sick47", per_s=20, tags="ABBBBBBBBB")
        join("no-match", "sick47", expression="a || Pay")
        join("no-sql-match", "sick47", expression=MessageSelector.by_sql("a = 'Pay'"))
        join("fails-in-order", on.topic("sick39"), listener=fail_in_order, orderly=True)
        join("one-fails-in-order", on.topic("sick40"), listener=self._fail_one, orderly=True)
        consumer = on.hold(PollConsumer("stopped-polling", name_server=on.cluster.name_server))
        consumer.subscribe(on.topic("sick41"))
        consumer.start()
        consumer.poll(5_000)
        end = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        on.topic("sick21", queues=8, sends_to=4)
        self._add_other("new-queues", "sick21", holds=(), start=end)
        join("new-queues", "sick21", start="last")
        for number in range(4, 8):
            on.producer.send(
                Message("sick21", b"x"), queue=MessageQueue("sick21", "broker-a", number)
            )
        # Queues 2 and 3, without messages, fall to the other client.
        locked = (MessageQueue(on.topic("sick43", sends_to=2), "broker-a", 0),)
        self._add_other("locked-elsewhere", "sick43", holds=(2, 3), locked=locked)
        join("locked-elsewhere", "sick43", orderly=True)
        on.topic("sick44", per_s=0)
        newer = SubscriptionData(topic="sick44", sub_version=2)
        self._add_other("older-subscription", "sick44", subscription=newer)
        ordered = {"PROP_CONSUMEORDERLY": "true"}
        model = MessageModel.BROADCASTING
        self._add_other("ordered-broadcast", on.topic("sick45"), ordered, model=model)
        self._add_other("mixed-clients", on.topic("sick46"))
        on.topic("sick48", per_s=0)
        for number, holds in enumerate(((0, 1), (2, 3))):
            self._add_other("reconnecting", "sick48", holds=holds, number=number, reconnects=True)
        join(
            "hanging-broadcast",
            on.topic("sick49"),
            listener=self.takes(600),
            message_model=model,
            local_offset_dir=str(self._directory),
        )
        join("mixed-clients", "sick46", strategy="MINIMAL_MOVE")
        some = [MessageQueue(on.topic("sick50"), "broker-a", number) for number in range(2)]
        join("config-gap", "sick50", strategy=AllocateMessageQueueByConfig(some))
        join("raises", on.topic("sick51"), strategy=_Raising())
        join("retry-unwritable", on.topic("sick52"), listener=fail)
        join("retry-unreadable", on.topic("sick53"), listener=fail)
        on.topic("sick54", per_s=1)
        on.topic("sick55", per_s=4)
        for topic in ("sick54", "sick55") * 400:
            on.producer.send_nowait(Message(topic, b"x"))
        self._poll("never-commits", _subscribing("sick54"), auto_commit=False)
        join("limited", "sick55", messages_per_s_max=2)

    def start_healthy(self) -> None:
        """Start the groups of `HEALTHY`."""
        on, join = self.groups, self.groups.join
        join("h-idle", on.topic("well1", per_s=0))
        join("h-seldom", on.topic("well19", per_s=0.15, queues=1))
        join("h-one", on.topic("well2"))
        self._join_all("h-three", on.topic("well3"), "123")
        self._join_all("h-ordered", on.topic("well4"), "12", orderly=True)
        # A queue gets a message that matches every 20 s, and nine others between two of them.
        on.topic("well5", per_s=4, queues=8, tags="ABBBBBBBBB")
        self._join_all("h-tag", "well5", "12", expression="A")
        join("h-sql", "well5", expression=MessageSelector.by_sql("a = 'A'"))
        join("h-tenth", "sick47", expression="A")
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
        self._poll("h-polls", lambda consumer: consumer.subscribe(on.topic("well14")))
        queues = [MessageQueue(on.topic("well15"), "broker-a", number) for number in range(4)]
        self._poll("h-assigns", lambda consumer: consumer.assign(queues))
        on.topic("well16", per_s=2)
        for message in [Message("well16", b"x") for _ in range(BACKLOG)]:
            on.producer.send_nowait(message)
        on.producer.flush()
        join("h-catches-up", "well16", listener=self.takes(0.03), consume_thread_count=3)
        self._join_all("h-by-load", on.topic("well17", queues=8), "123", strategy="AVG_BY_LOAD")
        join("h-same-id", on.topic("well18"))
        join("h-bursts", on.topic("well20", per_s=0))
        self._run(self._send_bursts)
        on.topic("well21")
        self._poll("h-commits-by-hand", _subscribing("well21"), commit_every_s=2, auto_commit=False)
        join("h-long-calls", on.topic("well22", per_s=0.8), listener=self.takes(9))

    def _send_bursts(self) -> None:
        while not self.released.wait(3):
            for _ in range(60):
                self.groups.producer.send_nowait(Message("well20", b"x"))

    def start_popped(self) -> None:
        """Start the groups that need SparrowMQ's broker."""
        # So few that a busy machine keeps up, with two requests for each message.
        self._receive("popped", self.groups.topic("sick36", per_s=1), pause_s=0)
        self._receive("popped-behind", self.groups.topic("sick34", per_s=20), pause_s=0.3)
        self._hold_back("popped-again", self.groups.topic("sick58", per_s=1))
        self.groups.join("reset", self.groups.topic("sick37", per_s=1))

    def _receiver(self, group: str, topic: str) -> SimpleConsumer:
        consumer = self.groups.hold(
            SimpleConsumer(group, name_server=self.groups.cluster.name_server)
        )
        consumer.subscribe(topic)
        return consumer

    def _hold_back(self, group: str, topic: str) -> None:
        """Acknowledge nothing; what came less than six times comes again at once."""
        consumer = self._receiver(group, topic)

        def hold_back() -> None:
            while not self.released.wait(0):
                for message in consumer.receive(1, invisible=HIDDEN, wait=RECEIVE_WAIT):
                    if message.reconsume_times < 5:
                        consumer.change_invisible(message, timedelta(0))

        self._run(hold_back)

    def _receive(self, group: str, topic: str, *, pause_s: float) -> None:
        consumer = self._receiver(group, topic)

        def receive() -> None:
            while not self.released.wait(pause_s):
                for message in consumer.receive(1, wait=RECEIVE_WAIT):
                    consumer.ack(message)

        self._run(receive)

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def release(self) -> None:
        """End what listeners and threads wait for, and wait until no thread uses its consumer."""
        self.released.set()
        for thread in self._threads:
            thread.join(60)

    def _add_other(
        self,
        group: str,
        topic: str,
        properties: Mapping[str, str] = MappingProxyType({}),
        *,
        subscription: SubscriptionData | None = None,
        holds: Iterable[int] = range(4),
        number: int = 2,
        **how: Any,
    ) -> None:
        """Add a member in Java that has queues in hand and consumes nothing."""
        says = ConsumerRunningInfo(
            properties=dict(properties),
            subscription_set=[subscription or SubscriptionData(topic=topic)],
            mq_table={MessageQueue(topic, "broker-a", n): ProcessQueueInfo() for n in holds},
        )
        broker, client_id = self.groups.cluster.broker, f"172.17.0.2@{number}"
        member = ForeignMember(broker, group, topic, client_id=client_id, says=says, **how)
        self.groups.hold(member)

    def _join_all(self, group: str, topic: Any, instances: str, **settings: Any) -> None:
        for instance in instances:
            self.groups.join(group, topic, instance=instance, **settings)

    def _poll(
        self,
        group: str,
        choose: Callable[[PollConsumer], None],
        *,
        commit_every_s: float | None = None,
        **settings: Any,
    ) -> None:
        consumer = self.groups.hold(
            PollConsumer(
                group, name_server=self.groups.cluster.name_server, start="first", **settings
            )
        )
        choose(consumer)
        consumer.start()

        def poll() -> None:
            committed_s = time.monotonic()
            while not self.released.is_set():
                consumer.poll(200)
                if commit_every_s and time.monotonic() - committed_s > commit_every_s:
                    consumer.commit()
                    committed_s = time.monotonic()

        self._run(poll)


def examine(cluster: LiveCluster, directory: Path, *, is_ours: bool) -> Findings:
    """Return what the doctor finds in each group, after the groups have worked for some time.

    Args:
        is_ours: whether the cluster is SparrowMQ's.
    """
    with LiveGroups(cluster) as groups:
        wards = Wards(groups, directory)
        try:
            wards.start_sick()
            wards.start_healthy()
            if is_ours:
                wards.start_popped()
            threading.Event().wait(WORK_S)
            groups.stop_sending("sick4", "sick23")
            groups.admin.update_group("disabled", is_enabled=False)
            groups.admin.update_topic("sick4", perm="r")
            groups.admin.update_topic("sick23", perm="w")
            groups.admin.update_topic("%RETRY%retry-unwritable", perm="r")
            groups.admin.update_topic("%RETRY%retry-unreadable", perm="w")
            groups.admin.delete_topic("sick22")
            if is_ours:
                groups.admin.reset_offsets("reset", "sick37", to="earliest")
            # A member that drains for long hands over while the doctor looks.
            groups.join("h-handover", "well13", instance="2")
            wait_until("drain", lambda: groups.is_handing_over("h-handover"), timeout_s=30)
            sick = [group for group, each in SICK.items() if is_ours or not each.is_ours]
            others = dict.fromkeys([*HEALTHY, *sick])
            del others["frozen"]
            found = groups.examine(list(others))
        finally:
            wards.release()
    return found | _examine_frozen(cluster)


def _examine_frozen(cluster: LiveCluster) -> Findings:
    """Look at a stopped process at once, and alone: after 10 s its queues go to others."""
    with LiveGroups(cluster) as groups:
        groups.topic("sick12")
        first, _ = (groups.start_process("frozen", "sick12", instance=each) for each in "12")
        wait_until("two at work", lambda: groups.count_owners("frozen") == 2, timeout_s=60)
        first.send_signal(signal.SIGSTOP)
        return groups.examine(["frozen"])


def misjudged(found: Findings, group: str) -> str:
    """Return what is wrong in the findings of a sick group, "" if nothing is."""
    return judge(group, SICK[group], found[group])


def judge(group: str, wanted: Scenario, findings: list[Finding]) -> str:
    """Return what is wrong in the findings of a group with one fault, "" if nothing is."""
    more = [each for each in findings[1:] if each.severity > Severity.INFO]
    first = findings[0] if findings else None
    is_first = first is not None and (first.rule, first.severity) == (wanted.rule, wanted.severity)
    if first is not None and is_first and not more and wanted.remedy in first.remedy:
        effects = [each.rule for each in first.effects]
        return "" if wanted.effect in ("", *effects) else f"{group}: only {effects} are folded"
    said = [f"{each.rule} {each.severity.name} {each.title}: {each.remedy}" for each in findings]
    return f"{group}: wanted {wanted}, found {said}"


def alarms(found: Findings) -> dict[str, list[str]]:
    """Return what the doctor says of healthy groups that is more than information."""
    return {
        group: [f"{each.rule} {each.title}: {each.evidence}" for each in findings]
        for group, findings in found.items()
        if group in HEALTHY and any(each.severity > Severity.INFO for each in findings)
    }
