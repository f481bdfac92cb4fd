"""Cut a broker's power under mixed load: `python -m gate.power --cuts 10000`.

The broker runs in this process, over a disk in memory that forgets, tears and reorders what no sync
covered, is full at times, and fails to sync and to read. One cut of five is a kill, which leaves
what was written; brokers that flush asynchronously are killed alone. Some starts are cut as well.
The file of accounts is not cut here: it is written by the system's calls alone, whose order
`tests/serving/test_access_file.py` checks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EIO
from random import Random

from tests.broker.conftest import send_fields
from tests.broker.disk_machine import GROUP
from tests.broker.pop_users import (
    DEAD_LETTERS,
    INVISIBLE_MS_MAX,
    RETRIES_MAX,
    PopUsers,
    set_group,
)
from tests.broker.transaction_life import COMMIT, ROLLBACK, Life, Producer

from gate.parts import notes_of_code, ranges, run_parts
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, retry_topic
from sparrowmq.protocol.bodies import (
    GroupPlan,
    LockBatchResponseBody,
    TopicConfig,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import encode_batch, encode_host
from sparrowmq.serving.connections import Connection
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage

LIVES = 20
PART = 100
# The topic of pops; the topic and group whose queues are locked.
POPPED = "popped"
LOCKED = "locked"
# The time within which a commit of an offset reaches the disk.
COMMIT_LOST_MS = 2_000
# A lock that was confirmed this long ago is still held; a broker keeps it for 60 s.
LOCK_MS = 30_000
LEVEL_MS = (1_000, 5_000)
# What each run must have confirmed: a kind that nobody used proves nothing.
KINDS = (
    *("plain", "batch", "delayed", "timed", "recalled", "sent back", "ended", "popped"),
    *("offsets", "locks", "plans", "topics", "groups", "modes"),
)
# What a broker answers whose disk is full or fails.
REFUSALS = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.FLUSH_DISK_TIMEOUT,
)
# How long an answer waits for the flush before it.
ANSWERED_WITHIN_MS = 1_000
# A broker that refuses so much is cut though it writes nothing.
REFUSED_MAX = 50


class Refused(Exception):
    """A broker whose disk is full or failing has refused a request, and may have done it or not."""


class Powered(Life):
    """A broker whose answers count up to the moment at which the power goes."""

    is_off = False
    # Since when the disk is full at times, or has failed; None if all is well.
    ill_ms: int | None = None
    # The number of the last request.
    _last = 0

    def load(self) -> None:
        """Start."""
        self.is_off, self.ill_ms = False, None
        super().load()

    def fall_ill(self, rng: Random) -> None:
        """Let a sync fail, or let reads fail or the disk be full until this is drawn again."""
        self.ill_ms = self.ill_ms or self.now_ms
        storage, drawn = self.storage, rng.random()
        if drawn < 0.2:
            storage.fail(is_lasting=False)
        elif drawn < 0.4:
            storage.read_error = None if storage.read_error else OSError(EIO, "unreadable")
        else:
            storage.is_full = not storage.is_full

    def handle(self, request: RemotingCommand, connection: Connection) -> list[RemotingCommand]:
        """Serve a request; return also what was answered before the power went meanwhile."""
        if self.is_off:
            self.outputs.clear()
            raise PowerCut
        self._last += 1
        request.opaque = self._last
        try:
            answers = super().handle(request, connection)
        except PowerCut:
            self.is_off = True
            answers = self.answers()
            if not answers:
                raise
        if self.ill_ms is not None and (not answers or answers[0].code in REFUSALS):
            raise Refused
        return answers

    def answers(self) -> list[RemotingCommand]:
        """Return the answers to the last request; one that was refused may be answered later."""
        return [answer for answer in super().answers() if answer.opaque == self._last]

    def call_in_time(self, code: int, fields: dict[str, str]) -> int:
        """Serve a request whose answer may wait for a flush; return the answer's code."""
        answers = self.serve(code, fields)
        for _ in range(ANSWERED_WITHIN_MS // 100):
            if not answers:
                self.pass_time(100)
                answers = self.answers()
        assert answers, f"request {code} has no answer"
        return answers[0].code

    def pass_time(self, duration_ms: int = 100) -> None:
        """Let time pass, unless the power has gone."""
        if self.is_off:
            raise PowerCut
        super().pass_time(duration_ms)


class Promises:
    """What a broker has confirmed; each method does one thing to it, and notes the answer."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.acknowledged: Counter[str] = Counter()
        self.pops = PopUsers(rng, topic=POPPED)
        self.producer = Producer(rng)
        self._number = 0
        # Bodies by their offset, and all that may be there.
        self._placed: dict[int, bytes] = {}
        self._sent: set[bytes] = set()
        # What must come to a topic, not before its time.
        self._owed: dict[bytes, str] = {}
        self._due_ms: dict[tuple[str, bytes], int] = {}
        self._handles: dict[bytes, str] = {}
        self._recalled: set[bytes] = set()
        # The confirmed commits with their time, and the highest that was asked for.
        self._commits: list[tuple[int, int]] = []
        self._commit_max = 0
        # The members' connections, by client id; by locked queue its client, and until when.
        self._members: dict[str, Connection] = {}
        self._locks: dict[int, tuple[str, int]] = {}
        # The topics that were made for messages.
        self._made = {"T"}
        # By name the number of queues, or of retries; None if it was deleted.
        self._topics: dict[str, int | None] = {}
        self._groups: dict[str, int | None] = {}
        # By group, with how many members one shares its queues.
        self._modes: dict[str, int] = {}
        # The plan of the locked group; whether another one was asked for without an answer.
        self._plan: GroupPlan | None = None
        self._is_plan_open = False
        self._steps: tuple[Callable[[Powered], object], ...] = (
            self._send,
            self._send_batch,
            self._send_delayed,
            self._send_timed,
            self._recall,
            self._send_back,
            self._send_half,
            self._end_half,
            *[self.pops.step] * 4,
            self._commit,
            self._lock,
            self._unlock,
            self._put_topic,
            self._put_group,
            self._put_mode,
            self._offer_plan,
        )

    def work(self, life: Powered) -> None:
        """Use the broker until the power goes."""
        refused, risk = 0, self.rng.choice((0, 0.1))
        while refused < REFUSED_MAX:
            try:
                self.rng.choice(self._steps)(life)
                if self.rng.random() < 0.3:
                    life.pass_time(self.rng.choice((100, 100, 800)))
            except Refused:
                refused += 1
            if self.rng.random() < risk:
                life.fall_ill(self.rng)

    def _new_body(self, kind: str) -> bytes:
        self._number += 1
        body = b"%s %d" % (kind.encode(), self._number)
        self._sent.add(body)
        return body + bytes(self.rng.choice((0, 0, 600)))

    # --- messages ---------------------------------------------------------------------------

    def _ask_to_store(self, life: Powered, code: int, fields: dict[str, str], body: bytes) -> int:
        answer = life.ask(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int((answer.ext_fields or {})["queueOffset"])

    def _send(self, life: Powered) -> None:
        body = self._new_body("plain")
        at = self._ask_to_store(life, RequestCode.SEND_MESSAGE_V2, send_fields("T", 0), body)
        self._place(at, [body], "plain")

    def _send_batch(self, life: Powered) -> None:
        bodies = [self._new_body("batch") for _ in range(self.rng.randrange(1, 5))]
        batch = encode_batch([(0, body, "") for body in bodies])
        fields = send_fields("T", 0, m="true")
        self._place(
            self._ask_to_store(life, RequestCode.SEND_BATCH_MESSAGE, fields, batch), bodies, "batch"
        )

    def _place(self, at: int, bodies: list[bytes], kind: str) -> None:
        self.acknowledged[kind] += len(bodies)
        for offset, body in enumerate(bodies, at):
            assert self._placed.setdefault(offset, body) == body, f"offset {offset} twice"

    def _send_delayed(self, life: Powered) -> None:
        level, topic = self.rng.randrange(2), self.rng.choice(("T", self._new_topic()))
        body = self._new_body("delayed")
        self._due_ms[topic, body] = life.now_ms + LEVEL_MS[level]
        properties = f"UNIQ_KEY\x01{self._number}\x02DELAY\x01{level + 1}"
        life.send(body, properties, topic=topic)
        self._made.add(topic)
        self._owe(body, topic, "delayed")

    def _new_topic(self) -> str:
        """Return the name of a topic that the broker may have to make."""
        return f"made{self.rng.randrange(len(self._made) + 2)}"

    def _send_timed(self, life: Powered) -> None:
        body, delay_ms = self._new_body("timed"), self.rng.randrange(1, 6_000)
        self._due_ms["T", body] = life.now_ms + delay_ms
        properties = f"UNIQ_KEY\x01{self._number}\x02TIMER_DELAY_MS\x01{delay_ms}"
        self._handles[body] = life.send(body, properties)
        self._owe(body, "T", "timed")

    def _owe(self, body: bytes, topic: str, kind: str) -> None:
        self.acknowledged[kind] += 1
        self._owed[body] = topic

    def _recall(self, life: Powered) -> None:
        if not self._handles:
            return
        body = self.rng.choice(sorted(self._handles))
        handle = self._handles.pop(body)
        # Whether it comes is open until there is an answer.
        del self._owed[body]
        if life.recall(handle) == ResponseCode.SUCCESS:
            self.acknowledged["recalled"] += 1
            self._recalled.add(body)
        else:
            self._owed[body] = "T"

    def _send_back(self, life: Powered) -> None:
        body = self._new_body("back")
        fields = send_fields("T", 0, f"UNIQ_KEY\x01{self._number}")
        at = self._ask_to_store(life, RequestCode.SEND_MESSAGE_V2, fields, body)
        self._place(at, [body], "plain")
        entry = None
        # A full disk keeps the message from its queue.
        with suppress(OSError):
            entry = life.store.queues.entry("T", 0, at)
        if entry is not None:
            group = f"GID_{self._new_topic()}"
            self._due_ms[retry_topic(group), body] = life.now_ms + LEVEL_MS[0]
            life.give_back(entry[0], group)
            self._made.add(retry_topic(group))
            self._owe(body, retry_topic(group), "sent back")

    def _send_half(self, life: Powered) -> None:
        self._number += 1
        life.send_half(f"half {self._number}")

    def _end_half(self, life: Powered) -> None:
        undecided = [t for t in self.producer.transactions.values() if t.end is None]
        if undecided:
            chosen = self.rng.choice(undecided)
            chosen.end = self.rng.choice((COMMIT, ROLLBACK))
            life.end(chosen.key, chosen.half, chosen.end)
            self.acknowledged["ended"] += 1

    # --- groups and tables ------------------------------------------------------------------

    def _commit(self, life: Powered) -> None:
        offset = self.rng.randrange(life.store.queues.max_offset("T", 0) + 1)
        if offset > self._commit_max:
            self._commit_max = offset
            life.commit(offset)
            self.acknowledged["offsets"] += 1
            self._commits.append((life.now_ms, offset))

    def _lock(self, life: Powered) -> None:
        client, queue = self.rng.choice("ab"), self.rng.randrange(3)
        if self._try_lock(life, client, queue):
            self.acknowledged["locks"] += 1
            self._locks[queue] = client, life.now_ms + LOCK_MS

    def connect(self, life: Powered) -> None:
        """Connect the members to a broker that has just started."""
        for number, client in enumerate("ab", 2):
            address = f"10.0.0.{number}:1"
            self._members[client] = Connection(number, address, encode_host(address))
            consumer = {"groupName": LOCKED, "subscriptionDataSet": []}
            body = json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()
            self._ask_as(life, client, RequestCode.HEART_BEAT, body)

    def _ask_as(
        self,
        life: Powered,
        client: str,
        code: int,
        body: bytes,
        *,
        fields: dict[str, str] | None = None,
    ) -> RemotingCommand:
        """Serve a member's request."""
        request = RemotingCommand(code=code, ext_fields=fields or {}, body=body)
        (answer,) = life.handle(request, self._members[client])
        return answer

    def _try_lock(self, life: Powered, client: str, queue: int) -> bool:
        body = _lock_body(client, queue)
        answer = self._ask_as(life, client, RequestCode.LOCK_BATCH_MQ, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        is_locked = bool(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set)
        owner, until_ms = self._locks.get(queue, (client, 0))
        if is_locked and life.now_ms < until_ms:
            assert owner == client, f"queue {queue} is locked for {owner}, and now for {client}"
        return is_locked

    def _unlock(self, life: Powered) -> None:
        if self._locks:
            queue = self.rng.choice(sorted(self._locks))
            client, _ = self._locks.pop(queue)
            body = _lock_body(client, queue)
            self._ask_as(life, client, RequestCode.UNLOCK_BATCH_MQ, body)

    def _put_topic(self, life: Powered) -> None:
        def request(name: str, count: int | None) -> int:
            if count is None:
                return life.call_in_time(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
            fields = {"topic": name, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
            fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
            fields |= {"readQueueNums": str(count), "writeQueueNums": str(count)}
            return life.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

        self._put(self._topics, f"topic{self.rng.randrange(6)}", request)
        self.acknowledged["topics"] += 1

    def _put_group(self, life: Powered) -> None:
        def request(name: str, count: int | None) -> int:
            if count is None:
                fields = {"groupName": name, "removeOffset": "true"}
                return life.call_in_time(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
            body = json.dumps({"groupName": name, "retryMaxTimes": count}).encode()
            return life.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

        self._put(self._groups, f"GID_{self.rng.randrange(6)}", request)
        self.acknowledged["groups"] += 1

    def _put_mode(self, life: Powered) -> None:
        name, share = f"GID_mode{self.rng.randrange(4)}", self.rng.randrange(1, 9)
        mode = {"topic": "T", "consumerGroup": name, "mode": "POP", "popShareQueueNum": share}
        self._modes.pop(name, None)
        code = life.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())
        assert code == ResponseCode.SUCCESS
        self._modes[name] = share
        self.acknowledged["modes"] += 1

    def _offer_plan(self, life: Powered) -> None:
        former = life.broker.state.plans.find(LOCKED)
        queues = [MessageQueue(LOCKED, "broker-a", queue_id) for queue_id in range(3)]
        cut = self.rng.randrange(4)
        offer = GroupPlan(
            epoch=0 if former is None else former.epoch,
            client_ids=["a", "b"],
            owners={"a": queues[:cut], "b": queues[cut:]},
        )
        fields = {"consumerGroup": LOCKED}
        self._is_plan_open = True
        answer = self._ask_as(
            life, "a", RequestCode.OFFER_GROUP_PLAN, encode_body(offer), fields=fields
        )
        self._is_plan_open = False
        if answer.code == ResponseCode.SUCCESS:
            self._plan = life.broker.state.plans.find(LOCKED)
            self.acknowledged["plans"] += 1

    def _put(
        self,
        table: dict[str, int | None],
        name: str,
        request: Callable[[str, int | None], int],
    ) -> None:
        """Make, change or delete a name; while it is asked for, the table does not have it."""
        count: int | None = self.rng.randrange(1, 9)
        if table.pop(name, None) is not None and self.rng.random() < 0.3:
            count = None
        assert request(name, count) == ResponseCode.SUCCESS
        table[name] = count

    # --- checks -----------------------------------------------------------------------------

    def check(self, life: Powered, *, cut_ms: int) -> None:
        """Check what was confirmed before a cut.

        Args:
            cut_ms: when the power went, or the disk became full.
        """
        self._check_messages(life)
        self._check_offset(life, cut_ms)
        assert self.producer.asked_late == [], f"asked again: {self.producer.asked_late}"
        for queue, (client, _) in sorted(self._locks.items()):
            # Its own client must not lose it either, so that one asks last.
            for each in ("b" if client == "a" else "a", client):
                is_locked = self._try_lock(life, each, queue)
            assert is_locked, f"{client} has lost queue {queue}"
        state = life.broker.state
        gone = {name for name in self._made if state.topics.find(name) is None}
        assert not gone, f"topics {gone} are gone, and not their messages"
        topics = {name: state.topics.find(name) for name in self._topics}
        found = {name: topic and topic.write_queue_nums for name, topic in topics.items()}
        assert found == self._topics, f"topics {found}, and not {self._topics}"
        groups = {name: state.groups.find(name) for name in self._groups}
        retries = {name: group and group.retry_max_times for name, group in groups.items()}
        assert retries == self._groups, f"groups {retries}, and not {self._groups}"
        modes = {name: state.modes.get("T", name).pop_share_queue_num for name in self._modes}
        assert modes == self._modes, f"modes {modes}, and not {self._modes}"
        plan = state.plans.find(LOCKED)
        assert self._is_plan_open or plan == self._plan, f"plan {plan}, and not {self._plan}"
        self._plan, self._is_plan_open = plan, False

    def _check_messages(self, life: Powered) -> None:
        transactions = self.producer.transactions.items()
        ended = {key: t.end for key, t in transactions if t.is_confirmed}
        # They may have been ended, and stored, and be so again.
        ended_in_doubt = {key.encode() for key in self.producer.in_doubt}
        for topic in sorted({*self._made, DEAD_LETTERS}):
            seen: set[bytes] = set()
            for record in life.records(topic):
                body = record.body.rstrip(b"\0")
                # A dead letter comes twice if the power goes before the pop log has the first.
                may_be_double = topic == DEAD_LETTERS or body in ended_in_doubt
                assert may_be_double or body not in seen, f"{body!r} is there twice, in {topic}"
                seen.add(body)
                early_ms = self._due_ms.get((topic, record.body), 0) - record.store_timestamp_ms
                assert early_ms <= 0, f"{body!r} came {early_ms} ms early to {topic}"
                assert record.body not in self._recalled, f"{body!r} was recalled"
                if topic == "T":
                    placed = self._placed.get(record.queue_offset, record.body)
                    assert placed == record.body, body
                if body.startswith(b"half"):
                    assert ended.get(body.decode(), COMMIT) == COMMIT, f"{body!r} was rolled back"
                elif topic != DEAD_LETTERS:
                    assert body in self._sent, f"nobody sent {record.body!r}"
        end = life.store.queues.max_offset("T", 0)
        lost = [body for offset, body in self._placed.items() if offset >= end]
        assert not lost, f"{lost[0]!r} is lost"

    def _check_offset(self, life: Powered, cut_ms: int) -> None:
        found = life.broker.state.offsets.find(GROUP, "T", 0) or 0
        kept = max((at for ms, at in self._commits if ms <= cut_ms - COMMIT_LOST_MS), default=0)
        assert kept <= found <= self._commit_max, f"offset {found}, {kept} was confirmed long ago"
        self._commits = [(ms, at) for ms, at in self._commits if at <= found]
        self._commit_max = found

    def check_end(self, life: Powered) -> None:
        """Check, after the last cut, that all comes that must."""
        self.producer.is_patient = False
        life.pass_time(8_000)
        # Nobody acknowledges from now on: each popped message comes until it is a dead letter.
        for _ in range(2 * (RETRIES_MAX + 1)):
            while self.pops.pop(life, count_max=32):
                pass
            life.pass_time(INVISIBLE_MS_MAX + 200)
        self.check(life, cut_ms=life.now_ms)
        found = {topic: set(life.bodies(topic)) for topic in {*self._made, DEAD_LETTERS}}
        lost = [body for body, topic in self._owed.items() if body not in found[topic]]
        assert not lost, f"{lost[0]!r} is lost"
        keys = self.producer.transactions
        committed = [key.encode() for key, t in keys.items() if t.end == COMMIT]
        assert set(committed) <= found["T"], f"{set(committed) - found['T']} is not committed"
        assert life.records(TRANS_CHECK_MAX_TIME_TOPIC) == []
        dead, pops = found[DEAD_LETTERS], self.pops
        assert not dead & pops.ended_in_time, f"{dead & pops.ended_in_time} are dead letters"
        left = pops.sent - dead - pops.in_doubt
        assert not left, f"{left} are neither dead letters nor acknowledged"
        self.acknowledged["popped"] += len(pops.ended)


def _lock_body(client: str, queue: int) -> bytes:
    queues = [{"topic": LOCKED, "brokerName": "broker-a", "queueId": queue}]
    return json.dumps({"clientId": client, "consumerGroup": LOCKED, "mqSet": queues}).encode()


def run(seed: int, lives: int) -> Counter[str]:
    """Cut one broker's power again and again; return what it acknowledged, by kind.

    Raises: AssertionError if a promise was broken.
    """
    rng = Random(seed)
    promises = Promises(rng)
    is_sync = rng.random() < 0.8
    storage = SimulatedStorage(rng)
    while True:
        storage.changes_left = rng.choice((None, rng.randrange(60)))
        with suppress(PowerCut):
            life = Powered(storage, promises.producer, 1_700_000_000_000, is_sync=is_sync)
            break
        storage.lose_power() if is_sync else storage.kill()
    storage.changes_left = None
    set_group(life)
    for name in (POPPED, LOCKED):
        topic = TopicConfig(topic_name=name, read_queue_nums=3, write_queue_nums=3)
        life.broker.state.put_topic(topic, timestamp_ms=life.now_ms)
    life.pass_time(200)
    promises.connect(life)
    for _ in range(lives):
        storage.changes_left = rng.randrange(5, 300)
        with suppress(PowerCut):
            promises.work(life)
        cut_ms = life.ill_ms or life.now_ms
        if life.ill_ms is not None:
            # A full disk keeps ends from the queue in which the broker looks for them.
            promises.producer.asked_late.clear()
        storage.mend()
        while True:
            is_kill = not is_sync or rng.random() < 0.2
            storage.kill() if is_kill else storage.lose_power()
            life.now_ms += rng.choice((0, 1_000))
            # The power may fail again while the broker starts.
            storage.changes_left = rng.choice((None, None, rng.randrange(1, 60)))
            with suppress(PowerCut):
                life.load()
                break
        storage.changes_left = None
        promises.connect(life)
        promises.check(life, cut_ms=cut_ms)
    promises.check_end(life)
    life.stop()
    return promises.acknowledged


def run_part(part: tuple[int, int]) -> dict[str, int]:
    """Run a part in a process of its own; print what it says of a broken promise.

    Returns: what was acknowledged, by kind; "broken" counts brokers.
    """
    begin, cuts = part
    command = (sys.executable, "-m", "gate.power", "--cuts", str(cuts), "--begin", str(begin))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
    told: dict[str, int] = json.loads(done.stdout) if done.stdout else {"broken": 1}
    told.pop("missing", None)
    return told


def count(begin: int, cuts: int) -> Counter[str]:
    """Run the brokers of a part in this process; print of each broken promise how to repeat it."""
    total: Counter[str] = Counter(broken=0)
    for seed in range(begin, begin + cuts, LIVES):
        try:
            total.update(run(seed, LIVES))
        except (AssertionError, SparrowError, OSError) as error:
            total["broken"] += 1
            print(f"{error!r}: python -m gate.power --begin {seed} --cuts {LIVES}", file=sys.stderr)
    return total


def find_missing(total: Mapping[str, int]) -> list[str]:
    """Return the kinds of which nothing was confirmed."""
    return [kind for kind in KINDS if not total.get(kind)]


def main() -> int:
    """Run, print the sums as JSON, and return 1 if a promise was broken or nothing is proved."""
    parser = argparse.ArgumentParser(prog="python -m gate.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--begin", type=int, help="run in this process from this seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.begin is not None:
        total = count(options.begin, options.cuts)
    else:
        total = Counter()
        for part in run_parts(
            run_part,
            ranges(options.cuts, PART),
            is_passed=lambda told: not told.get("broken"),
            notes=notes_of_code("power"),
            processes=options.processes,
        ):
            total.update(part)
        total["cuts"] = options.cuts
    missing = [] if options.begin is not None else find_missing(total)
    print(json.dumps({**total, "missing": missing}))
    return 1 if total["broken"] or missing else 0


if __name__ == "__main__":
    sys.exit(main())
