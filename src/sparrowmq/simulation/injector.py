"""Injects the faults of a scenario at random instants. Tests: test_mutations.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from sparrowmq.broker.host import RoundLane
from sparrowmq.model.names import retry_topic
from sparrowmq.simulation.cluster import GROUP, SimulatedCluster
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faults import TIMED_FAULTS
from sparrowmq.simulation.members import MemberHost
from sparrowmq.simulation.network import End
from sparrowmq.simulation.nodes import BrokerNode, NameServerNode, WriteMoment
from sparrowmq.simulation.process import Process
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY

V = TypeVar("V")
Strike: TypeAlias = Callable[["Injector"], str | None]

_MINUTE_MS = 60_000
MEMBERS_MAX = 6
# The most queues of the topic on each broker.
QUEUES_MAX = 10
# The most transactions of a producer that replaces a killed one.
TRANSACTIONS_MAX = 20
# The time for which the group's members do not learn of their retry topic: the first retries come.
RETRIES_HIDDEN_MS = 20_000
# From the end of a broker to its start, if members must still trust their locks.
SOON_MS = 50
# A clock of another speed gains or loses time in steps, each after this time.
SPEED_STEP_MS = 50


def _of(
    victims: Callable[[SimulatedCluster], Sequence[V]],
) -> Callable[[Callable[[Injector, V], str | None]], Strike]:
    """Draw a fault's victim; nothing happens if there is none."""

    def decorate(strike: Callable[[Injector, V], str | None]) -> Strike:
        def strike_one(injector: Injector) -> str | None:
            found = victims(injector.cluster)
            return strike(injector, injector.dice.choice(found)) if found else None

        return strike_one

    return decorate


_of_link = _of(lambda cluster: cluster.network.open_links())
_of_broker = _of(lambda cluster: [b for b in cluster.brokers if b.process is not None])
_of_member = _of(lambda cluster: cluster.live_members)


def _find_well_name_servers(cluster: SimulatedCluster) -> Sequence[NameServerNode]:
    """Return those that may fail: one at a time where newcomers must find their brokers."""
    now_ms, servers = cluster.timeline.now_ms, cluster.name_servers
    well = [s for s in servers if s.process is not None and s.behind_until_ms <= now_ms]
    return () if cluster.scenario.faults.are_graceful and len(well) < len(servers) else well


_of_name_server = _of(_find_well_name_servers)


