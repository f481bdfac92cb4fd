"""The users that consume message by message: simple consumers, push consumers, and in order.

Each runs in a process of its own, which is killed or leaves after some time; then another comes.
Tests: test_pop_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparrowmq.calling.effects import Invoke, Operation, sleep
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.directory import Directory
from sparrowmq.client.member_events import begin_leaving
from sparrowmq.client.operations.pop import (
    PopSource,
    acknowledge,
    change_invisible,
    read_popped,
    receive,
)
from sparrowmq.client.operations.pop_loop import push_loop
from sparrowmq.client.operations.request import ask, make_request
from sparrowmq.client.operations.routes import get_broker_address
from sparrowmq.client.subscriber import Listener, RebalanceCallbacks, Subscriber
from sparrowmq.errors import SparrowError
from sparrowmq.model import ConsumeContext, MessageExt, MessageQueue
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.pop_handle import INIT_MIN, PopMessageRequestHeader
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import Later, SimulatedDriver
from sparrowmq.simulation.pop_ledger import MessagePlace
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.surroundings import Surroundings

POP_GROUP, ORDER_GROUP = "GID_pop", "GID_pop_order"
RETRIES_MAX = 2
# The mean life of a user's process, and the longest pause until the next one.
LIFE_MS, PAUSE_MS_MAX = 25_000, 3_000
INVISIBLE_MS = (300, 8_000)
WAIT_MS_MAX = 5_000
WORK_MS_MAX = 400
REST_MS_MAX = 3_000
# A number is drawn for each message: below these it is forgotten, returned, or gets another time;
# above the last, its user takes long.
FORGOTTEN, RETURNED, EXTENDED, SLOW = 0.1, 0.2, 0.35, 0.93
FAILING_SHARE = 0.15


def make_groups(addresses: list[str]) -> Operation[None]:
    """Make the groups, whose messages are dead letters soon."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for group in (POP_GROUP, ORDER_GROUP):
        body = SubscriptionGroupConfig(group_name=group, retry_max_times=RETRIES_MAX)
        for address in addresses:
            yield from ask(address, code, body=encode_body(body))


