"""The brokers and their topics: the name server's whole knowledge.

The table is not on the disk: brokers register again every 30 s. The table drops a broker when its
connection closes or when the broker is silent for two minutes.

Any peer may register anything. A registration that contradicts a live broker is found before it
changes the table (`find_contradiction`); topics beyond a bound are left out.

Source: RouteInfoManager.java.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sparrowmq.protocol.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from sparrowmq.serving.connections import Connection

# RouteInfoManager.BROKER_CHANNEL_EXPIRED_TIME.
BROKER_EXPIRY_MS = 120_000
# BrokerConfig.registerNameServerPeriod is at most 60 s: a broker that is silent for longer may be
# gone, and another broker may take its name or its address.
BROKER_ALIVE_MS = 65_000
# The most queues of a topic on one broker; SparrowMQ's broker creates no topic with more.
QUEUES_PER_TOPIC_MAX = 65_536
BROKERS_PER_TOPIC_MAX = 1_024
BROKERS_MAX = 4_096
TOPICS_MAX = 200_000
# A route is a topic's queues on one broker, of about 300 bytes.
ROUTES_MAX = 2_000_000
# The topics that are entered in one step: about 4 ms.
TOPICS_PER_STEP = 4_096
# TopicValidator.RETRY_OR_DLQ_TOPIC_MAX_LENGTH of 5.x.
TOPIC_LENGTH_MAX = 255

# A connection's host is an address and a port.
_PORT_SIZE = 4


class BrokerIdentity(NamedTuple):
    """A broker's own statement of its cluster, name, id and address."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


class Registered(NamedTuple):
    """The result of a registration.

    Args:
        is_new: whether the broker was unknown.
        master_address: the master's address, for the answer to a slave.
        master_ha_address: the address at which the master serves replication, likewise.
        left_out: the topics that were not registered, each with the reason.
    """

    is_new: bool
    master_address: str | None = None
    master_ha_address: str | None = None
    left_out: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class _LiveBroker:
    identity: BrokerIdentity
    ha_address: str
    # None until all topics of a registration are entered: its repetition enters them then.
    data_version: DataVersion | None
    connection: Connection
    seen_ms: int


@dataclass(slots=True)
class _BrokerGroup:
    """The brokers of one name: a master and its slaves."""

    cluster_name: str
    addresses: dict[int, str] = field(default_factory=dict)


