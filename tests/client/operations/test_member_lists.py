"""Whom a rebalance asks for the group's members, against brokers that list different ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from play import Handler, Play
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.member_events import note_connection_lost
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.member_loop import _heartbeat
from sparrowmq.client.operations.rebalance import find_shares
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.subscriber import RebalanceCallbacks, Subscriber
from sparrowmq.errors import ConnectFailed
from sparrowmq.membership.actions import Heartbeat
from sparrowmq.membership.listed_ids import REGISTERED_MS
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import OwnersListBody, encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.subscription import parse_subscription

ALL = ["c0", "c1", "c2"]


class Brokers:
    """Two brokers of one topic, and the members that each of them lists."""

    def __init__(self, play: Callable[[Handler], Play], strategy: Any) -> None:
        self.lists = {"a:1": ALL, "b:1": ALL}
        self.owners: dict[str, list[MessageQueue]] = {}
        self.silent: set[str] = set()
        self.play = play(self._answer)
        self.member = Subscriber(
            config=ConsumerConfig(group="G", client_id="c0", strategy=strategy),
            name_servers=NameServers(("127.0.0.1:9876",)),
            subscriptions={"T": parse_subscription("T", "*", sub_version=7)},
            listener=lambda *_: None,
            callbacks=RebalanceCallbacks(),
            report=lambda _: None,
        )
        self.member.companions = {"G": self.member}
        self.heartbeat("b:1")

    def _answer(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if address in self.silent:
            raise ConnectFailed("away", address=address)
        if request.code == RequestCode.HEART_BEAT:
            return response_to(request)
        body = OwnersListBody(consumer_id_list=self.lists[address], sparrowmq_owners=self.owners)
        return response_to(request, body=encode_body(body))

    def heartbeat(self, *addresses: str) -> None:
        """Send a heartbeat to the brokers that the route has now."""
        queues = tuple(MessageQueue("T", name, each) for name in "ab" for each in range(3))
        route = TopicRoute(
            topic="T",
            publish_queues=queues,
            subscribe_queues=queues,
            brokers={address[0]: {0: address} for address in addresses},
            is_template=False,
            fetched_ms=self.play.now_ms,
        )
        self.member.routes.update(route)
        assert self.member.member.heartbeat.join(self.play.now_ms)
        self.play(_heartbeat(self.member, Heartbeat()))

    def share(self) -> TopicShare:
        """Rebalance; return the share of the topic."""
        shares = self.play(find_shares(self.member))
        self.member.member.rebalanced(shares, self.play.now_ms)
        return next(share for share in shares if share.topic == "T")

    def rebalance(self) -> tuple[str, ...]:
        """Rebalance; return the members that divided the queues."""
        return self.share().cid_all


@pytest.mark.parametrize("strategy", ["AVG", "MINIMAL_MOVE"])
def test_a_broker_that_comes_back_lacks_members_that_the_other_one_lists(
    play: Callable[[Handler], Play], strategy: Any
) -> None:
    brokers = Brokers(play, strategy)
    before = brokers.rebalance()
    brokers.lists["a:1"] = ["c0"]
    brokers.heartbeat("a:1", "b:1")

    meanwhile = brokers.rebalance()
    brokers.play.now_ms += REGISTERED_MS
    later = brokers.rebalance()

    assert (before, meanwhile, later) == (tuple(ALL), tuple(ALL), ("c0",))


def test_a_new_member_counts_the_members_of_all_brokers(play: Callable[[Handler], Play]) -> None:
    brokers = Brokers(play, "AVG")
    brokers.lists |= {"a:1": ["c0"], "b:1": ["c0", "c2"]}
    brokers.heartbeat("a:1", "b:1")

    assert brokers.rebalance() == ("c0", "c2")


@pytest.mark.parametrize("strategy", ["AVG", "MINIMAL_MOVE"])
def test_id_that_a_broker_lists_twice_is_listed_twice(
    play: Callable[[Handler], Play], strategy: Any
) -> None:
    brokers = Brokers(play, strategy)
    brokers.lists["b:1"] = ["c0", "c1", "c1"]

    assert brokers.rebalance() == ("c0", "c1", "c1")


def test_queues_of_a_silent_broker_stay_with_their_owner_while_others_are_divided(
    play: Callable[[Handler], Play],
) -> None:
    brokers = Brokers(play, "MINIMAL_MOVE")
    brokers.heartbeat("a:1", "b:1")
    queues = {name: [MessageQueue("T", name, n) for n in range(3)] for name in "ab"}
    brokers.lists = {"a:1": ["c0", "c1"], "b:1": ["c0", "c1"]}
    brokers.owners = {"c0": queues["a"], "c1": queues["b"]}
    brokers.rebalance()
    before = brokers.member.member.assigned
    brokers.silent = {"a:1"}
    brokers.lists["b:1"] = ["c0"]

    later = []
    for _ in range(3):
        brokers.rebalance()
        later.append(brokers.member.member.assigned)

    assert before == tuple(queues["a"])
    assert later == [before, before, (*queues["a"], *queues["b"])]


@pytest.mark.parametrize(
    ("owners", "is_settled"),
    [
        ({"c0": [0, 1], "c1": [2]}, True),
        ({"c0": [0, 1], "gone": [2]}, False),
        ({"c0": [0, 1]}, False),
        ({"c1": [0, 1, 2]}, False),
    ],
    ids=["all where they belong", "one who has left", "nobody", "another member"],
)
def test_share_is_settled_once_each_queue_is_held_by_the_member_that_it_falls_to(
    play: Callable[[Handler], Play], owners: dict[str, list[int]], is_settled: bool
) -> None:
    brokers = Brokers(play, "MINIMAL_MOVE")
    brokers.lists["b:1"] = ["c0", "c1"]
    brokers.owners = {
        cid: [MessageQueue("T", "b", number) for number in numbers]
        for cid, numbers in owners.items()
    }

    assert brokers.share().is_settled is is_settled


@pytest.mark.parametrize("queue_id", range(3))
def test_a_queue_that_was_ours_and_has_no_owner_now_stays_in_our_share(
    play: Callable[[Handler], Play], queue_id: int
) -> None:
    brokers = Brokers(play, "MINIMAL_MOVE")
    brokers.lists["b:1"] = [*ALL, "idle"]
    ours, *others = (MessageQueue("T", "b", (queue_id + each) % 3) for each in range(3))
    brokers.owners = {"c0": [ours], "c1": others[:1], "c2": others[1:]}
    brokers.rebalance()
    del brokers.owners["c0"]

    shares = []
    for _ in range(2):
        brokers.rebalance()
        shares.append(brokers.member.member.assigned)

    # "idle" has seen the queue in our hand, and does not look again for long.
    assert shares == [(ours,), (ours,)]


def test_a_queue_of_our_share_that_another_member_has_taken_is_that_members(
    play: Callable[[Handler], Play],
) -> None:
    brokers = Brokers(play, "MINIMAL_MOVE")
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    brokers.lists["b:1"] = [*ALL, "other"]
    brokers.owners = {"c0": queues[:1], "c1": queues[1:2], "c2": queues[2:]}
    brokers.rebalance()
    brokers.owners["other"] = brokers.owners.pop("c0")
    brokers.rebalance()

    assert brokers.member.member.assigned == ()


def test_broker_whose_connection_is_lost_has_not_answered(
    play: Callable[[Handler], Play],
) -> None:
    brokers = Brokers(play, "AVG")
    brokers.heartbeat("a:1", "b:1")
    assert brokers.member.answered == {"a:1", "b:1"}
    note_connection_lost({"G": brokers.member}, "a:1", now_ms=brokers.play.now_ms)

    assert brokers.member.answered == {"b:1"}
