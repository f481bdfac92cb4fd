"""The simulated network: what arrives, what does not, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.simulation.network import DELAY_MS_MAX, End

SERVER = "10.0.0.1:80"


class Pair:
    """A client and a server with a connection, and what each of them has seen."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.network = world.network
        self.client, self.server = world.process("10.0.0.2"), world.process("10.0.0.1")
        self.accepted: list[End] = []
        self.ends: list[End] = []
        self.refusals: list[str] = []
        self.seen: dict[str, list[bytes | str]] = {"client": [], "server": []}
        self.network.listen(SERVER, self.server, self._accept)

    def dial(self, wait_ms: int = 20) -> None:
        self.network.dial(self.client, SERVER, opened=self._opened, failed=self.refusals.append)
        self.world.run(wait_ms)

    def _accept(self, end: End) -> None:
        self.accepted.append(end)
        self._watch("server", end)

    def _opened(self, end: End) -> None:
        self.ends.append(end)
        self._watch("client", end)

    def _watch(self, name: str, end: End) -> None:
        end.on_data = self.seen[name].append
        end.on_closed = self.seen[name].append

    @property
    def near(self) -> End:
        return self.ends[-1]

    @property
    def far(self) -> End:
        return self.accepted[-1]


@pytest.fixture
def pair(world: Any) -> Pair:
    pair = Pair(world)
    pair.dial()
    return pair


def test_bytes_arrive_in_order_also_if_some_are_late(pair: Pair) -> None:
    pair.network.late_share, pair.network.late_ms_max = 0.5, 1_000
    sent = [str(number).encode() for number in range(20)]
    for data in sent:
        pair.near.send(data)
    pair.world.run(DELAY_MS_MAX)
    on_time = len(pair.seen["server"])
    pair.world.run(2_000)

    assert on_time < 20
    assert sent == pair.seen["server"]


def test_close_comes_after_what_was_written_before(pair: Pair) -> None:
    pair.near.send(b"last")
    pair.near.close()
    pair.near.send(b"too late")
    pair.world.run(50)

    assert pair.seen["server"] == [b"last", "closed by the peer"]


def test_cut_holds_back_one_direction_alone_and_ends(pair: Pair) -> None:
    pair.network.cut("10.0.0.2", "10.0.0.1", duration_ms=5_000)
    pair.near.send(b"question")
    pair.far.send(b"news")
    pair.world.run(4_000)

    assert pair.seen["client"] == [b"news"]
    assert pair.seen["server"] == []
    pair.near.send(b"again")
    pair.world.run(1_010)
    assert pair.seen["server"] == [b"question", b"again"]


def test_nobody_connects_through_a_cut_in_either_direction(world: Any) -> None:
    pair = Pair(world)
    pair.network.cut("10.0.0.1", "10.0.0.2", duration_ms=60_000)
    pair.dial(wait_ms=30_000)

    assert pair.ends == []
    assert pair.refusals == ["no answer"]


def test_connection_is_made_when_a_short_cut_ends(world: Any) -> None:
    pair = Pair(world)
    pair.network.cut("10.0.0.2", "10.0.0.1", duration_ms=500)
    pair.dial(wait_ms=1_500)

    assert len(pair.ends) == 1


def test_refused_connection_leaves_those_open_alone(pair: Pair) -> None:
    pair.network.refuse("10.0.0.2", "10.0.0.1", duration_ms=1_000)
    pair.dial()
    pair.near.send(b"x")
    pair.world.run(1_000)

    assert pair.refusals == ["Connection refused"]
    assert pair.seen["server"] == [b"x"]
    pair.dial()
    assert len(pair.ends) == 2


def test_reset_is_told_to_both_sides_and_what_was_on_its_way_is_gone(pair: Pair) -> None:
    pair.near.send(b"x")
    pair.network.reset(pair.near)
    pair.world.run(50)

    assert ["Connection reset by peer"] == pair.seen["client"] == pair.seen["server"]


def test_half_open_connection_is_noticed_by_the_other_side_when_it_writes(pair: Pair) -> None:
    pair.network.half_open(pair.near, noticed_by=pair.near, mute_ms=5_000)
    pair.world.run(1_000)
    assert pair.seen["client"] == ["Connection reset by peer"]
    assert pair.seen["server"] == []

    pair.far.send(b"into the void")
    pair.world.run(1_000)
    assert pair.seen["server"] == []

    pair.world.run(4_000)
    pair.far.send(b"x")
    pair.world.run(50)
    assert pair.seen["server"] == ["Connection reset by peer"]


def test_half_open_connection_that_nobody_noticed_carries_nothing(pair: Pair) -> None:
    pair.network.half_open(pair.near, noticed_by=None, mute_ms=1_000)
    pair.near.send(b"x")
    pair.world.run(500)
    assert pair.seen == {"client": [], "server": []}

    pair.world.run(1_000)
    pair.near.send(b"y")
    pair.world.run(50)
    assert pair.seen == {"client": ["Connection reset by peer"], "server": []}


def test_killed_process_has_its_connections_closed_by_the_kernel(pair: Pair) -> None:
    pair.server.kill()
    pair.network.drop_process(pair.server)
    pair.world.run(50)
    pair.dial()

    assert pair.seen["client"] == ["Connection reset by peer"]
    assert pair.refusals == ["Connection refused"]


def test_host_without_power_is_silent_until_it_is_back(pair: Pair) -> None:
    pair.server.kill()
    pair.network.power_off(pair.server)
    pair.near.send(b"x")
    pair.dial(wait_ms=10_000)
    assert pair.seen["client"] == []
    assert pair.refusals == ["no answer"]

    pair.network.power_on("10.0.0.1")
    pair.near.send(b"y")
    pair.world.run(50)
    assert pair.seen["client"] == ["Connection reset by peer"]


def test_heal_ends_cuts_refusals_and_silence(pair: Pair) -> None:
    pair.network.cut("10.0.0.2", "10.0.0.1", duration_ms=60_000)
    pair.network.refuse("10.0.0.2", "10.0.0.1", duration_ms=60_000)
    pair.near.send(b"held")
    pair.network.heal()
    pair.dial()

    assert pair.seen["server"] == [b"held"]
    assert len(pair.ends) == 2
