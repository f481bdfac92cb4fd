"""A simulated cluster: one world with its hosts, for faults and their heal. Tests: test_runs.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product, repeat
from typing import Any

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.transaction_checks import TRANSACTION_GROUP
from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import create_topic
from sparrowmq.client.operations.topics import plan_topic_update, update_topic
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS, MARKED_LEASE_RENEWAL_MS
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import TRANS_HALF_TOPIC, retry_topic
from sparrowmq.simulation import transaction_producers
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import SimulatedDriver
from sparrowmq.simulation.event_log import Trace
from sparrowmq.simulation.faults import Faults
from sparrowmq.simulation.list_ledger import OwnershipCheck, judge_ownership
from sparrowmq.simulation.members import MemberHost, ProducerHost
from sparrowmq.simulation.network import Network
from sparrowmq.simulation.nodes import BrokerNode, NameServerNode
from sparrowmq.simulation.pop_ledger import PopLedger
from sparrowmq.simulation.pop_users import (
    ORDER_GROUP,
    POP_GROUP,
    RETRIES_MAX,
    PopUsers,
    make_groups,
)
from sparrowmq.simulation.surroundings import Surroundings
from sparrowmq.simulation.transaction_producers import TransactionHost
from sparrowmq.simulation.virtual_time import START_MS, Timeline
from sparrowmq.simulation.workload import LISTENER_MS_MAX, Workload, produce
from sparrowmq.store.config import FlushMode
from sparrowmq.store.retention import RetentionConfig
from sparrowmq.strategies.registry import strategy_from

TOPIC = "Flights"
GROUP = "GID_sim"
NAME_SERVERS = ("10.0.0.1:9876", "10.0.0.2:9876")
BROKER_PORT = 10_911
# The wait of a pull that finds no message; shorter waits would find more errors.
PULL_SUSPEND_MS = 15_000
# More events than a sound run has in all, and within one millisecond.
EVENTS_MAX = 400_000
EVENTS_AT_ONCE_MAX = 3_000
PROBE_PAUSE_MS = 200
# From one try of an operator to change the number of queues to the next.
QUEUES_RETRY_MS = 500
# The time in which a broker must list exactly the live members, if every side sees faults at once.
# A member whose broker was away for a moment tries again after a second.
LIST_NOTICE_MS = 2_000
LIST_LOOK_MS = 250
# The time in which a member must notice that its broker has lost its locks: after one or two
# renewals.
LOCK_NOTICE_MS = MARKED_LEASE_RENEWAL_MS + 1_500
# The time in which a broker must list a newcomer while name servers fail, but never two at once:
# the newcomer waits for one that is silent, and then asks the other.
NEWCOMER_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of a run.

    Args:
        queue_count: the queues of the topic on each broker.
        message_count: the messages that each producer tries to send.
        pause_ms_max: the longest pause between two sends.
        probe_count: the further messages after the heal.
        batch_size: the most messages in a listener's call.
        listener_ms_max: the longest call of the listener without a fault.
        transaction_count: the transactions, begun by a producer of their own.
        check_interval_ms: the time between two rounds of questions for outcomes.
        delayed_share: the share of the producers' messages that have a delay.
        retries_max: how often a failed message comes again before it is a dead letter; None for
            the consumers' default.
        pop_user_count: the users that consume by messages, in groups of their own.
        name_server_count: the name servers, at which every broker registers.
    """

    broker_count: int
    queue_count: int
    member_count: int
    producer_count: int
    message_count: int
    pause_ms_max: int
    fault_ms: int
    probe_count: int
    batch_size: int
    pull_batch_size: int
    consume_thread_count: int
    strategy: str
    sync_flush: bool
    faults: Faults
    is_orderly: bool = False
    listener_ms_max: int = LISTENER_MS_MAX
    transaction_count: int = 0
    check_interval_ms: int = transaction_producers.CHECK_INTERVAL_MS
    delayed_share: float = 0.0
    retries_max: int | None = None
    notice_pause_ms: int = 0
    pop_user_count: int = 0
    name_server_count: int = 1