class Injector:
    """Injects the faults of `Faults` until it is stopped.

    Args:
        make_dice: see `SimulatedCluster`; each kind of fault has its own dice.

    Attributes:
        struck: the number of times that each fault has happened.
    """

    def __init__(self, cluster: SimulatedCluster, make_dice: Callable[[str], Dice]) -> None:
        self.cluster = cluster
        self.struck: dict[str, int] = {}
        self._is_stopped = False
        self.dice: Dice = make_dice("faults")
        self._make_dice = make_dice

    def start(self) -> None:
        """Begin."""
        cluster = self.cluster
        faults = cluster.scenario.faults
        cluster.network.late_share = faults.delay
        cluster.network.late_ms_max = faults.delay_ms_max
        for name in TIMED_FAULTS:
            rate: float = getattr(faults, name)
            if rate > 0:
                self._plan(name, rate, self._make_dice(f"fault {name}"))
        if faults.late_retry_topic:
            self._hide_retry_topic()

    def stop(self) -> None:
        """Inject no further faults; `SimulatedCluster.heal` ends those under way."""
        self._is_stopped = True

    def _hide_retry_topic(self) -> None:
        """Kill the name servers once a broker has made the group's retry topic."""
        cluster, topic = self.cluster, retry_topic(GROUP)
        if self._is_stopped:
            return
        if not any(broker.broker.state.topics.find(topic) for broker in cluster.brokers):
            cluster.timeline.call_in(1, self._hide_retry_topic)
            return
        for server in cluster.name_servers:
            if server.process is not None:
                server.kill()
                cluster.trace.add(f"{server.address} is killed before it knows the retry topic")
                self._later(RETRIES_HIDDEN_MS, partial(_start_name_server, server))

    def _plan(self, name: str, rate: float, dice: Dice) -> None:
        delay_ms = int(dice.expovariate(rate / _MINUTE_MS))
        self.cluster.timeline.call_in(delay_ms, partial(self._strike, name, rate, dice))

    def _strike(self, name: str, rate: float, dice: Dice) -> None:
        if self._is_stopped:
            return
        self.dice = dice
        strike: Callable[[], str | None] = getattr(self, f"_{name}")
        done = strike()
        if done is not None:
            self.struck[name] = self.struck.get(name, 0) + 1
            self.cluster.trace.add(done)
        self._plan(name, rate, dice)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Undo a fault later, unless the heal has ended it."""

        def undo() -> None:
            if not self._is_stopped:
                action()

        self.cluster.timeline.call_in(delay_ms, undo)

    # --- the network ------------------------------------------------------------------------

    @_of_link
    def _reset(self, end: End) -> str | None:
        self.cluster.network.reset(end)
        return f"reset {end.process.name} - {end.peer.process.name}"

    @_of_link
    def _half_open(self, end: End) -> str | None:
        names = f"{end.process.name} - {end.peer.process.name}"
        noticed_by = self.dice.choice((end, end.peer, None))
        noticed = "nobody" if noticed_by is None else noticed_by.process.name
        mute_ms = self.dice.choice((0, 5_000, 60_000))
        self.cluster.network.half_open(end, noticed_by=noticed_by, mute_ms=mute_ms)
        return f"half-open {names}, noticed by {noticed}"

    def _refused_connect(self) -> str:
        source, target = self._draw_path()
        self.cluster.network.refuse(source, target, duration_ms=self.dice.randrange(100, 20_000))
        return f"{target} refuses {source}"

    def _partition(self) -> str:
        source, target = self._draw_path()
        if self.dice.random() < 0.5:
            source, target = target, source
        duration_ms = self.dice.randrange(100, 60_000)
        self.cluster.network.cut(source, target, duration_ms=duration_ms)
        return f"nothing comes from {source} to {target} for {duration_ms} ms"

    def _draw_path(self) -> tuple[str, str]:
        """Return a client's host and a server's."""
        cluster = self.cluster
        servers = [broker.host for broker in cluster.brokers]
        clients = [member.process.host for member in cluster.live_members]
        clients += [producer.process.host for producer in cluster.producers]
        clients += [producer.process.host for producer in cluster.live_transactions]
        if self.dice.random() < 0.2:
            source, hosts = self.dice.choice([*clients, *servers]), cluster.name_servers
            return source, hosts[0].host if len(hosts) == 1 else self.dice.choice(hosts).host
        return self.dice.choice(clients), self.dice.choice(servers)

    # --- servers ----------------------------------------------------------------------------

    def _restart_later(self, broker: BrokerNode) -> None:
        self._later(self.dice.choice((SOON_MS, 1_000, 20_000)), partial(self._start, broker))

    def _start(self, broker: BrokerNode) -> None:
        if broker.process is None:
            self.cluster.trace.add(f"{broker.name} starts")
            broker.storage.mend()
            broker.start()

    @_of_broker
    def _broker_kill(self, broker: BrokerNode) -> str | None:
        broker.kill()
        self._restart_later(broker)
        return f"{broker.name} is killed"

    @_of_broker
    def _broker_stop(self, broker: BrokerNode) -> str | None:
        if broker.process is None or broker.process.is_frozen:
            return None
        broker.stop()
        self._restart_later(broker)
        return f"{broker.name} is stopped"

    @_of_broker
    def _broker_power_cut(self, broker: BrokerNode) -> str | None:
        broker.power_off()
        self._restart_later(broker)
        return f"{broker.name} loses power"

    @_of_broker
    def _write_power_cut(self, broker: BrokerNode) -> str | None:
        dice = self.dice

        def end() -> None:
            broker.power_off()
            self.cluster.trace.add(f"{broker.name} loses power while it writes")
            self._later(dice.choice((SOON_MS, 1_000)), partial(self._start, broker))

        broker.end_while_writing(end, dice.choice(list(WriteMoment)))
        return f"{broker.name} is to lose power while it writes"

    @_of_broker
    def _write_kill(self, broker: BrokerNode) -> str | None:
        def end() -> None:
            broker.kill()
            self.cluster.trace.add(f"{broker.name} is killed while it writes")
            self._later(SOON_MS, partial(self._start, broker))
            # With synchronous flush, what the start has served must be on the disk by now.
            self._later(SOON_MS + 1, partial(self._lose_power_again, broker))

        broker.end_while_writing(end)
        return f"{broker.name} is to be killed while it writes"

    def _lose_power_again(self, broker: BrokerNode) -> None:
        if broker.process is not None:
            self.cluster.trace.add(f"{broker.name} loses power soon after its start")
            broker.power_off()
            self._later(SOON_MS, partial(self._start, broker))

    @_of_broker
    def _locks_lost(self, broker: BrokerNode) -> str | None:
        if broker.storage.sync_error is not None:
            return None
        broker.kill()
        broker.forget_locks()
        self._later(SOON_MS, partial(self._start, broker))
        return f"{broker.name} is killed and loses its locks"

    @_of_broker
    def _broker_freeze(self, broker: BrokerNode) -> str | None:
        if broker.process is None or broker.process.is_frozen:
            return None
        process = broker.process
        process.freeze()
        duration_ms = self.dice.choice((500, 8_000, 40_000))
        self._later(duration_ms, process.thaw)
        return f"{broker.name} stands still for {duration_ms} ms"

    @_of_name_server
    def _name_server_kill(self, server: NameServerNode) -> str | None:
        server.kill()
        delay_ms = self.dice.choice((50, 5_000, 20_000))
        self._later(delay_ms, partial(_start_name_server, server))
        return f"name server {server.address} is killed"

    @_of_name_server
    def _name_server_away(self, server: NameServerNode) -> str | None:
        server.power_off()
        delay_ms = self.dice.randrange(5_000, 60_000)
        self._later(delay_ms, partial(_start_name_server, server))
        return f"name server {server.address} is away for {delay_ms} ms"

    @_of_name_server
    def _name_server_behind(self, server: NameServerNode) -> str | None:
        network, duration_ms = self.cluster.network, self.dice.randrange(5_000, 60_000)
        for broker in self.cluster.brokers:
            network.cut(broker.host, server.host, duration_ms=duration_ms)
        server.behind_until_ms = self.cluster.timeline.now_ms + duration_ms
        return f"name server {server.address} gets nothing from brokers for {duration_ms} ms"

    def _queues_grow(self) -> str | None:
        return self._change_queues(self.cluster.queue_count + self.dice.randrange(1, 4))

    def _queues_shrink(self) -> str | None:
        return self._change_queues(self.cluster.queue_count - self.dice.randrange(1, 4))

    def _change_queues(self, count: int) -> str | None:
        count = min(max(count, 1), QUEUES_MAX)
        if count == self.cluster.queue_count:
            return None
        self.cluster.change_queues(count)
        return f"the topic is to have {count} queues on each broker"

    @_of_broker
    def _disk_slow(self, broker: BrokerNode) -> str | None:
        files = (RoundLane.SAVE, RoundLane.JOURNAL)
        log = (RoundLane.FLUSH,)
        lanes = self.dice.choice((tuple(RoundLane), log, log, files))
        broker.slow_lanes = lanes

        def end() -> None:
            broker.slow_lanes = ()

        self._later(self.dice.randrange(1_000, 20_000), end)
        slow = " ".join(lane.value for lane in lanes)
        return f"the disk of {broker.name} is slow ({slow})"

    @_of_broker
    def _disk_full(self, broker: BrokerNode) -> str | None:
        broker.storage.is_full = True

        def end() -> None:
            broker.storage.is_full = False

        self._later(self.dice.randrange(1_000, 20_000), end)
        return f"the disk of {broker.name} is full"

    @_of_broker
    def _expiry(self, broker: BrokerNode) -> str | None:
        if len(broker.storage.list_names(COMMIT_LOG_DIRECTORY)) < 2:
            return None
        broker.expire_file()
        return f"{broker.name} removes the oldest file of its log"

    @_of_broker
    def _disk_failure(self, broker: BrokerNode) -> str | None:
        if broker.storage.is_failing:
            return None
        broker.storage.fail()

        def replace() -> None:
            if broker.process is not None:
                broker.power_off()
            self._restart_later(broker)

        self._later(self.dice.randrange(1_000, 10_000), replace)
        return f"the disk of {broker.name} fails"

    @_of_broker
    def _sync_failure(self, broker: BrokerNode) -> str | None:
        if broker.storage.is_failing:
            return None
        broker.storage.fail(is_lasting=False)

        def start_again() -> None:
            if broker.process is not None and not broker.process.is_frozen:
                broker.stop()
            self._start(broker)

        self._later(self.dice.randrange(1_000, 10_000), start_again)
        return f"a sync of {broker.name} is to fail"

    @_of_broker
    def _broker_clock_jump(self, broker: BrokerNode) -> str:
        # Further back, times that have begun would end after the run.
        jump_ms = self.dice.choice((-5_000, -500, 500, 5_000, 3_600_000))
        broker.jump_clock(jump_ms)
        return f"the clock of {broker.name} jumps by {jump_ms} ms"

    @_of_broker
    def _broker_clock_back(self, broker: BrokerNode) -> str:
        back_ms = self.dice.choice((60_000, 3_600_000))
        broker.jump_clock(-back_ms)
        self._later(self.dice.randrange(1_000, 60_000), broker.set_clock_right)
        return f"the clock of {broker.name} is set back by {back_ms} ms"

    def _clock_speed(self) -> str:
        running = [broker for broker in self.cluster.brokers if broker.process is not None]
        nodes: list[BrokerNode | Process] = [*running, *self._clients()]
        node = self.dice.choice(nodes)
        percent = self.dice.choice((50, 90, 110, 200))
        left_ms = self.dice.randrange(1_000, 20_000)
        gain_ms = (percent - 100) * SPEED_STEP_MS // 100

        def step() -> None:
            nonlocal left_ms
            node.jump_clock(gain_ms)
            left_ms -= SPEED_STEP_MS
            if left_ms > 0:
                self._later(SPEED_STEP_MS, step)

        step()
        return f"the clock of {node.name} runs at {percent} % of its speed"

    # --- clients ----------------------------------------------------------------------------

    @_of_member
    def _member_crash(self, member: MemberHost) -> str | None:
        member.kill()
        self._later(self.dice.choice((100, 5_000, 30_000)), self.cluster.add_member)
        return f"{member.name} is killed"

    @_of_member
    def _member_power_cut(self, member: MemberHost) -> str | None:
        member.power_off()
        return f"{member.name} loses power"

    @_of_member
    def _member_freeze(self, member: MemberHost) -> str | None:
        if member.process.is_frozen:
            return None
        member.process.freeze()
        duration_ms = self.dice.choice((500, 15_000, 70_000, 180_000))
        self._later(duration_ms, member.process.thaw)
        return f"{member.name} stands still for {duration_ms} ms"

    def _producer_crash(self) -> str | None:
        cluster = self.cluster
        if not cluster.live_transactions:
            return None
        producer = self.dice.choice(cluster.live_transactions)
        producer.kill()
        count = self.dice.randrange(0, TRANSACTIONS_MAX)
        delay_ms = self.dice.choice((100, 5_000, 20_000))
        self._later(delay_ms, partial(cluster.add_transactions, count))
        return f"{producer.process.name} is killed"

    def _member_join(self) -> str | None:
        if len(self.cluster.live_members) >= MEMBERS_MAX:
            return None
        self.cluster.add_member()
        return "that was one more"

    @_of_member
    def _member_leave(self, member: MemberHost) -> str | None:
        member.leave()
        return f"{member.name} leaves"

    def _client_clock_jump(self) -> str:
        process = self.dice.choice(self._clients())
        jump_ms = self.dice.choice((-86_400_000, -5_000, 5_000, 86_400_000))
        process.jump_clock(jump_ms)
        return f"the clock of {process.name} jumps by {jump_ms} ms"

    def _clients(self) -> list[Process]:
        """Return the processes of members and producers."""
        cluster = self.cluster
        processes = [member.process for member in cluster.live_members]
        processes += [producer.process for producer in cluster.producers]
        return processes + [producer.process for producer in cluster.live_transactions]


def _start_name_server(server: NameServerNode) -> None:
    if server.process is None:
        server.start()
