from __future__ import annotations

from msgspec.structs import replace

from processor_time import takes_less_than
from sparrowmq.broker.consumer_groups import (
    HEARTBEAT_EXPIRY_MS,
    ConsumerGroups,
    Joined,
    ListedMember,
    ProducerGroups,
)
from sparrowmq.model import MessageModel
from sparrowmq.protocol.bodies import ConsumerData, ConsumerListBody, SubscriptionData, decode_body
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.serving.connections import Connection

FIRST = Connection(1, "10.0.0.1:1", bytes(8))
SECOND = Connection(2, "10.0.0.1:2", bytes(8))


def member(client_id: str, seen_ms: int = 0) -> ListedMember:
    return ListedMember(client_id, LanguageCode.JAVA, 399, seen_ms)


def data(*subscriptions: SubscriptionData, group: str = "G") -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=list(subscriptions))


def on(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return parse_subscription(topic, expression, sub_version=version)


def test_first_heartbeat_is_a_change_and_the_same_again_is_none() -> None:
    groups = ConsumerGroups()

    assert groups.heartbeat(data(on("T")), member("a"), FIRST) == Joined(True, True)
    assert groups.heartbeat(data(on("T")), member("a", 5), FIRST) == Joined(False)


def test_group_consumes_as_its_last_heartbeat_says() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T")), member("a"), FIRST)

    groups.heartbeat(
        replace(data(on("T")), message_model=MessageModel.BROADCASTING), member("a"), FIRST
    )

    group = groups.find("G")
    assert group is not None
    assert group.message_model is MessageModel.BROADCASTING


def test_newer_subscription_of_a_known_topic_replaces_it_and_is_no_change() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T", "A", 1)), member("a"), FIRST)

    joined = groups.heartbeat(data(on("T", "B", 2)), member("a"), FIRST)

    group = groups.find("G")
    assert group is not None
    assert joined == Joined(False)
    assert group.subscriptions["T"].data.sub_string == "B"


def test_older_subscription_is_ignored() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T", "A", 2)), member("a"), FIRST)

    groups.heartbeat(data(on("T", "B", 1)), member("a"), FIRST)

    group = groups.find("G")
    assert group is not None
    assert group.subscriptions["T"].data.sub_string == "A"


def test_topic_that_comes_or_goes_is_a_change() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T")), member("a"), FIRST)

    assert groups.heartbeat(data(on("T"), on("U")), member("a"), FIRST) == Joined(True)
    assert groups.heartbeat(data(on("U")), member("a"), FIRST) == Joined(True)


def test_two_connections_of_one_client_id_are_two_members_and_are_told() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T")), member("172.17.0.1@9"), FIRST)

    sharing = groups.find_sharing(data(on("T")), "172.17.0.1@9", SECOND)
    joined = groups.heartbeat(data(on("T")), member("172.17.0.1@9"), SECOND)
    again = groups.heartbeat(data(on("T")), member("172.17.0.1@9"), SECOND)

    group = groups.find("G")
    assert group is not None
    assert sharing == ("10.0.0.1:1",)
    assert groups.find_sharing(data(on("T")), "172.17.0.1@9", SECOND) == ()
    assert joined == Joined(True, True)
    assert again == Joined(False)
    assert group.client_ids() == ["172.17.0.1@9", "172.17.0.1@9"]


def test_group_is_gone_with_its_last_member() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T")), member("a"), FIRST)
    groups.heartbeat(data(on("T")), member("b"), SECOND)

    groups.leave("G", FIRST)
    assert groups.find("G") is not None
    groups.leave("G", SECOND)

    assert groups.find("G") is None
    assert groups.groups_of(SECOND) == []


def test_duplicate_is_reported_again_for_a_new_connection() -> None:
    groups = ConsumerGroups()
    noted = [groups.note_duplicate(FIRST) for _ in range(2)]
    groups.leave_all(FIRST)

    assert [*noted, groups.note_duplicate(FIRST)] == [True, False, True]


def test_closed_connection_leaves_every_group() -> None:
    groups = ConsumerGroups()
    for group in ("G2", "G1"):
        groups.heartbeat(data(on("T"), group=group), member("a"), FIRST)

    assert groups.leave_all(FIRST) == ["G1", "G2"]
    assert groups.leave_all(FIRST) == []
    assert len(groups) == 0


def test_changes_of_a_large_group_are_announced_at_once_and_then_gathered() -> None:
    groups = ConsumerGroups(prompt_members_max=1, notice_pause_ms=100)
    groups.heartbeat(data(on("T")), member("a"), FIRST)
    group = groups.find("G")
    assert group is not None
    alone = [groups.announce(group, 0), groups.announce(group, 1)]
    groups.heartbeat(data(on("T")), member("b"), SECOND)

    changes = [groups.announce(group, now_ms) for now_ms in (2, 3, 201)]
    due = [groups.due_changes(now_ms) for now_ms in (201, 202)]

    assert alone == [True, True]
    assert changes == [True, False, False]
    assert due == [[], ["G"]]
    assert groups.announce(group, 202)
    assert groups.due_changes(1_000) == []


def test_changes_of_a_huge_group_are_gathered_for_a_second_at_most() -> None:
    groups = ConsumerGroups(prompt_members_max=0, notice_pause_ms=1e6)
    groups.heartbeat(data(on("T")), member("a"), FIRST)
    group = groups.find("G")
    assert group is not None

    assert [groups.announce(group, now_ms) for now_ms in (0, 999, 1_000)] == [True, False, True]


def test_gathered_change_of_a_group_that_is_gone_is_not_announced() -> None:
    groups = ConsumerGroups(prompt_members_max=0)
    groups.heartbeat(data(on("T")), member("a"), FIRST)
    group = groups.find("G")
    assert group is not None
    assert [groups.announce(group, 0), groups.announce(group, 0)] == [True, False]

    groups.leave_all(FIRST)

    assert groups.due_changes(10_000) == []


def test_encoded_list_follows_every_change_of_the_ids() -> None:
    groups = ConsumerGroups()

    def listed() -> tuple[list[str], bool]:
        group = groups.find("G")
        assert group is not None
        body = decode_body(ConsumerListBody, group.encoded_ids())
        return body.consumer_id_list, group.lists("a")

    seen = []
    for client_id, connection in (("a", FIRST), ("a", SECOND), ("b", FIRST), ("b", SECOND)):
        groups.heartbeat(data(on("T")), member(client_id), connection)
        seen.append(listed())
    groups.leave_all(FIRST)
    seen.append(listed())

    assert seen == [
        (["a"], True),
        (["a", "a"], True),
        (["b", "a"], True),
        (["b", "b"], False),
        (["b"], False),
    ]


def test_silent_members_are_found_after_the_expiry() -> None:
    groups = ConsumerGroups()
    groups.heartbeat(data(on("T")), member("a", 0), FIRST)
    groups.heartbeat(data(on("T")), member("b", 1), SECOND)

    assert groups.expired(HEARTBEAT_EXPIRY_MS) == []
    assert groups.expired(HEARTBEAT_EXPIRY_MS + 1) == [FIRST]


def test_silent_producers_are_dropped_after_the_expiry() -> None:
    producers = ProducerGroups()
    producers.heartbeat("P", member("a", 0), FIRST)
    producers.heartbeat("P", member("b", 5), SECOND)

    producers.expire(HEARTBEAT_EXPIRY_MS + 1)

    assert {SECOND: member("b", 5)} == producers.find("P")
    producers.leave_all(SECOND)
    assert producers.find("P") is None


def test_producer_with_another_client_id_is_found_by_that_one_alone() -> None:
    producers = ProducerGroups()
    for client_id in ("a", "b"):
        for group in ("P", "Q"):
            producers.heartbeat(group, member(client_id), FIRST)
    producers.heartbeat("P", member("c"), FIRST)

    assert [producers.find_client(each) for each in "abc"] == [None, None, FIRST]
    producers.leave("P", FIRST)
    assert producers.find_client("c") is FIRST
    producers.leave_all(FIRST)
    assert producers.find_client("c") is None


def test_a_producer_of_many_groups_leaves_in_linear_time() -> None:
    producers = ProducerGroups()
    for connection in (FIRST, SECOND):
        for number in range(5_000):
            producers.heartbeat(f"{connection.number}-{number}", member("a"), connection)
    with takes_less_than(0.25):
        producers.leave_all(SECOND)

    assert len(producers) == 5_000