class SimulatedCluster:
    """All hosts of one world.

    Args:
        scenario: the parameters of the run.
        make_dice: makes an independent source of choices for each purpose: without one fault, the
            rest of the run stays the same.
    """

    def __init__(self, scenario: Scenario, make_dice: Callable[[str], Dice]) -> None:
        self.scenario = scenario
        # A member alone in its group goes on with what it knows, whatever its brokers forget.
        is_alone = scenario.faults.are_kills and scenario.member_count == 1
        self.timeline = Timeline()
        self.trace = Trace(self.timeline)
        self.checkers = Checkers(
            GROUP,
            TOPIC,
            self.trace,
            may_share_queues=scenario.faults.duplicate_ids > 0,
            # If a listener outlasts the drain, its message is delivered to the next owner too.
            is_orderly=scenario.is_orderly,
            may_redeliver=not is_alone
            and (scenario.faults.slow_listener > 0 or not scenario.faults.are_graceful),
            lock_notice_ms=LOCK_NOTICE_MS if scenario.faults.are_prompt else MARKED_LEASE_MS,
            is_calm=scenario.faults.are_graceful,
            retries_max=scenario.retries_max,
            # A second broker's queues wait for the route that has them again.
            keeps_members=is_alone and scenario.broker_count == 1,
        )
        if scenario.pop_user_count:
            self.checkers.pops = {g: self._make_pop_ledger(g) for g in (POP_GROUP, ORDER_GROUP)}
        self.network = Network(self.timeline, make_dice("network"))
        self.dice = make_dice("cluster")
        self.workload = Workload(
            self.checkers,
            make_dice("listeners"),
            scenario.faults,
            listener_ms_max=scenario.listener_ms_max,
        )
        self._world = Surroundings(
            self.timeline,
            self.network,
            self.checkers,
            self.trace,
            NAME_SERVERS[: scenario.name_server_count],
            make_dice("name servers"),
        )
        self.name_servers = [
            NameServerNode(address, self._world, self._has_old_route)
            for address in self._world.name_servers
        ]
        self.brokers = [
            self._make_broker(number, make_dice(f"broker {number}"))
            for number in range(scenario.broker_count)
        ]
        # The group's retry topic has a queue on each broker.
        retries = [MessageQueue(retry_topic(GROUP), broker.name, 0) for broker in self.brokers]
        # The numbers of the topic's queues on each broker so far, the last of which is wanted.
        self._queue_counts = [scenario.queue_count]
        self._is_operating = False
        self.all_queues = (*self.queues, *retries)
        self.members: list[MemberHost] = []
        self.producers: list[ProducerHost] = []
        self.transactions: list[TransactionHost] = []
        brokers = [broker.name for broker in self.brokers]
        self.pop_users = PopUsers(self._world, make_dice("pop users"), topic=TOPIC, brokers=brokers)
        self._make_dice = make_dice
        self._member_number = 0

    # --- building ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the servers, create the topic, and add members and producers."""
        for server in self.name_servers:
            server.start()
        for broker in self.brokers:
            broker.start()
        # Only registered brokers can create a topic.
        self.run(until_ms=START_MS + 200)
        operation: Operation[TopicRoute] = create_topic(
            Directory(name_servers=self._world.make_name_servers()),
            TOPIC,
            queues=self.scenario.queue_count,
        )
        self._run_as_admin(operation)
        scenario = self.scenario
        # Producers must have their route when the first member lets the name server be killed.
        first_ms = 2_000 if scenario.faults.late_retry_topic else 0
        for _ in range(scenario.member_count):
            self.timeline.call_in(self.dice.randrange(first_ms, 3_000), self.add_member)
        for _ in range(scenario.producer_count):
            self._add_producer(scenario.message_count, scenario.pause_ms_max)
        if scenario.transaction_count:
            self.add_transactions(scenario.transaction_count)
        if scenario.pop_user_count:
            self._run_as_admin(make_groups([broker.config.address for broker in self.brokers]))
            self.pop_users.start(scenario.pop_user_count)
        if scenario.faults.are_prompt and not scenario.faults.duplicate_ids:
            self._look_at_lists()
        if scenario.faults.are_graceful and scenario.name_server_count > 1:
            self._look_at_newcomers()

    def probe(self) -> None:
        """Send further messages, which the group must consume."""
        self._add_producer(self.scenario.probe_count, PROBE_PAUSE_MS)

    def _make_pop_ledger(self, group: str) -> PopLedger:
        return PopLedger(
            self.checkers.fail,
            lambda: self.timeline.now_ms,
            group,
            TOPIC,
            retries_max=RETRIES_MAX,
            is_orderly=group == ORDER_GROUP,
        )

    def _make_broker(self, number: int, dice: Dice) -> BrokerNode:
        return BrokerNode(
            BrokerConfig(
                address=f"10.0.1.{number + 1}:{BROKER_PORT}",
                broker_name=f"broker-{'ab'[number]}",
                flush=FlushMode.SYNC if self.scenario.sync_flush else FlushMode.ASYNC,
                retention=RetentionConfig(disk_full_percent=100),
                transaction_timeout_ms=transaction_producers.TIMEOUT_MS,
                transaction_check_interval_ms=self.scenario.check_interval_ms,
                transaction_check_max=transaction_producers.CHECKS_MAX,
            ),
            self._world,
            dice,
            group=GROUP,
            topic=TOPIC,
            wall_ms=dice.randrange(-500, 500),
            notice_pause_ms=self.scenario.notice_pause_ms,
        )

    def change_queues(self, count: int) -> None:
        """Let an operator give the topic another number of queues on each broker."""
        self._queue_counts.append(count)
        if self._is_operating:
            # One after the other: of two at once the older could have the last word.
            return
        self._is_operating = True
        process = self._world.start_process("operator", "10.0.0.9")
        driver = SimulatedDriver(process, self.network, on_failure=self.checkers.note_failure)
        driver.start(self._operate(), name="operate", on_done=lambda _: None)

    def _operate(self) -> Operation[None]:
        """Change the brokers that answer, until all of them have the wanted number of queues."""
        directory = Directory(name_servers=self._world.make_name_servers())
        count = changed_count = 0
        while count != self.queue_count or changed_count < len(self.brokers):
            count, changed_count = self.queue_count, 0
            with suppress(SparrowError):
                changes = yield from plan_topic_update(
                    directory, TOPIC, read_queues=count, write_queues=count
                )
                yield from update_topic(directory, changes)
                changed_count = len(changes)
            yield from sleep(QUEUES_RETRY_MS)
        self._is_operating = False

    def _run_as_admin(self, operation: Operation[Any]) -> None:
        process = self._world.start_process("admin", "10.0.0.9")
        driver = SimulatedDriver(process, self.network, on_failure=self.checkers.note_failure)
        done: list[object] = []
        driver.start(operation, name="administer", on_done=done.append)
        self._run_while(lambda: not done)
        driver.close()

    def _run_while(self, is_under_way: Callable[[], bool]) -> None:
        """Let time pass until something is done, or a violation is found."""
        while is_under_way() and self.checkers.violation is None:
            self.run(until_ms=self.timeline.now_ms + 100)

    def _add_producer(self, message_count: int, pause_ms_max: int) -> None:
        number = len(self.producers)
        dice = self._make_dice(f"producer {number}")
        producer = ProducerHost(
            f"producer-{number}",
            f"10.0.3.{number + 1}",
            self._world,
            dice,
            find_queues=self.find_queues,
        )
        self.producers.append(producer)
        producer.start(
            partial(
                produce,
                topic=TOPIC,
                name=f"p{number}",
                count=message_count,
                pause_ms_max=pause_ms_max,
                delayed_share=self.scenario.delayed_share,
                checkers=self.checkers,
                dice=dice,
            )
        )

    def add_transactions(self, count: int) -> None:
        """Add a producer that begins transactions, and answers for all of its group."""
        number = len(self.transactions)
        producer = TransactionHost(
            f"t{number}",
            f"10.0.4.{number + 1}",
            self._world,
            self._make_dice(f"transactions {number}"),
        )
        self.transactions.append(producer)
        producer.start(TOPIC, count=count, pause_ms_max=self.scenario.pause_ms_max)

    def add_member(self) -> None:
        """Add a member."""
        self._member_number += 1
        number = self._member_number
        name, host = f"member-{number}", f"10.0.2.{number}"
        client_id = f"{host}@{number}#{self.dice.randrange(0, 1 << 30)}"
        others = [member for member in self.members if member.is_live]
        if others and self.dice.random() < self.scenario.faults.duplicate_ids:
            client_id = self.dice.choice(others).client_id
        scenario = self.scenario
        member = MemberHost(
            name,
            host,
            ConsumerConfig(
                group=GROUP,
                client_id=client_id,
                strategy=strategy_from(scenario.strategy),
                pull_batch_size=scenario.pull_batch_size,
                pull_suspend_ms=PULL_SUSPEND_MS,
                consume_message_batch_max_size=scenario.batch_size,
                consume_thread_count=scenario.consume_thread_count,
                orderly=scenario.is_orderly,
                max_reconsume_times=scenario.retries_max,
                # Behind expired messages a new group would begin at a queue's end by default.
                start="first" if scenario.faults.expiry else "last",
            ),
            self._world,
            topic=TOPIC,
            workload=self.workload,
        )
        self.members.append(member)
        self.trace.add(f"{name} joins as {client_id}")
        member.start()

    def _look_at_lists(self) -> None:
        # No host notices soon that a machine has lost its power.
        leaving = [m for m in self.members if m.is_dark or (m.is_leaving and m.process.is_alive)]
        for broker in self.brokers:
            if broker.process is not None:
                group = broker.broker.state.consumers.find(GROUP)
                self.checkers.lists.check(
                    broker.name,
                    () if group is None else group.client_ids(),
                    live=[member.client_id for member in self.live_members],
                    leaving=[member.client_id for member in leaving],
                    now_ms=self.timeline.now_ms,
                    bound_ms=LIST_NOTICE_MS,
                )
        may_share = bool(self.live_members) and not self.has_ghosts()
        found = self.ownership() if may_share else None
        self.checkers.lists.check_shares(found, now_ms=self.timeline.now_ms)
        self.timeline.call_in(LIST_LOOK_MS, self._look_at_lists)

    def _look_at_newcomers(self) -> None:
        groups = [broker.broker.state.consumers.find(GROUP) for broker in self.brokers]
        listed = {cid for group in groups if group is not None for cid in group.client_ids()}
        for member in self.live_members:
            age_ms = self.timeline.now_ms - member.begun_ms
            if age_ms > NEWCOMER_MS and member.client_id not in listed:
                self.checkers.fail(f"no broker lists {member.name} {age_ms} ms after its start")
        self.timeline.call_in(LIST_LOOK_MS, self._look_at_newcomers)

    # --- running ----------------------------------------------------------------------------

    def run(self, *, until_ms: int) -> None:
        """Run events until an instant, or until a check fails."""
        timeline, checkers = self.timeline, self.checkers
        count_before = timeline.event_count
        while checkers.violation is None:
            next_ms = timeline.next_ms()
            if next_ms is None or next_ms > until_ms:
                timeline.now_ms = until_ms
                return
            if next_ms != timeline.now_ms:
                count_before = timeline.event_count
            if timeline.step():
                self._check_members()
            at_once = timeline.event_count - count_before
            if at_once > EVENTS_AT_ONCE_MAX or timeline.event_count > EVENTS_MAX:
                checkers.fail(
                    f"{timeline.event_count} events, {at_once} of them in this millisecond: "
                    "somebody is busy with nothing"
                )

    def _check_members(self) -> None:
        alive = [member for member in self.members if member.process.is_alive]
        for member in alive:
            member.check()
        # A frozen member counts: it may wake in this millisecond, and must not trust its lock.
        self.checkers.check_leases(
            [(member.name, member.subscriber.member) for member in alive],
            now_ms=self.timeline.now_ms,
        )

    @property
    def queue_count(self) -> int:
        """The wanted number of the topic's queues on each broker."""
        return self._queue_counts[-1]

    @property
    def has_changed_queues(self) -> bool:
        """Whether an operator has changed the number of the topic's queues."""
        return len(self._queue_counts) > 1

    @property
    def queues(self) -> list[MessageQueue]:
        """Every queue that the topic is to have."""
        return self._queues_of(repeat(self.queue_count))

    def find_queues(self) -> list[list[MessageQueue]]:
        """Return what the topic's queues may have been: brokers change one after the other."""
        counts = product(sorted(set(self._queue_counts)), repeat=len(self.brokers))
        return [self._queues_of(each) for each in counts]

    def _queues_of(self, counts: Iterable[int]) -> list[MessageQueue]:
        return [
            MessageQueue(TOPIC, broker.name, queue_id)
            for broker, count in zip(self.brokers, counts, strict=False)
            for queue_id in range(count)
        ]

    @property
    def live_members(self) -> list[MemberHost]:
        """The members that stay in the group."""
        return [member for member in self.members if member.is_live]

    def ownership(self) -> OwnershipCheck:
        """Return the queues that do not have exactly one owner now."""
        return judge_ownership(
            self.queues, {member.name: member.assigned for member in self.live_members}
        )

    def has_ghosts(self) -> bool:
        """Return whether a broker's list of members differs from the live members."""
        ids = sorted(member.client_id for member in self.live_members)
        for broker in self.brokers:
            group = broker.broker.state.consumers.find(GROUP)
            if group is None or sorted(group.client_ids()) != ids:
                return True
        return False

    def _has_old_route(self, server: NameServerNode, topic: str) -> bool:
        """Return whether a name server gives other queues of a topic than the running brokers."""
        route = server.machine.routes.find_route(topic)
        given = {queues.broker_name: queues for queues in route.queue_datas} if route else {}
        for broker in self.brokers:
            known = broker.broker.state.topics.find(topic) if broker.process is not None else None
            queues = given.get(broker.name)
            if known is not None and (
                queues is None
                or queues.read_queue_nums != known.read_queue_nums
                or queues.write_queue_nums != known.write_queue_nums
            ):
                return True
        return False

    def find_old_route(self) -> str | None:
        """Return a name server that gives an old route of the group's topics, None for none."""
        for server in self.name_servers:
            for topic in (TOPIC, retry_topic(GROUP)):
                if server.process is None or self._has_old_route(server, topic):
                    return f"{server.address} gives an old route of {topic}"
        return None

    def are_producers_done(self) -> bool:
        """Return whether all messages were sent."""
        transactions_done = all(producer.is_done for producer in self.live_transactions)
        return transactions_done and all(producer.is_done for producer in self.producers)

    @property
    def live_transactions(self) -> list[TransactionHost]:
        """The running producers of transactions."""
        return [producer for producer in self.transactions if producer.process.is_alive]

    def find_undecided(self) -> str | None:
        """Return the half messages that wait for an outcome; without any, a wrong outcome."""
        for broker in self.brokers:
            state = broker.broker.state
            decided = state.offsets.find(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) or 0
            count = state.store.queues.max_offset(TRANS_HALF_TOPIC, 0)
            if decided < count:
                return f"{broker.name} has decided on {decided} of {count} half messages"
        return self.checkers.find_open_transaction()

    def heal(self) -> None:
        """End all faults: frozen processes go on, and stopped servers start."""
        self.trace.add("everything is healed")
        self.network.heal()
        self.workload.heal()
        self.pop_users.heal()
        for broker in self.brokers:
            if broker.has_failed:
                broker.stop()
            broker.let_write()
            broker.slow_lanes = ()
            broker.storage.mend()
            # Otherwise times that have begun would end after the run.
            broker.set_clock_right()
            if broker.process is None:
                broker.start()
            elif broker.process.is_frozen:
                broker.process.thaw()
        for server in self.name_servers:
            if server.process is None:
                server.start()
        for member in self.members:
            if member.process.is_alive and member.process.is_frozen:
                member.process.thaw()
        if not self.live_members:
            self.add_member()
        if self.has_changed_queues:
            # What stands in queues that are hidden is not lost.
            self.change_queues(max(self._queue_counts))
            self._run_while(lambda: self._is_operating)
        if self.transactions and not self.live_transactions:
            self.add_transactions(0)