class RouteTable:
    """Brokers by name and address, and queues by topic."""

    def __init__(self) -> None:
        self._brokers: dict[str, _BrokerGroup] = {}
        self._live: dict[str, _LiveBroker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._route_count = 0

    def register(
        self,
        identity: BrokerIdentity,
        topics: TopicConfigTable,
        *,
        ha_address: str,
        connection: Connection,
        now_ms: int,
    ) -> Generator[None, None, Registered]:
        """Enter a broker's registration, which contradicts nothing.

        Only masters register topics, and only topics of a changed version are entered.

        Yields: after each TOPICS_PER_STEP topics. A later registration of the broker, or its end,
            leaves the rest out.
        """
        known = self._live.get(identity.address)
        if known is not None and known.identity.broker_name != identity.broker_name:
            # Another broker has this address now. Otherwise the former broker's entry would stay
            # forever.
            self._forget([known.identity])
        group = self._brokers.setdefault(identity.broker_name, _BrokerGroup(identity.cluster_name))
        group.cluster_name = identity.cluster_name
        for broker_id, address in list(group.addresses.items()):
            if address == identity.address and broker_id != identity.broker_id:
                del group.addresses[broker_id]
        is_first = group.addresses.get(identity.broker_id) != identity.address
        group.addresses[identity.broker_id] = identity.address
        version = topics.data_version
        left_out: list[str] = []
        live = _LiveBroker(identity, ha_address, version, connection, now_ms)
        self._live[identity.address] = live
        if identity.broker_id == MASTER_ID and (
            is_first or known is None or known.data_version != version
        ):
            live.data_version = None
            left_out = yield from self._take_topics(live, topics)
            live.data_version = version
        master_address = group.addresses.get(MASTER_ID)
        if identity.broker_id == MASTER_ID or master_address is None:
            return Registered(known is None, left_out=left_out)
        master = self._live.get(master_address)
        return Registered(
            known is None, master_address, None if master is None else master.ha_address
        )

    def find_contradiction(
        self, identity: BrokerIdentity, *, connection: Connection, now_ms: int
    ) -> str | None:
        """Return why a registration is refused, None if it is not.

        A live broker may change everything over its own connection. Over another connection, a
        registration must have the live broker's name, id and address, and come from its host.
        """
        if identity.address not in self._live and len(self._live) >= BROKERS_MAX:
            return f"there are {BROKERS_MAX} brokers, which is the limit"
        group = self._brokers.get(identity.broker_name)
        addresses = {} if group is None else group.addresses
        others = [
            self._live.get(identity.address),
            self._live.get(addresses.get(identity.broker_id, "")),
        ]
        if group is not None and group.cluster_name != identity.cluster_name:
            others += [self._live.get(address) for address in addresses.values()]
        for other in others:
            if other is None or other.connection is connection:
                continue
            is_same = other.identity == identity and is_same_host(other.connection, connection)
            if not is_same and now_ms - other.seen_ms < BROKER_ALIVE_MS:
                name, number = other.identity.broker_name, other.identity.broker_id
                return (
                    f"broker {name}:{number} of cluster {other.identity.cluster_name} at "
                    f"{other.identity.address} is alive, registered from {other.connection.address}"
                )
        return None

    def may_unregister(self, identity: BrokerIdentity, *, connection: Connection) -> bool:
        """Return whether a request comes from the host that registered the named broker."""
        live = self._live.get(identity.address)
        return live is None or is_same_host(live.connection, connection)

    def _take_topics(
        self, live: _LiveBroker, topics: TopicConfigTable
    ) -> Generator[None, None, list[str]]:
        left_out: list[str] = []
        broker_name = live.identity.broker_name
        for number, (name, topic) in enumerate(topics.topic_config_table.items(), 1):
            fault = self._find_topic_fault(broker_name, name, topic)
            if fault is not None:
                left_out.append(f"{name[:40]!r}: {fault}")
            else:
                queues = self._topics.setdefault(name, {})
                self._route_count += broker_name not in queues
                queues[broker_name] = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=topic.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums,
                    perm=topic.perm,
                    topic_sys_flag=topic.topic_sys_flag,
                )
            if number % TOPICS_PER_STEP == 0:
                yield
                if self._live.get(live.identity.address) is not live:
                    break
        return left_out

    def _find_topic_fault(self, broker_name: str, name: str, topic: TopicConfig) -> str | None:
        if len(name) > TOPIC_LENGTH_MAX:
            return f"its name has {len(name)} characters; the limit is {TOPIC_LENGTH_MAX}"
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= QUEUES_PER_TOPIC_MAX:
                return f"{count} queues; from 0 to {QUEUES_PER_TOPIC_MAX} are possible"
        brokers = self._topics.get(name)
        if brokers is None and len(self._topics) >= TOPICS_MAX:
            return f"there are {TOPICS_MAX} topics"
        if broker_name in (brokers or ()):
            return None
        if len(brokers or ()) >= BROKERS_PER_TOPIC_MAX:
            return f"{BROKERS_PER_TOPIC_MAX} brokers have the topic, which is the limit"
        if self._route_count >= ROUTES_MAX:
            return f"the topics of all brokers have {ROUTES_MAX} routes, which is the limit"
        return None

    def unregister(self, identity: BrokerIdentity) -> None:
        """Remove one broker, and the topics of its name with the last broker of the name.

        Differs from RocketMQ: a broker of another name or id at the address stays unchanged.
        """
        live = self._live.get(identity.address)
        if live is not None and live.identity[1:] == identity[1:]:
            self._forget([identity])

    def _forget(self, identities: Iterable[BrokerIdentity]) -> None:
        """Remove live brokers; the topics are gone through once, however many are removed."""
        gone: dict[str, None] = {}
        for identity in identities:
            del self._live[identity.address]
            group = self._brokers.get(identity.broker_name)
            if group is None or group.addresses.get(identity.broker_id) != identity.address:
                continue
            del group.addresses[identity.broker_id]
            if not group.addresses:
                del self._brokers[identity.broker_name]
                gone[identity.broker_name] = None
        names = gone.keys()
        hit = [each for each in self._topics.items() if not names.isdisjoint(each[1].keys())]
        for topic, queues in hit:
            for broker_name in names & queues.keys():
                del queues[broker_name]
                self._route_count -= 1
            if not queues:
                del self._topics[topic]

    def unregister_connection(self, connection: Connection) -> list[BrokerIdentity]:
        """Remove the brokers that registered over a connection, and return them."""
        lost = [live.identity for live in self._live.values() if live.connection is connection]
        self._forget(lost)
        return lost

    def expire(self, now_ms: int) -> list[tuple[BrokerIdentity, Connection]]:
        """Remove silent brokers, and return them with their connections."""
        silent = [
            (live.identity, live.connection)
            for live in self._live.values()
            if now_ms - live.seen_ms > BROKER_EXPIRY_MS
        ]
        self._forget(identity for identity, _ in silent)
        return silent

    def note_alive(self, address: str, *, now_ms: int) -> DataVersion | None:
        """Note that a broker is alive; return the version of its topics, None if unknown."""
        live = self._live.get(address)
        if live is None:
            return None
        live.seen_ms = now_ms
        return live.data_version

    def find_route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's route, or None."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = [name for name in sorted(queues) if name in self._brokers]
        if not names:
            return None
        return TopicRouteData(
            broker_datas=[self._broker_data(name) for name in names],
            queue_datas=[queues[name] for name in names],
        )

    def _broker_data(self, name: str) -> BrokerData:
        group = self._brokers[name]
        return BrokerData(
            cluster=group.cluster_name,
            broker_name=name,
            broker_addrs=dict(sorted(group.addresses.items())),
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._brokers):
            clusters.setdefault(self._brokers[name].cluster_name, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in sorted(self._brokers)},
            cluster_addr_table=clusters,
        )

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._topics)

    def flagged_topics(self, flag: int, *, without: int = 0) -> list[str]:
        """Return the topics whose system flag has one bit and not another, sorted."""
        return sorted(
            {
                topic
                for topic, queues in self._topics.items()
                for queue in queues.values()
                if queue.topic_sys_flag & (flag | without) == flag
            }
        )

    def topics_of_cluster(self, cluster_name: str) -> list[str]:
        """Return the topics that a cluster's brokers serve, sorted."""
        names = {n for n, group in self._brokers.items() if group.cluster_name == cluster_name}
        return sorted(t for t, queues in self._topics.items() if not names.isdisjoint(queues))

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are topics too, and some address."""
        names = {*self._brokers, *(g.cluster_name for g in self._brokers.values())}
        addresses = [a for g in self._brokers.values() for a in g.addresses.values()]
        return sorted(names), min(addresses, default=None)

    def delete_topic(self, topic: str, *, cluster_name: str | None = None) -> None:
        """Remove a topic, from all brokers or from those of one cluster."""
        queues = self._topics.get(topic, {})
        for name in list(queues):
            group = self._brokers.get(name)
            if cluster_name is None or group is None or group.cluster_name == cluster_name:
                del queues[name]
                self._route_count -= 1
        if not queues:
            self._topics.pop(topic, None)

    def set_write_perm(self, broker_name: str, *, may_write: bool) -> int:
        """Set or clear the write permission of all topics of a broker; return their number."""
        count = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is None:
                continue
            perm = PERM_READ | PERM_WRITE if may_write else queue.perm & ~PERM_WRITE
            queues[broker_name] = msgspec.structs.replace(queue, perm=perm)
            count += 1
        return count

    def broker_names(self) -> Iterable[str]:
        """Return the names of all brokers, sorted."""
        return sorted(self._brokers)


def is_same_host(one: Connection, other: Connection) -> bool:
    """Return whether two connections come from one host, from any ports."""
    return one.host[:-_PORT_SIZE] == other.host[:-_PORT_SIZE]
