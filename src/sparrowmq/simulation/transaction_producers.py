"""Producers of transactions: half messages, late outcomes, answers to brokers.

Tests: test_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from sparrowmq.calling.effects import Answer, Operation, sleep
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.transactions import end, send_half, serve
from sparrowmq.client.transaction_outcomes import Coordinator, note_broker_lost, note_question
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageExt, TransactionState
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import Later, SimulatedDriver
from sparrowmq.simulation.members import make_publisher
from sparrowmq.simulation.surroundings import Surroundings

GROUP = "GID_transactions"
# The questions of a run's brokers: often enough to bridge most faults before the heal ends.
TIMEOUT_MS, CHECK_INTERVAL_MS, CHECKS_MAX = 3_000, 4_000, 9
# A round that comes soon ends before copies of messages that ended meanwhile: fresh ones precede.
SHORT_INTERVAL_MS = 500
assert SHORT_INTERVAL_MS < TIMEOUT_MS < CHECK_INTERVAL_MS
# The longest time of a user's decision: a third of the ends cross a broker's question.
LOCAL_MS_MAX = 3 * TIMEOUT_MS // 2
ANSWER_MS_MAX = 300
# A producer's transactions come in lanes, each with the next few as soon as its last have ended.
LANES = 2
AT_ONCE_MAX = 4
OUTCOMES = (TransactionState.COMMIT, TransactionState.COMMIT, TransactionState.ROLLBACK)
# The share of transactions that their producer leaves to the brokers' questions, and the most
# questions that get UNKNOWN.
_LATE_SHARE = 0.4
_UNKNOWN_TIMES_MAX = 3
# The questions that come before the decision get UNKNOWN too.
_EARLY_TIMES_MAX = (LOCAL_MS_MAX - TIMEOUT_MS) // SHORT_INTERVAL_MS + 1
assert _EARLY_TIMES_MAX + _UNKNOWN_TIMES_MAX < CHECKS_MAX


class TransactionHost:
    """A machine with one producer of transactions, which answers brokers until it is killed."""

    def __init__(
        self,
        name: str,
        host: str,
        world: Surroundings,
        dice: Dice,
    ) -> None:
        self.process = world.start_process(name, host)
        self.is_done = False
        self._network, self._checkers = world.network, world.checkers
        self._dice = dice
        self._coordinator = Coordinator(
            publisher=make_publisher(GROUP, self.process, world, dice),
            check=self._check,  # type: ignore[arg-type]
            report=lambda _: None,
        )
        self._driver = SimulatedDriver(
            self.process,
            world.network,
            on_failure=world.checkers.note_failure,
            on_request=self._serve,
            on_connection_lost=self._note_connection_lost,
        )

    def start(self, topic: str, *, count: int, pause_ms_max: int) -> None:
        """Begin transactions, and answer the brokers' questions from now on."""
        name = self.process.name
        self._driver.start(serve(self._coordinator), name=f"questions to {name}")
        sending = self._transact_all(topic, count, pause_ms_max)
        self._driver.start(sending, name=name, on_done=self._end)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._network.drop_process(self.process)

    def _end(self, _: object) -> None:
        self.is_done = True

    def _serve(self, address: str, request: RemotingCommand) -> Answer:
        note_question({GROUP: self._coordinator}, address, request)
        return None

    def _note_connection_lost(self, address: str) -> None:
        now_ms = self.process.monotonic_ms()
        note_broker_lost({GROUP: self._coordinator}, address, now_ms=now_ms)

    def _check(self, message: MessageExt) -> Later:
        now_ms = self.process.monotonic_ms()
        self._checkers.ledger.note_question(message.msg_id, now_ms=now_ms)
        answer = partial(self._checkers.ledger.answer, message.body)
        return Later(self._dice.randrange(0, ANSWER_MS_MAX), answer)

    def _transact_all(self, topic: str, count: int, pause_ms_max: int) -> Operation[None]:
        # Fresh messages stand before the copies of those of another lane, which brokers ask about.
        numbers = iter(range(count))
        lanes = [self._transact_some(topic, numbers, LANES * pause_ms_max) for _ in range(LANES)]
        yield from gather(lanes, name="lanes")

    def _transact_some(
        self, topic: str, numbers: Iterator[int], pause_ms_max: int
    ) -> Operation[None]:
        dice = self._dice
        while True:
            yield from sleep(dice.randrange(0, pause_ms_max))
            some = [*islice(numbers, dice.randrange(1, AT_ONCE_MAX + 1))]
            if not some:
                return
            bodies = [f"{self.process.name}-{number}".encode() for number in some]
            transactions = [self._transact(Message(topic, body)) for body in bodies]
            yield from gather(transactions, name="transactions")

    def _transact(self, message: Message) -> Operation[None]:
        """Send a half message and decide on the outcome; end it, or wait for a question."""
        dice, checkers, payload = self._dice, self._checkers, message.body
        # All dice are thrown first: the duration of an answer changes no later choice.
        local_ms, outcome = dice.randrange(0, LOCAL_MS_MAX), dice.choice(OUTCOMES)
        is_late = dice.random() < _LATE_SHARE
        unknown_times = dice.randrange(0, _UNKNOWN_TIMES_MAX + 1) if is_late else 0
        checkers.note_begun(payload)
        try:
            half = yield from send_half(self._coordinator, message)
        except SparrowError:
            # The user gives up; the half message may be stored, and stays undecided.
            return
        checkers.ledger.note_half(payload)
        yield from sleep(local_ms)
        checkers.ledger.decide(payload, outcome, unknown_times=unknown_times)
        if is_late:
            return
        ended = yield from end(self._coordinator, half, outcome)
        if ended is outcome:
            broker_name = half.queue.broker_name
            checkers.ledger.note_ended(payload, outcome, broker_name, half.half_offset)