class PopUsers:
    """All users of a run.

    Args:
        dice: all choices are its.
        brokers: the names of the brokers.
    """

    def __init__(self, world: Surroundings, dice: Dice, *, topic: str, brokers: list[str]) -> None:
        self._world = world
        self._dice = dice
        self._topic = topic
        self._brokers = brokers
        self._is_healed = False
        self._number = 0

    def start(self, count: int) -> None:
        """Let users come: two simple consumers, one in order, and a push consumer, by turns."""
        kinds = (self._run_simple, self._run_in_order, self._run_push, self._run_simple)
        for number in range(count):
            self._come_in(self._dice.randrange(0, 3_000), kinds[number % len(kinds)])

    def heal(self) -> None:
        """Let users stay from now on, and acknowledge all messages."""
        self._is_healed = True

    def _come_in(self, delay_ms: int, run: Callable[[Process, SimulatedDriver], None]) -> None:
        self._world.timeline.call_in(delay_ms, partial(self._come, run))

    def _come(self, run: Callable[[Process, SimulatedDriver], None]) -> None:
        self._number += 1
        world = self._world
        process = world.start_process(f"popper-{self._number}", f"10.0.5.{self._number}")
        driver = SimulatedDriver(process, world.network, on_failure=world.checkers.note_failure)
        life_ms = int(self._dice.expovariate(1 / LIFE_MS))
        world.timeline.call_in(life_ms, partial(self._end, process, run))
        run(process, driver)

    def _end(self, process: Process, run: Callable[[Process, SimulatedDriver], None]) -> None:
        if self._is_healed or not process.is_alive:
            return
        self._world.trace.add(f"{process.name} is killed")
        self._go(process, run)

    def _go(self, process: Process, run: Callable[[Process, SimulatedDriver], None]) -> None:
        """End a user's process, and let another come in its place."""
        process.kill()
        self._world.network.drop_process(process)
        self._come_in(self._dice.randrange(50, PAUSE_MS_MAX), run)

    def _source(self, group: str) -> PopSource:
        directory = Directory(name_servers=self._world.make_name_servers())
        every = parse_subscription(self._topic, "*", sub_version=0)
        return PopSource(directory, group, {self._topic: every}, INIT_MIN)

    # --- simple consumers -------------------------------------------------------------------

    def _run_simple(self, process: Process, driver: SimulatedDriver) -> None:
        driver.start(self._consume(self._source(POP_GROUP)), name=process.name)

    def _consume(self, source: PopSource) -> Operation[None]:
        dice = self._dice
        while True:
            try:
                found = yield from receive(
                    source,
                    count_max=dice.randrange(1, 9),
                    invisible_ms=dice.randrange(*INVISIBLE_MS),
                    wait_ms=dice.randrange(0, WAIT_MS_MAX),
                )
                yield from self._handle(source, found)
                # Messages gather meanwhile, and are received and acknowledged together.
                yield from sleep(0 if self._is_healed else dice.randrange(0, REST_MS_MAX))
            except SparrowError:
                yield from sleep(dice.randrange(1, 1_000))

    def _handle(self, source: PopSource, found: list[MessageExt]) -> Operation[None]:
        dice, done = self._dice, list[MessageExt]()
        for message in found:
            fate = 1.0 if self._is_healed else dice.random()
            work_ms = INVISIBLE_MS[1] if fate > SLOW else WORK_MS_MAX
            yield from sleep(0 if self._is_healed else dice.randrange(0, work_ms))
            if FORGOTTEN <= fate < EXTENDED:
                message = yield from change_invisible(
                    source,
                    message,
                    invisible_ms=dice.randrange(*INVISIBLE_MS),
                    is_attempt=fate < RETURNED,
                )
            if fate >= RETURNED:
                done.append(message)
        size = dice.choice((1, 8))
        for at in range(0, len(done), size):
            yield from self._acknowledge(source, done[at : at + size])

    def _acknowledge(self, source: PopSource, messages: list[MessageExt]) -> Operation[None]:
        yield from acknowledge(source, messages)
        for message in messages:
            # A user relies on what the client says.
            place = MessagePlace(message.queue, message.queue_offset)
            self._world.checkers.pops[source.group].note_answered(place, is_ended=True)

    # --- push consumers ---------------------------------------------------------------------

    def _run_push(self, process: Process, driver: SimulatedDriver) -> None:
        subscriber = Subscriber(
            config=ConsumerConfig(
                group=POP_GROUP,
                client_id=f"{process.host}@{process.name}",
                balance="messages",
                start="first",
                consume_thread_count=self._dice.choice((1, 1, 4)),
                consume_message_batch_max_size=self._dice.choice((1, 1, 4)),
            ),
            name_servers=self._world.make_name_servers(),
            subscriptions={self._topic: parse_subscription(self._topic, "*", sub_version=0)},
            listener=self._make_listener(),
            callbacks=RebalanceCallbacks(),
            report=lambda _: None,
        )

        def left(_: object) -> None:
            if process.is_alive:
                self._world.trace.add(f"{process.name} has left")
                process.call_in(0, exit_process)

        def exit_process() -> None:
            driver.close()
            self._go(process, self._run_push)

        def leave() -> None:
            if not self._is_healed:
                begin_leaving(subscriber, now_ms=process.monotonic_ms())
                driver.turn()

        driver.start(push_loop(subscriber)(), name=process.name, on_done=left)
        process.call_in(int(self._dice.expovariate(1 / LIFE_MS)), leave)

    def _make_listener(self) -> Listener:
        def finish(is_failing: bool) -> None:
            if is_failing:
                raise ValueError("the listener does not like this message")

        def listener(messages: list[MessageExt], context: ConsumeContext) -> Later:
            is_failing = self._dice.random() < FAILING_SHARE and not self._is_healed
            duration_ms = 1 if self._is_healed else self._dice.randrange(0, 4 * WORK_MS_MAX)
            return Later(duration_ms, partial(finish, is_failing))

        return listener  # type: ignore[return-value]

    # --- in order ---------------------------------------------------------------------------

    def _run_in_order(self, process: Process, driver: SimulatedDriver) -> None:
        driver.start(self._consume_in_order(self._source(ORDER_GROUP)), name=process.name)

    def _consume_in_order(self, source: PopSource) -> Operation[None]:
        """Pop in order, as the gRPC service does for its clients."""
        dice = self._dice
        while True:
            broker_name = dice.choice(self._brokers)
            try:
                found = yield from self._pop_in_order(source, broker_name)
                # The others come again, with those behind them.
                count = len(found)
                if not self._is_healed and dice.random() < RETURNED:
                    count = dice.randrange(0, count + 1)
                for message in found[:count]:
                    yield from sleep(0 if self._is_healed else dice.randrange(0, WORK_MS_MAX // 4))
                    yield from self._acknowledge(source, [message])
            except SparrowError:
                yield from sleep(dice.randrange(1, 1_000))

    def _pop_in_order(self, source: PopSource, broker_name: str) -> Operation[list[MessageExt]]:
        queue = MessageQueue(self._topic, broker_name, -1)
        address = yield from get_broker_address(source.directory, queue)
        header = PopMessageRequestHeader(
            consumer_group=source.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=self._dice.randrange(1, 9),
            invisible_time_ms=self._dice.randrange(*INVISIBLE_MS),
            poll_time_ms=self._dice.randrange(0, WAIT_MS_MAX),
            # As our client does: the broker's own time.
            born_timestamp_ms=0,
            init_mode=source.init_mode,
            order=True,
        )
        request = make_request(RequestCode.POP_MESSAGE, header)
        reply: RemotingCommand = yield Invoke(address, request, WAIT_MS_MAX + 10_000)
        if reply.code != ResponseCode.SUCCESS:
            yield from sleep(100)
            return []
        return (yield from read_popped(source, reply, broker_name=broker_name, address=address))
