"""Transactions over power cuts and kills at random moments: each ends as its producer says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.broker.disk_machine import Machine

from sparrowmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_OP_HALF_TOPIC
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.record import decode_record
from sparrowmq.serving.connections import Fact, Push
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage

SEEDS = 5
LIVES = 6
GROUP = "GID_p"
COMMIT, ROLLBACK = 8, 12
# A record's body begins at this byte.
BODY_AT = 88


@dataclass
class Transaction:
    """What a producer knows of one transaction: `end` is None until it has decided."""

    key: str
    half: dict[str, str]
    end: int | None = None
    is_confirmed: bool = False


@dataclass
class Producer:
    """A producer group that outlives its brokers."""

    rng: Random
    transactions: dict[str, Transaction] = field(default_factory=dict)
    asked_late: list[str] = field(default_factory=list)
    is_patient: bool = True

    def outcome_of(self, key: str) -> int | None:
        """Give the outcome of a half message, also of one whose send was never answered."""
        known = self.transactions.get(key)
        if known is None:
            return ROLLBACK
        if known.is_confirmed:
            self.asked_late.append(key)
        if known.end is None and not self.is_patient:
            known.end = self.rng.choice((COMMIT, ROLLBACK))
        return known.end


class Life(Machine):
    """A broker from its start to its end; the producer is connected to it."""

    def __init__(self, storage: SimulatedStorage, producer: Producer, now_ms: int) -> None:
        self.producer = producer
        super().__init__(
            storage,
            now_ms=now_ms,
            store_settings={
                "commit_log_file_size": 16_384,
                "consume_queue_file_size": 200,
                "checkpoint_interval_ms": 500,
            },
            transaction_timeout_ms=300,
            transaction_check_interval_ms=700,
            transaction_check_max=1_000,
        )
        body = {"clientID": "p", "producerDataSet": [{"groupName": GROUP}]}
        self.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    def pass_time(self, duration_ms: int = 100) -> None:
        """Let time pass, and answer what the broker asks."""
        self.outputs.clear()
        super().pass_time(duration_ms)
        for push in [output for output in self.outputs if isinstance(output, Push)]:
            self.answer(push)

    def answer(self, push: Push) -> None:
        assert push.command.code == RequestCode.CHECK_TRANSACTION_STATE
        fields = dict(push.command.ext_fields or {})
        assert fields["msgId"].encode() == decode_record(push.command.body or b"").body
        outcome = self.producer.outcome_of(fields["msgId"])
        if outcome is not None:
            self.end(fields["msgId"], {**fields, "producerGroup": GROUP}, outcome)

    def send_half(self, key: str) -> None:
        properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}"
        fields = dict(zip("abcdefghi", (GROUP, "T", "TBW102", "4", "0", "4"), strict=False))
        fields |= {"g": str(self.now_ms), "h": "0", "i": properties}
        reply = self.ask(RequestCode.SEND_MESSAGE_V2, fields, key.encode())
        assert reply.code == ResponseCode.SUCCESS
        answered = reply.ext_fields or {}
        half = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answered["queueOffset"],
            "commitLogOffset": str(decode_offset_msg_id(answered["msgId"])[1]),
            "msgId": key,
        }
        self.producer.transactions[key] = Transaction(key, half)

    def end(self, key: str, half: dict[str, str], outcome: int) -> None:
        fields = {**half, "commitOrRollback": str(outcome)}
        code = self.call(RequestCode.END_TRANSACTION, fields)
        assert code == ResponseCode.SUCCESS
        if key in self.producer.transactions:
            self.producer.transactions[key].is_confirmed = True

    def keys_in(self, topic: str) -> list[str]:
        return [find_property(each.properties, "UNIQ_KEY") for each in self.records(topic)]


def live(life: Life, rng: Random, numbers: list[int]) -> None:
    """Send, end and wait until the power goes."""
    producer = life.producer
    while True:
        step = rng.randrange(6)
        undecided = [t for t in producer.transactions.values() if t.end is None]
        if step <= 1:
            numbers[0] += 1
            life.send_half(f"k{numbers[0]}")
        elif step == 2 and undecided:
            chosen = rng.choice(undecided)
            chosen.end = rng.choice((COMMIT, ROLLBACK))
            life.end(chosen.key, chosen.half, chosen.end)
        else:
            life.pass_time()


@pytest.mark.slow
@pytest.mark.parametrize("is_power_cut", [True, False], ids=["power cut", "kill"])
def test_every_transaction_ends_as_its_producer_says(is_power_cut: bool) -> None:
    for seed in range(SEEDS):
        rng = Random(seed)
        storage, producer, numbers = SimulatedStorage(rng), Producer(rng), [0]
        now_ms = 1_700_000_000_000
        for _ in range(LIVES):
            life = Life(storage, producer, now_ms)
            storage.changes_left = rng.randrange(20, 700)
            with pytest.raises(PowerCut):
                live(life, rng, numbers)
            now_ms = life.now_ms + 1_000
            if is_power_cut:
                storage.lose_power()
            else:
                storage.kill()
        producer.is_patient = False
        life = Life(storage, producer, now_ms)
        for _ in range(60):
            life.pass_time()

        committed = {t.key for t in producer.transactions.values() if t.end == COMMIT}
        undecided = {t.key for t in producer.transactions.values() if t.end is None}
        assert set() == undecided, f"seed {seed}"
        assert committed == set(life.keys_in("T")), f"seed {seed}"
        assert life.keys_in(TRANS_CHECK_MAX_TIME_TOPIC) == [], f"seed {seed}"
        assert producer.asked_late == [], f"seed {seed}"
        assert len(producer.transactions) > LIVES, f"seed {seed}"
        life.stop()


def test_damaged_end_does_not_hide_the_ends_behind_it() -> None:
    """The broker asks about the half message whose end is damaged, and about no other."""
    storage = SimulatedStorage(Random(1))
    life = Life(storage, producer := Producer(Random(1)), 1_700_000_000_000)
    for key in ("k1", "k2", "k3"):
        life.send_half(key)
    for key, known in producer.transactions.items():
        life.end(key, known.half, ROLLBACK)
    entry = life.store.queues.entry(TRANS_OP_HALF_TOPIC, 0, 1)
    assert entry is not None
    storage.inodes["commitlog/00000000000000000000"].data[entry[0] + BODY_AT] ^= 1

    told = []
    for _ in range(20):
        life.pass_time()
        told += [each.text for each in life.outputs if isinstance(each, Fact)]

    assert list(dict.fromkeys(producer.asked_late)) == ["k2"]
    assert [TRANS_OP_HALF_TOPIC in text for text in told] == [True]
