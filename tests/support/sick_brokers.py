"""Groups of two brokers with one fault, which lies in the brokers, and what the doctor says.

As in `sick_groups.py`, the rule comes first and is all that the doctor says of more than
information. `make generate` makes a table of the page of scenarios of `SICK_BROKERS`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from foreign_member import ForeignMember
from sick_groups import Scenario, judge
from sparrowmq import Admin, MessageSelector, PushConsumer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.groups import take_snapshots
from sparrowmq.doctor import Finding, Severity, diagnose
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from sparrowmq.strategies.averagely import AllocateMessageQueueAveragely
from sparrowmq.strategies.machine_room import AllocateMachineRoomNearby
from waiting import wait_until

# The doctor's pause between its looks, and its patience.
INTERVAL_MS, TIMEOUT_MS = 6_000, 3_000
# A broker that takes so long to answer is slow; a patient doctor waits for it.
SLOW_S, PATIENT_MS = 5.0, 30_000
QUEUES = 3


class Brokers(NamedTuple):
    """Two brokers of two machine rooms, of one name server, and another cluster.

    Args:
        addresses, pids: by the names of the brokers.
        elsewhere: the name server of the other cluster.
    """

    name_server: str
    addresses: Mapping[str, str]
    pids: Mapping[str, int]
    elsewhere: str


class Stage(NamedTuple):
    """The brokers, a topic with as many queues at each, and its group."""

    brokers: Brokers
    topic: str
    held: ExitStack

    @property
    def group(self) -> str:
        """The topic's group."""
        return f"GID_{self.topic}"

    def look(
        self, *, also: str = "", interval_ms: int = INTERVAL_MS, timeout_ms: int = TIMEOUT_MS
    ) -> list[Finding]:
        """Return what the doctor finds; it also asks the name server `also`."""
        names = ";".join(filter(None, (self.brokers.name_server, also)))
        driver = BlockingDriver()
        try:
            directory = make_directory(names, timeout_ms=timeout_ms)
            looking = take_snapshots(directory, [self.group], interval_ms=interval_ms)
            found, failures = driver.run(looking)
        finally:
            driver.close()
        assert not failures
        return diagnose(found[0])

    def register(self, number: int, *names: str) -> None:
        """Have a member in Java of this number send heartbeats to some of the brokers."""
        queues = [MessageQueue(self.topic, b, n) for b in self.brokers.pids for n in range(QUEUES)]
        for name in names:
            member = ForeignMember(
                self.brokers.addresses[name],
                self.group,
                self.topic,
                client_id=f"10.0.0.{number}@1",
                says=ConsumerRunningInfo(
                    subscription_set=[SubscriptionData(topic=self.topic)],
                    # The members of a share each: AVG.
                    mq_table={q: ProcessQueueInfo() for q in queues[QUEUES * number :][:QUEUES]},
                ),
            )
            self.held.callback(member.close)

    def consume(self, *, client_ip: str = "10.0.0.9", **settings: object) -> PushConsumer:
        """Start a member that runs SparrowMQ, and wait until it has queues."""
        member = self.held.enter_context(
            PushConsumer(
                self.group,
                name_server=self.brokers.name_server,
                listener=lambda *_: None,
                client_ip=client_ip,
                **settings,  # type: ignore[arg-type]
            )
        )
        member.subscribe(self.topic)
        member.start()
        wait_until("its queues", member.assignment, timeout_s=60)
        return member

    def stop(self, name: str) -> Callable[[], None]:
        """Stop a broker's process; return what lets it go on, at the end at the latest."""
        pid = self.brokers.pids[name]
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            os.kill(pid, signal.SIGCONT)

        self.held.callback(go_on)
        return go_on


def _unknown(stage: Stage) -> list[Finding]:
    for number in (0, 1):
        stage.register(number, "east-a")
    return stage.look()


def _missed(stage: Stage) -> list[Finding]:
    stage.register(0, "east-a", "west-a")
    stage.register(1, "east-a")
    return stage.look()


def _known(stage: Stage) -> list[Finding]:
    for number in (0, 1):
        stage.register(number, "east-a", "west-a")
    return stage.look()


def _silent(stage: Stage) -> list[Finding]:
    stage.consume()
    stage.stop("west-a")
    return stage.look()


