"""The clients of a simulated cluster: producers, and the members of the group.

A member has the parts of a `PushConsumer` (`client/assembly.py`, `client/faces/aio.py`): a
subscriber, the operation `consume`, and a driver. The driver here is the simulated one.
Tests: test_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparrowmq.calling.effects import Answer, Operation
from sparrowmq.client.config import ConsumerConfig, ProducerConfig
from sparrowmq.client.member_events import begin_leaving, note_connection_lost, serve_request
from sparrowmq.client.operations.member_loop import run_member
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.subscriber import (
    AllocationFailed,
    Listener,
    Notice,
    RebalanceCallbacks,
    Subscriber,
)
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.membership.actions import (
    AssignmentChanged,
    CommitLost,
    DrainTimedOut,
    DuplicateClientId,
    NotListed,
    OffsetCorrected,
    OffsetReset,
    QueueLost,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import SimulatedDriver
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.sends import Sends
from sparrowmq.simulation.surroundings import Surroundings
from sparrowmq.simulation.workload import RunningCalls, Workload, make_listener


class MemberHost:
    """A machine with one member of the group.

    Args:
        name: the member's name in traces.
        host: the machine's address.
        config: the consumer's settings.
    """

    def __init__(
        self,
        name: str,
        host: str,
        config: ConsumerConfig,
        world: Surroundings,
        *,
        topic: str,
        workload: Workload,
    ) -> None:
        self.name = name
        self.client_id = config.client_id
        self.is_leaving = False
        self.is_dark = False
        self.has_reported_duplicate = False
        self._network, self._checkers, self._trace = world.network, world.checkers, world.trace
        # The listener's calls under way, with their queues; and the calls of queues given up.
        self._running: RunningCalls = {}
        self._forgiven: set[object] = set()
        self.process = world.start_process(name, host)
        self.begun_ms = world.timeline.now_ms
        timestamp_ms = self.process.timestamp_ms()
        topics = (topic, retry_topic(config.group))
        listener: Listener = make_listener(  # type: ignore[assignment]
            workload, self._running, self.process.monotonic_ms, self._check_asked
        )
        self.subscriber = Subscriber(
            config=config,
            name_servers=world.make_name_servers(),
            subscriptions={t: parse_subscription(t, "*", sub_version=timestamp_ms) for t in topics},
            listener=listener,
            callbacks=RebalanceCallbacks(),
            report=self._report,
        )
        self._consumers = {config.group: self.subscriber}
        self._driver = SimulatedDriver(
            self.process,
            world.network,
            on_failure=world.checkers.note_failure,
            on_request=self._serve,
            on_connection_lost=self._note_connection_lost,
        )

    @property
    def is_live(self) -> bool:
        """Whether the process runs or is frozen, and the member stays in the group."""
        return self.process.is_alive and not self.is_leaving

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that the member has now."""
        return self.subscriber.member.assigned

    def start(self) -> None:
        """Join the group."""
        self._driver.start(
            run_member(self.subscriber), name=f"consume of {self.name}", on_done=self._end
        )

    def leave(self) -> None:
        """Close the consumer gracefully."""
        self.is_leaving = True
        self.process.enter(self._leave)

    def _leave(self) -> None:
        begin_leaving(self.subscriber, now_ms=self.process.monotonic_ms())
        self._driver.turn()

    def _end(self, _: object) -> None:
        self.check()
        self._trace.add(f"{self.name} has left")
        self.process.call_in(0, self._exit)

    def _exit(self) -> None:
        self._driver.close()
        self.process.kill()
        self._network.drop_process(self.process)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._network.drop_process(self.process)

    def power_off(self) -> None:
        """Cut the machine's power."""
        self.is_dark = True
        self.process.kill()
        self._network.power_off(self.process)

    def check(self) -> None:
        """Check the invariants of this member alone; the caller calls after every event."""
        if self._running and self.process.is_alive:
            running = [
                call.queue for key, call in self._running.items() if key not in self._forgiven
            ]
            self._checkers.check_release(self.name, self.subscriber.member, running)

    def _check_asked(self, queue: MessageQueue) -> None:
        process = self.process
        if process.still_ms >= MARKED_LEASE_MS:
            self._checkers.check_asked(process.host, queue, woken_ms=process.woken_ms)

    def _serve(self, _: str, request: RemotingCommand) -> Answer:
        return serve_request(
            self._consumers,
            request,
            now_ms=self.process.monotonic_ms(),
            timestamp_ms=self.process.timestamp_ms(),
        )

    def _note_connection_lost(self, address: str) -> None:
        note_connection_lost(self._consumers, address, now_ms=self.process.monotonic_ms())

    def _check_drain(self, queue: MessageQueue) -> None:
        for call in self._running.values():
            if call.queue == queue:
                self._checkers.check_drain(
                    self.name,
                    queue,
                    waited_ms=self.process.monotonic_ms() - call.begun_ms,
                    bound_ms=self.subscriber.config.drain_timeout_ms,
                )

    def _check_planned(self, share: Sequence[MessageQueue]) -> None:
        subscriber = self.subscriber
        topics = subscriber.member.topics
        if subscriber.plan is None or not topics:
            return
        history = subscriber.member.history
        # Those that were divided: a route may have come since. The queues of a broker that is
        # silent stay with their owners for a while.
        queues = frozenset(
            queue
            for topic in topics
            for queue in history.queues(topic)
            if not history.silence_of(queue.broker_name)
        )
        self._checkers.plans.check_share(
            self.client_id,
            [queue for queue in share if queue in queues],
            known=subscriber.plan,
            # A topic's list may be newer than another's.
            cid_all=[history.members(topic) for topic in sorted(topics)],
            queues=queues,
        )

    def _forgive(self, queue: MessageQueue) -> None:
        """Allow the listener's calls of a queue to go on although the queue is not held."""
        self._checkers.note_given_up(queue)
        self._forgiven.update(key for key, call in self._running.items() if call.queue == queue)

    def _report(self, notice: Notice) -> None:
        self._checkers.notices[f"{type(notice).__name__} notices"] += 1
        if isinstance(notice, AssignmentChanged):
            shown = " ".join(_short(queue) for queue in notice.assigned) or "nothing"
            self._trace.add(f"{self.name} has {shown}")
            self._check_planned(notice.assigned)
        elif isinstance(notice, AllocationFailed):
            self._checkers.note_failure(f"{self.name}'s strategy", notice.error)
        elif isinstance(notice, DuplicateClientId):
            self.has_reported_duplicate = True
            self._trace.add(f"{self.name} is listed {notice.times_listed} times")
        elif isinstance(notice, DrainTimedOut):
            self._check_drain(notice.queue)
            self._forgive(notice.queue)
            self._trace.add(f"{self.name} gave {_short(notice.queue)} up while its listener ran")
        elif isinstance(notice, QueueLost):
            # Another member may have the queue; this member does not wait for a listener then.
            self._forgive(notice.queue)
            self._trace.add(f"{self.name} lost the lock of {_short(notice.queue)}")
        elif isinstance(notice, OffsetCorrected):
            if notice.corrected_offset < notice.wanted_offset:
                # The broker has lost messages: the queue begins anew, as one with a lost lock.
                self._forgive(notice.queue)
            self._trace.add(f"{self.name}: {notice!r}")
        elif isinstance(notice, CommitLost | NotListed | OffsetReset):
            self._trace.add(f"{self.name}: {notice!r}")


