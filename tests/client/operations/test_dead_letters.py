"""Dead letters that are sent again while a broker of theirs does not answer."""

from __future__ import annotations

import pytest

from play import Play
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import dead_letters
from sparrowmq.client.operations.dead_letters import (
    DeadLetters,
    list_dead_letters,
    resend_dead_letters,
)
from sparrowmq.errors import ConnectFailed, InvokeTimeout, SendFailed, TransportError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    QueueData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

BROKERS = [BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}) for name in "ab"]
QUEUES = [
    QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in "ab"
]
BODIES = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData(broker_datas=BROKERS, queue_datas=QUEUES),
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(
        broker_addr_table={each.broker_name: each for each in BROKERS}
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable(
        subscription_group_table={"G": SubscriptionGroupConfig(group_name="G", retry_max_times=3)}
    ),
}


def letter(broker_name: str, offset: int) -> MessageExt:
    properties = {"UNIQ_KEY": f"{broker_name}{offset}", "RETRY_TOPIC": "T"}
    return MessageExt("%DLQ%G", b"x", properties, broker_name, 0, offset, 0, reconsume_times=3)


class OneAway:
    """Two brokers, of which b does not answer."""

    def __init__(self, error: type[TransportError]) -> None:
        self.error = error
        self.sent: list[dict[str, str]] = []

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if address == "b:1":
            raise self.error("away", address=address)
        if request.code == RequestCode.SEND_MESSAGE_V2:
            self.sent.append(dict(request.ext_fields or {}))
            return response_to(request)
        if request.code == RequestCode.GET_MAX_OFFSET:
            return response_to(request, ext_fields={"offset": "9"})
        return response_to(request, body=encode_body(BODIES[RequestCode(request.code)]))


@pytest.mark.parametrize("away", [InvokeTimeout, ConnectFailed])
def test_letters_of_other_brokers_go_and_the_error_counts_them(
    monkeypatch: pytest.MonkeyPatch, away: type[TransportError]
) -> None:
    monkeypatch.setattr(dead_letters, "FAILED_SHOWN_MAX", 2)
    letters = [letter(name, offset) for offset in range(3) for name in "ab"]
    servers = OneAway(away)

    with pytest.raises(SendFailed) as caught:
        Play(servers)(resend_dead_letters(make_directory("n:1"), "G", letters, by="me"))

    text = str(caught.value)
    assert "3 of 6 dead letters were sent to G again" in text
    assert "the others were not: b0, b1 and 1 more; away" in text
    assert caught.value.outcome_unknown
    assert isinstance(caught.value.__cause__, away)
    # They may fail as often as a new message that has failed once.
    assert {(fields["j"], fields["l"]) for fields in servers.sent} == {("1", "3")}
    origins = [fields["i"] for fields in servers.sent]
    assert [f"RESENT_FROM\x01%DLQ%G a:0:{n}\x02" in each for n, each in enumerate(origins)] == (
        [True] * 3
    )


def test_groups_with_most_letters_that_have_not_expired_come_first() -> None:
    ends = {"%DLQ%G": 5, "%DLQ%H": 7}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return response_to(request, body=encode_body(TopicList(topic_list=[*ends, "T"])))
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            topic, name = (request.ext_fields or {})["topic"], address.partition(":")[0]
            offsets = TopicOffset(min_offset=3, max_offset=ends[topic])
            stats = TopicStatsTable(offset_table={MessageQueue(topic, name, 0): offsets})
            return response_to(request, body=encode_body(stats))
        body = BODIES.get(RequestCode(request.code))
        return response_to(request, body=None if body is None else encode_body(body))

    found, missing = Play(answer)(list_dead_letters(make_directory("n:1")))

    assert (found, missing) == ([DeadLetters("H", 8, None), DeadLetters("G", 4, None)], {})


def test_error_stays_the_first_one_where_no_letter_went() -> None:
    servers = OneAway(ConnectFailed)

    with pytest.raises(ConnectFailed, match="away"):
        Play(servers)(
            resend_dead_letters(make_directory("n:1"), "G", [letter("b", n) for n in range(2)])
        )
    assert not servers.sent