def _slow(stage: Stage) -> list[Finding]:
    for number in (0, 1):
        stage.register(number, "east-a", "west-a")
    wait_until("both members", lambda: stage.look(interval_ms=0) == [], timeout_s=60)
    awake = threading.Timer(SLOW_S, stage.stop("west-a"))
    awake.start()
    try:
        return stage.look(interval_ms=0, timeout_ms=PATIENT_MS)
    finally:
        awake.join()


def _rooms(stage: Stage) -> list[Finding]:
    nearby = AllocateMachineRoomNearby(AllocateMessageQueueAveragely())
    members = [stage.consume(client_ip=f"south-{n}", strategy=nearby) for n in (1, 2)]
    wait_until(
        "unequal shares",
        lambda: sorted(len(member.assignment()) for member in members) == [2, 4],
        timeout_s=60,
    )
    return stage.look()


def _other_cluster(stage: Stage) -> list[Finding]:
    with Admin(name_server=stage.brokers.elsewhere) as admin:
        admin.create_topic("there", queues=2)
    # As a client that shares one connection between two clusters.
    stage.consume().subscribe("there")
    wait_until(
        "a heartbeat with the topic",
        lambda: [each.rule for each in stage.look(also=stage.brokers.elsewhere, interval_ms=0)],
        timeout_s=60,
    )
    return stage.look(also=stage.brokers.elsewhere)


def _disagreeing(stage: Stage) -> list[Finding]:
    stage.consume()
    return stage.look(also=stage.brokers.elsewhere)


def _refused(stage: Stage) -> list[Finding]:
    stage.consume().subscribe(stage.topic, MessageSelector.by_sql("a > 5"))
    wait_until(
        "a heartbeat with the expression",
        lambda: [each.rule for each in stage.look(interval_ms=0)],
        timeout_s=60,
    )
    return stage.look()


class BrokersScenario(NamedTuple):
    """A fault, and what makes it on a stage and returns what the doctor finds.

    Args:
        brokers: whose brokers can have it.
    """

    wanted: Scenario
    examine: Callable[[Stage], list[Finding]]
    brokers: str = "both"


_ERROR, _WARN = Severity.ERROR, Severity.WARN
_REACH = "check whether these members reach that broker"
SICK_BROKERS: Mapping[str, BrokersScenario] = {
    "unknown": BrokersScenario(
        Scenario("one of two brokers knows no member", "R08", _ERROR, _REACH), _unknown
    ),
    "missed": BrokersScenario(
        Scenario("one of two brokers misses a member", "R09", _ERROR, _REACH), _missed
    ),
    "rooms": BrokersScenario(
        Scenario(
            "MACHINE_ROOM_NEARBY, and two rooms have brokers and no member",
            "R16",
            _WARN,
            "run a member in every room",
        ),
        _rooms,
    ),
    "disagreeing": BrokersScenario(
        Scenario(
            "of two name servers in the list, one does not know the topic",
            "R33",
            _ERROR,
            "register every broker at every name server",
        ),
        _disagreeing,
    ),
    "elsewhere": BrokersScenario(
        Scenario(
            "members subscribe a topic of another cluster",
            "R03",
            _ERROR,
            "check the name server address",
        ),
        _other_cluster,
    ),
    "refused": BrokersScenario(
        Scenario(
            "a broker does not filter by SQL92, to which a member subscribes",
            "Q18",
            _ERROR,
            "once enablePropertyFilter is set",
        ),
        _refused,
        "Apache's",
    ),
    "slow": BrokersScenario(
        Scenario("one of two brokers takes seconds to answer", "R27", _WARN, "the slow brokers"),
        _slow,
    ),
    "silent": BrokersScenario(
        Scenario("one of two brokers is stopped (SIGSTOP)", "Q03", _ERROR, "the broker runs"),
        _silent,
    ),
}


def examine_brokers(brokers: Brokers, name: str) -> str:
    """Make a fault; return what is wrong in the doctor's findings, "" if nothing is."""
    wanted, examine, _ = SICK_BROKERS[name]
    with ExitStack() as held:
        return judge(name, wanted, examine(_stage(brokers, name, held)))


def alarms_of_healthy(brokers: Brokers) -> list[Finding]:
    """Return what the doctor says of members that both brokers know."""
    with ExitStack() as held:
        return _known(_stage(brokers, "known", held))


def _stage(brokers: Brokers, topic: str, held: ExitStack) -> Stage:
    with Admin(name_server=brokers.name_server) as admin:
        admin.create_topic(topic, queues=QUEUES)
    return Stage(brokers, topic, held)
