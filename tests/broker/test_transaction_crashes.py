"""Transactions over power cuts and kills at random moments: each ends as its producer says."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.transaction_life import COMMIT, ROLLBACK, Life, Producer

from sparrowmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_OP_HALF_TOPIC
from sparrowmq.serving.connections import Fact
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage

SEEDS = 5
LIVES = 6
# A record's body begins at this byte.
BODY_AT = 88


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
