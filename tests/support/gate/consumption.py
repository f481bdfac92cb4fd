"""What a broker confirms to consumers under load: offsets, pops and locks.

Offsets are saved once a second, so a kill may take those of the last moments, and no others. A pop
that was answered hides its message for its time. A message whose acknowledgement was confirmed
never comes again; one whose acknowledgement was not answered may come or not.
"""

from __future__ import annotations

import json
import time
from collections import Counter

from gate import wire
from gate.ledger import Ledger

POPPED, LOCKED = "popped", "locked"
GROUP = "GID_gate"
# The members that ask for locks, each on its own connection.
CLIENTS = ("a", "b")
# Offsets are written each second; the rest is room for a busy machine.
OFFSETS_S = 2.0
# A lock that was granted this long ago is still held: a member believes in it for 30 s.
LOCK_S = 20.0
INVISIBLE_MS = 1_000
_POPS_PER_TURN, _ACKNOWLEDGED_OF = 2, 4
_PAUSE_S = 0.01


class Consumption:
    """Consumers of one broker; each turn does one thing, and notes the answer.

    Args:
        ledger: notes confirmations and broken promises.
        topic: the topic of the offsets; all its queues get them.
        queues: the number of queues of each topic.
    """

    def __init__(self, ledger: Ledger, topic: str, queues: int) -> None:
        self._ledger, self._topic, self._queues = ledger, topic, queues
        # By queue the confirmed offsets with their times, the highest that was asked for, and that
        # which the last start had.
        self._commits: dict[int, list[tuple[float, int]]] = {}
        self._asked: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        # Popped offsets: until when each is hidden, by the broker's clock; whose acknowledgement
        # was confirmed; whose was asked for.
        self._hidden_until_ms: dict[int, int] = {}
        self._done: set[int] = set()
        self._in_doubt: set[int] = set()
        # By queue, the member that has the lock, and when it got it.
        self._locks: dict[int, tuple[str, float]] = {}

    @property
    def in_flight_count(self) -> int:
        """How many messages were popped, and not acknowledged yet."""
        return len(self._hidden_until_ms.keys() - self._done)

    # --- turns ------------------------------------------------------------------------------

    def commit_offset(self, connection: wire.Connection, _sender: str, number: int) -> None:
        """Commit the end of a queue."""
        queue_id = number % self._queues
        end = wire.max_offset(connection, self._topic, queue_id)
        self._asked[queue_id] = max(self._asked[queue_id], end)
        fields = {"consumerGroup": GROUP, "topic": self._topic, "queueId": queue_id}
        answer = connection.call(wire.COMMIT_OFFSET, fields | {"commitOffset": end})
        if answer.code == 0:
            self._ledger.acknowledged["offsets"] += 1
            self._commits.setdefault(queue_id, []).append((time.monotonic(), end))
        time.sleep(_PAUSE_S)

    def pop(self, connection: wire.Connection, sender: str, number: int) -> None:
        """Send a message, and pop and acknowledge some."""
        body = f"{sender} {number}".encode()
        answer = connection.call(wire.SEND_MESSAGE_V2, wire.send_fields(POPPED, 0, {}), body)
        if answer.code == 0:
            offset = int(answer.fields["queueOffset"])
            self._ledger.place(POPPED, 0, offset, [body], "to be popped")
        for turn in range(_POPS_PER_TURN):
            # The first of a sender are acknowledged: left after each kill, the oldest message would
            # become a dead letter.
            self._pop(connection, is_left=(number + turn + 1) % _ACKNOWLEDGED_OF == 0)
        time.sleep(_PAUSE_S)

    def lock(self, client: str, connection: wire.Connection, number: int) -> None:
        """Lock a queue as a member, or unlock one."""
        if number == 0:
            heartbeat(connection, client)
        queue_id = number % self._queues
        owner, _ = self._locks.get(queue_id, ("", 0))
        if owner == client and number % 3 == 0:
            # From here on the lock may be gone.
            del self._locks[queue_id]
            connection.call(wire.UNLOCK, {}, lock_body(client, queue_id))
        elif try_lock(connection, client, queue_id):
            self._granted(client, queue_id)
        time.sleep(_PAUSE_S)

    # --- checks -----------------------------------------------------------------------------

    def check(self, port: int, *, killed_s: float) -> None:
        """Compare what a start shows with what was confirmed before a kill."""
        self._check_offsets(port, killed_s)
        self._check_locks(port)

    def _check_offsets(self, port: int, killed_s: float) -> None:
        connection = wire.Connection(port)
        for queue_id, commits in sorted(self._commits.items()):
            fields = {"consumerGroup": GROUP, "topic": self._topic, "queueId": queue_id}
            answer = connection.call(wire.QUERY_OFFSET, fields)
            found = int(answer.fields["offset"]) if answer.code == 0 else 0
            old = max((at for at_s, at in commits if at_s <= killed_s - OFFSETS_S), default=0)
            if old > self._kept[queue_id]:
                self._ledger.acknowledged["offsets to be kept"] += 1
            text, kept = f"queue {queue_id} at {found}", max(old, self._kept[queue_id])
            if found < kept:
                self._ledger.note("offset behind", f"{text}, where {kept} was confirmed long ago")
            if found > self._asked[queue_id]:
                self._ledger.note(
                    "offset ahead", f"{text}, where {self._asked[queue_id]} was asked"
                )
            self._kept[queue_id] = found
            commits.clear()
        connection.close()

    def _check_locks(self, port: int) -> None:
        connections = {client: wire.Connection(port) for client in CLIENTS}
        for client, connection in connections.items():
            heartbeat(connection, client)
        for queue_id, (owner, granted_s) in sorted(self._locks.items()):
            if time.monotonic() - granted_s > LOCK_S:
                del self._locks[queue_id]
                continue
            self._ledger.acknowledged["locks to be kept"] += 1
            # The owner asks last: it must still have the lock then.
            for client in sorted(CLIENTS, key=owner.__eq__):
                is_granted = try_lock(connections[client], client, queue_id)
                if is_granted != (client == owner):
                    text = f"queue {queue_id} of {owner}: {client} asks, {is_granted}"
                    self._ledger.note("lock lost", text)
            self._locks[queue_id] = owner, time.monotonic()
        for connection in connections.values():
            connection.close()

    def drain(self, port: int, *, until_s: float) -> None:
        """Pop and acknowledge what is left, and note what does not come."""
        connection = wire.Connection(port)
        end = wire.max_offset(connection, POPPED, 0)
        wanted = set(range(end)) - self._in_doubt
        while wanted - self._done and time.monotonic() < until_s:
            if not self._pop(connection, is_left=False):
                time.sleep(_PAUSE_S)
        connection.close()
        for offset in sorted(wanted - self._done - self._in_doubt):
            self._ledger.note("never popped", f"{POPPED}:0 at {offset}")

    # --- one request ------------------------------------------------------------------------

    def _pop(self, connection: wire.Connection, *, is_left: bool) -> bool:
        """Pop a message; acknowledge it unless it is to be left. Returns: whether one came."""
        fields = wire.pop_fields(GROUP, POPPED, invisible_ms=INVISIBLE_MS)
        answer = connection.call(wire.POP, fields)
        if answer.code:
            return False
        for record in wire.decode(answer.body):
            self.note_popped(record.offset, answer)
            if not is_left:
                self._acknowledge(connection, record.offset, answer)
        return True

    def note_popped(self, offset: int, answer: wire.Answer) -> None:
        """Check that a message may come now."""
        self._ledger.acknowledged["popped"] += 1
        popped_ms = int(answer.fields["popTime"])
        if offset in self._done:
            self._ledger.note("popped after its acknowledgement", f"{POPPED}:0 at {offset}")
        early_ms = self._hidden_until_ms.get(offset, 0) - popped_ms
        if early_ms > 0:
            self._ledger.note("popped early", f"{POPPED}:0 at {offset}, {early_ms} ms")
        self._hidden_until_ms[offset] = popped_ms + int(answer.fields["invisibleTime"])

    def _acknowledge(self, connection: wire.Connection, offset: int, popped: wire.Answer) -> None:
        fields = wire.acknowledge_fields(GROUP, POPPED, offset, popped)
        self._in_doubt.add(offset)
        answer = connection.call(wire.ACKNOWLEDGE, fields)
        if answer.code == 0:
            self.note_done(offset)
        # An acknowledgement that was refused has ended nothing.
        self._in_doubt.discard(offset)

    def note_done(self, offset: int) -> None:
        """Note that an acknowledgement was confirmed."""
        self._ledger.acknowledged["acknowledged pops"] += 1
        self._done.add(offset)

    def _granted(self, client: str, queue_id: int) -> None:
        self._ledger.acknowledged["locks"] += 1
        owner, granted_s = self._locks.get(queue_id, (client, 0))
        if owner != client and time.monotonic() - granted_s < LOCK_S:
            self._ledger.note("locked twice", f"queue {queue_id} of {owner}, and now of {client}")
        self._locks[queue_id] = client, time.monotonic()


def heartbeat(connection: wire.Connection, client: str) -> None:
    """Enter a member into the group that locks."""
    consumer = {"groupName": LOCKED, "subscriptionDataSet": []}
    body = json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()
    connection.call(wire.HEARTBEAT, {}, body)


def try_lock(connection: wire.Connection, client: str, queue_id: int) -> bool:
    """Ask for a queue's lock; return whether the member has it."""
    answer = connection.call(wire.LOCK, {}, lock_body(client, queue_id))
    return answer.code == 0 and bool(json.loads(answer.body).get("lockOKMQSet"))


def lock_body(client: str, queue_id: int) -> bytes:
    """Return the body of a lock's request."""
    queues = [{"topic": LOCKED, "brokerName": "broker-a", "queueId": queue_id}]
    return json.dumps({"clientId": client, "consumerGroup": LOCKED, "mqSet": queues}).encode()
