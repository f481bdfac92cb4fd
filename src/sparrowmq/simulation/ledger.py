"""The users' database of transactions, and the rules that brokers must keep for them.

A transaction begins with a half message. Its user decides on the outcome once and keeps the outcome
here, where every producer of the group finds it when a broker asks. If the producer is killed
before the decision, the transaction stays undecided.

1. A message is in its topic only if its user decided to commit.
2. A message whose commit a broker confirmed is stored at least once (and `Checkers` demands its
   consumption).
3. A half message whose end a broker confirmed is not discarded as undecided later. Where an
   acknowledgement was lost, the transaction has another half message, here or at another broker.
4. At the end, every undecided message is discarded. Every message to commit is stored, or was
   discarded after the limit of questions without an answer.
5. In a run without faults, every message to commit is stored exactly once, and a broker that has
   got a transaction's end asks for its outcome no more. Tests: test_checkers.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from sparrowmq.model import MessageQueue, TransactionState
from sparrowmq.model.message import PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET
from sparrowmq.model.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from sparrowmq.protocol.properties import find_property

_COMMIT = TransactionState.COMMIT
# How long a question may be under way while the end that it asks for arrives.
QUESTION_MS_MAX = 1_000


class TransactionLedger:
    """All transactions, their outcomes, and the brokers' copies of their messages.

    Args:
        fail: called with a violation.
        is_calm: whether nothing fails in this run.
    """

    def __init__(self, fail: Callable[[str], None], *, is_calm: bool) -> None:
        self._fail = fail
        self._is_calm = is_calm
        # By payload; UNKNOWN means undecided.
        self._outcomes: dict[bytes, TransactionState] = {}
        # The further questions that are answered by UNKNOWN although the outcome is decided.
        self._unknown_left: dict[bytes, int] = {}
        self._acked: set[bytes] = set()
        # The ends that brokers confirmed, which broker, and the offset of the half message there.
        self._ended: dict[bytes, tuple[TransactionState, str, int]] = {}
        # By message id, when a broker got the end.
        self._end_ms: dict[str, int] = {}
        # The transactions of which a broker may have lost a part.
        self._torn: set[bytes] = set()
        self._stored: Counter[bytes] = Counter()
        self._put_away: set[bytes] = set()

    @property
    def half_count(self) -> int:
        """The number of acknowledged half messages."""
        return len(self._acked)

    @property
    def committed(self) -> list[bytes]:
        """The messages with a commit that a broker confirmed."""
        return [payload for payload, (outcome, *_) in self._ended.items() if outcome is _COMMIT]

    @property
    def reached(self) -> dict[str, int]:
        """How often each of the ends of transactions came about."""
        return {
            "transactions committed": len(self.committed),
            "transactions rolled back": len(self._ended) - len(self.committed),
            "transactions discarded": len(self._put_away),
        }

    # --- users ------------------------------------------------------------------------------

    def begin(self, payload: bytes) -> None:
        """Note that a producer is about to send a half message."""
        self._outcomes[payload] = TransactionState.UNKNOWN

    def note_half(self, payload: bytes) -> None:
        """Note the acknowledgement of a half message."""
        if payload not in self._torn:
            self._acked.add(payload)

    def decide(self, payload: bytes, outcome: TransactionState, *, unknown_times: int) -> None:
        """Decide on a transaction; the first `unknown_times` questions still get UNKNOWN."""
        self._outcomes[payload] = outcome
        self._unknown_left[payload] = unknown_times

    def answer(self, payload: bytes) -> TransactionState:
        """Answer a broker's question for the outcome."""
        outcome = self._outcomes.get(payload)
        if outcome is None:
            self._fail(f"{payload!r}: its outcome is asked for, and nobody has sent it")
            return TransactionState.UNKNOWN
        left = self._unknown_left.get(payload, 0)
        self._unknown_left[payload] = max(0, left - 1)
        return TransactionState.UNKNOWN if left else outcome

    def note_ended(
        self, payload: bytes, outcome: TransactionState, broker_name: str, half_offset: int
    ) -> None:
        """Note that a broker has confirmed the end of a half message to its producer."""
        if payload not in self._torn:
            self._ended[payload] = outcome, broker_name, half_offset

    def note_question(self, msg_id: str, *, now_ms: int) -> None:
        """Note that a broker's question for a transaction's outcome has arrived."""
        end_ms = self._end_ms.get(msg_id)
        if self._is_calm and end_ms is not None and now_ms - end_ms > QUESTION_MS_MAX:
            self._fail(f"{msg_id}: its outcome is asked for {now_ms - end_ms} ms after its end")

    # --- brokers ----------------------------------------------------------------------------

    def note_end(self, msg_id: str, *, now_ms: int) -> None:
        """Note that a broker gets the end of a transaction, with a decision."""
        self._end_ms.setdefault(msg_id, now_ms)

    def note_copy(self, queue: MessageQueue, payload: bytes, properties: str) -> None:
        """Note a broker's message in any topic, of a transaction or not."""
        topic, outcome = queue.topic, self._outcomes.get(payload)
        if outcome is None or topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            return
        if topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)):
            # A group could not consume it.
            return
        if topic == TRANS_CHECK_MAX_TIME_TOPIC:
            self._put_away.add(payload)
            if payload in self._ended:
                outcome, broker_name, half_offset = self._ended[payload]
                first = find_property(properties, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
                if broker_name == queue.broker_name and first in ("", str(half_offset)):
                    text = f"discarded as undecided after its {outcome.name} was confirmed"
                    self._fail(f"{payload!r}: {text}")
            return
        self._stored[payload] += 1
        if outcome is not _COMMIT:
            self._fail(f"{payload!r}: in {topic}, and the outcome is {outcome.name}")

    def note_lost(self) -> None:
        """Note that a broker has lost the end of its log: only rule 1 holds for what has begun."""
        self._torn.update(self._outcomes)
        self._acked.clear()
        self._ended.clear()

    def find_open(self, expired: Collection[bytes]) -> str | None:
        """Return a fault after the brokers' decisions on all transactions, None for none.

        Args:
            expired: messages that brokers may have removed, or that were consumed.
        """
        for payload in self.committed:
            if not self._stored[payload] and payload not in expired:
                return f"{payload!r}: its commit was confirmed, and it is in no topic"
        for payload in sorted(self._acked.difference(expired)):
            outcome, copies = self._outcomes[payload], self._stored[payload]
            is_put_away = payload in self._put_away
            if outcome is _COMMIT and not copies and not is_put_away:
                return f"{payload!r}: to be committed, neither stored nor discarded"
            if outcome is TransactionState.UNKNOWN and not is_put_away:
                return f"{payload!r}: never decided, and not discarded"
        for payload, outcome in self._outcomes.items():
            if self._is_calm and outcome is _COMMIT and self._stored[payload] != 1:
                return f"{payload!r}: to be committed, stored {self._stored[payload]} times"
        return None