class ProducerHost:
    """A machine with one producer."""

    def __init__(
        self,
        name: str,
        host: str,
        world: Surroundings,
        dice: Dice,
        *,
        find_queues: Callable[[], Sequence[Sequence[MessageQueue]]],
    ) -> None:
        self.process = world.start_process(name, host)
        self.is_done = False
        publisher = make_publisher("GID_producers", self.process, world, dice)
        checkers = world.checkers
        self._driver = SimulatedDriver(
            self.process, world.network, on_failure=checkers.note_failure
        )
        self._sends = Sends(publisher, self._driver, find_queues, checkers, dice)

    def start(self, make: Callable[[Sends], Operation[int]]) -> None:
        """Start the operation that sends."""
        self._driver.start(make(self._sends), name=self.process.name, on_done=self._end)

    def _end(self, _: object) -> None:
        self.is_done = True


def make_publisher(group: str, process: Process, world: Surroundings, dice: Dice) -> Publisher:
    """Return the publisher of a process."""
    return Publisher(
        config=ProducerConfig(group=group, client_id=f"{process.host}@{process.name}"),
        name_servers=world.make_name_servers(),
        ids=UniqIdGenerator(
            bytes(map(int, process.host.split("."))),
            dice.randrange(1, 1 << 16),
            process_number=dice.randrange(0, 1 << 32),
            counter=dice.randrange(0, 1 << 16),
        ),
        selector=QueueSelector(partial(dice.randrange, 0, 1 << 10)),
    )


def _short(queue: MessageQueue) -> str:
    prefix = "retry-" if queue.topic.startswith("%") else ""
    return f"{prefix}{queue.broker_name}:{queue.queue_id}"
