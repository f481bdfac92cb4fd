"""Sending: attempts, retries, routes; without sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from batches import decode_batch
from hostile import altered
from play import Handler, Play, make_publisher
from sending_servers import SENDS, Servers
from sparrowmq.client.config import BATCH_COUNT_MAX
from sparrowmq.client.operations.routes import PASSING_ROUTE_MS, UNUSED_ROUTE_MS
from sparrowmq.client.operations.send import (
    Attempt,
    fetch_publish_queues,
    go_on,
    leave,
    prepare,
    prepare_batch,
    read_outcome,
    select_queue,
    send,
    send_batch,
    send_oneway,
)
from sparrowmq.client.operations.transactions import end, send_half
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.transaction_outcomes import Coordinator, HalfMessage
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    InvokeTimeout,
    NoWritableQueue,
    RemoteProtocolError,
    SendFailed,
    TopicRouteNotFound,
    TransportError,
    UsageError,
)
from sparrowmq.model import Message, MessageQueue, SendResult, SendStatus, TransactionState
from sparrowmq.protocol.bodies import (
    PERM_READ,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.message_id import encode_offset_msg_id
from sparrowmq.protocol.send_request import SendRequest

NAME_SERVER = "ns:1"


def refused(address: str) -> ConnectFailed:
    return ConnectFailed(f"cannot connect to {address}", address=address)


def test_message_goes_to_the_next_queue_with_rocketmqs_header(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")
    driver = play(servers)

    result = driver(send(make_publisher(), Message("T", b"body", tags="A")))

    assert result.status == SendStatus.SEND_OK
    assert (
        result.queue,
        result.queue_offset,
        result.offset_msg_id,
    ) == (MessageQueue("T", "a", 1), 7, "OFFSET_ID")
    ((address, request),) = servers.sent
    assert address == "a:1"
    assert request.ext_fields == {
        "a": "GP",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "1000000",
        "h": "0",
        "i": f"TAGS\x01A\x02UNIQ_KEY\x01{result.msg_id}",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert request.body == b"body"


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")],
)
def test_stored_with_a_reservation_is_no_error(
    play: Callable[[Handler], Play], code: int, status: str
) -> None:
    servers = Servers("a")
    servers.failures["a:1"] = [code]

    assert SendStatus[status] == play(servers)(send(make_publisher(), Message("T", b"x"))).status


def make_coordinator() -> Coordinator:
    return Coordinator(
        publisher=make_publisher(),
        check=lambda _: TransactionState.UNKNOWN,
        report=lambda failure: pytest.fail(f"{failure}"),
    )


@pytest.mark.parametrize("code", [10, 11, 12])
def test_half_message_that_is_stored_with_a_reservation_is_rolled_back(
    play: Callable[[Handler], Play], code: int
) -> None:
    servers = Servers("a")
    servers.failures["a:1"] = [code]
    servers.offset_msg_id = encode_offset_msg_id(bytes(8), 64)
    driver = play(servers)
    coordinator = make_coordinator()

    with pytest.raises(SendFailed, match="was rolled back"):
        driver(send_half(coordinator, Message("T", b"x")))

    ends = [sent for _, sent in driver.requests if sent.code == RequestCode.END_TRANSACTION]
    assert [(sent.ext_fields or {})["commitOrRollback"] for sent in ends] == ["12"]


def test_half_message_of_another_process_is_ended(play: Callable[[Handler], Play]) -> None:
    driver = play(Servers("a"))
    offset_msg_id = encode_offset_msg_id(bytes(8), 64)
    half = HalfMessage("id", offset_msg_id, MessageQueue("T", "a", 0), 3)

    assert driver(end(make_coordinator(), half, TransactionState.COMMIT)) is TransactionState.COMMIT

    address, sent = driver.requests[-1]
    assert (address, sent.code) == ("a:1", RequestCode.END_TRANSACTION)
    assert (sent.ext_fields or {})["tranStateTableOffset"] == "3"


def test_end_that_its_broker_confirmed_is_not_sent_again(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    servers.offset_msg_id = encode_offset_msg_id(bytes(8), 64)
    driver = play(servers)
    coordinator = make_coordinator()
    half = driver(send_half(coordinator, Message("T", b"x")))
    for _ in range(2):
        outcome = driver(end(coordinator, half, TransactionState.COMMIT))
        assert outcome is TransactionState.COMMIT

    # Apache's brokers deliver a message twice that is committed twice.
    assert [sent.code for _, sent in driver.requests].count(RequestCode.END_TRANSACTION) == 1


def test_failed_send_is_tried_at_another_broker_at_once(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a", "b")
    servers.failures = {"a:1": [refused("a:1")] * 9}
    driver = play(servers)

    results = [driver(send(make_publisher(), Message("T", b"x"))) for _ in range(4)]

    assert {result.queue.broker_name for result in results} == {"b"}
    assert driver.slept_ms == []


def test_single_broker_is_given_a_moment_between_attempts(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    servers.failures["a:1"] = [refused("a:1"), ResponseCode.SYSTEM_BUSY]
    driver = play(servers)

    result = driver(send(make_publisher(), Message("T", b"x")))

    assert result.status == SendStatus.SEND_OK
    assert driver.slept_ms == [100, 200]
    assert len(servers.sent) == 3


def test_send_that_fails_everywhere_names_the_brokers_and_what_to_try(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", "b")
    servers.failures = {"a:1": [refused("a:1")] * 9, "b:1": [refused("b:1")] * 9}

    with pytest.raises(SendFailed, match="see whether the broker runs") as caught:
        play(servers)(send(make_publisher(), Message("T", b"x")))

    assert set(caught.value.brokers_tried) == {"a", "b"}
    assert len(caught.value.brokers_tried) == 3
    assert isinstance(caught.value.__cause__, ConnectFailed)


@pytest.mark.parametrize("later", ["refused", "illegal", "no queue"])
def test_send_that_a_broker_may_have_stored_says_so_whatever_follows(
    play: Callable[[Handler], Play], later: str
) -> None:
    servers = Servers("a", "b")
    servers.failures["a:1"] = [InvokeTimeout("late", address="a:1"), refused("a:1")]
    servers.failures["b:1"] = [
        refused("b:1") if later == "refused" else ResponseCode.MESSAGE_ILLEGAL
    ]

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code in SENDS and later == "no queue":
            servers.perm = PERM_READ
        return servers(address, request)

    with pytest.raises(SendFailed, match="may have stored it") as caught:
        play(answer)(send(make_publisher(), Message("T", b"x")))
    assert caught.value.outcome_unknown


def play_without_answers(play: Callable[[Handler], Play], *names: str, wait_ms: int) -> Play:
    """Play brokers that answer no send, which is found after a time."""
    servers = Servers(*names)
    driver = play(servers)

    def keep_silent(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code in SENDS:
            driver.now_ms += wait_ms
            raise InvokeTimeout("no answer", address=address)
        return servers(address, request)

    driver.handler = keep_silent
    return driver


def test_no_attempt_begins_after_the_timeout(play: Callable[[Handler], Play]) -> None:
    driver = play_without_answers(play, "a", wait_ms=3_000)
    with pytest.raises(SendFailed) as caught:
        driver(send(make_publisher(), Message("T", b"x")))

    assert caught.value.brokers_tried == ("a",)


def test_an_attempt_waits_for_what_is_left_of_the_timeout(
    play: Callable[[Handler], Play],
) -> None:
    driver = play_without_answers(play, "a", "b", wait_ms=2_000)
    with pytest.raises(SendFailed):
        driver(send(make_publisher(send_timeout_ms=3_000), Message("T", b"x")))

    codes = [request.code for _, request in driver.requests]
    waits_ms = [wait for code, wait in zip(codes, driver.waits_ms, strict=True) if code in SENDS]
    assert waits_ms == [3_000, 1_000]


def test_pause_between_attempts_ends_with_the_timeout(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    servers.failures["a:1"] = [refused("a:1")] * 9
    driver = play(servers)
    with pytest.raises(SendFailed):
        driver(send(make_publisher(send_timeout_ms=250, retry_times=5), Message("T", b"x")))

    assert driver.slept_ms == [100, 150]


def test_refusal_for_good_is_not_repeated(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a", "b")
    servers.failures = {"a:1": [13], "b:1": [13]}

    with pytest.raises(BrokerError) as caught:
        play(servers)(send(make_publisher(), Message("T", b"x")))

    assert (caught.value.code, caught.value.remark) == (13, "said")
    assert len(servers.sent) == 1


def test_a_broker_that_forbids_is_not_asked_again_where_no_other_may_be(
    play: Callable[[Handler], Play],
) -> None:
    alone, several = Servers("a"), Servers("a", "b")
    alone.failures = {"a:1": [ResponseCode.NO_PERMISSION]}
    several.failures = {"a:1": [ResponseCode.NO_PERMISSION], "b:1": [ResponseCode.NO_PERMISSION]}

    with pytest.raises(BrokerError):
        play(alone)(send(make_publisher(), Message("T", b"x")))
    with pytest.raises(SendFailed):
        play(several)(send(make_publisher(retry_times=1), Message("T", b"x")))

    assert (len(alone.sent), len(several.sent)) == (1, 2)


def test_access_control_that_refuses_who_asks_is_believed_at_once(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", "b")
    servers.remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    servers.failures = {"a:1": [ResponseCode.SYSTEM_ERROR], "b:1": [ResponseCode.SYSTEM_ERROR]}

    with pytest.raises(BrokerError, match="No accessKey is configured"):
        play(servers)(send(make_publisher(), Message("T", b"x")))

    assert len(servers.sent) == 1


def test_sharding_key_and_named_queue_stay_with_their_queue(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", "b")
    servers.failures = {"a:1": [refused("a:1")], "b:1": [refused("b:1")]}
    publisher = make_publisher()
    message = Message("T", b"x", sharding_key="N123")
    driver = play(servers)

    selected = driver(select_queue(publisher, message))
    by_key = driver(send(publisher, message))
    named = driver(send(publisher, message, queue=MessageQueue("T", "b", 1)))

    assert MessageQueue("T", "a", 0) == selected == by_key.queue
    assert named.queue == MessageQueue("T", "b", 1)
    # The only broker that may take the message gets a moment.
    assert driver.slept_ms == [100, 100]


def test_function_of_the_user_chooses_among_the_queues(
    play: Callable[[Handler], Play],
) -> None:
    publisher = make_publisher()
    driver = play(Servers("a", "b"))
    seen: list[list[MessageQueue]] = []

    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        seen.append(list(queues))
        return queues[-1]

    result = driver(send(publisher, Message("T", b"x"), queue=last))

    assert seen[0][-1] == result.queue
    wrong: list[tuple[Any, str]] = [
        (None, "is not a queue"),
        (MessageQueue("U", "a", 0), "which is not a writable queue of topic 'T'"),
    ]
    for chosen, words in wrong:
        with pytest.raises(UsageError, match=words):
            driver(send(publisher, Message("T", b"x"), queue=lambda q, m, c=chosen: c))


def test_batch_is_one_request_with_an_id_for_each_message(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    messages = [Message("T", b"1", tags="A"), Message("T", b"2", flag=3)]

    result = play(servers)(send_batch(make_publisher(), messages))

    ((_, request),) = servers.sent
    entries = decode_batch(request.body or b"")
    first, second = result.msg_id.split(",")
    assert entries == [
        (0, b"1", f"TAGS\x01A\x02UNIQ_KEY\x01{first}"),
        (3, b"2", f"UNIQ_KEY\x01{second}"),
    ]
    assert ((request.ext_fields or {})["m"], (request.ext_fields or {})["i"]) == ("true", "")


def test_batch_is_cut_where_brokers_take_no_more_and_stays_in_its_queue(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", "b", queues=4)
    publisher = make_publisher(body_bytes_max=1_000)
    messages = [Message("T", b"%d" % n * 300, keys=(f"k{n}",)) for n in range(7)]
    messages.append(Message("T", bytes(990)))

    result = play(servers)(send_batch(publisher, messages))

    ids = result.msg_id.split(",")
    assert len(set(ids)) == 8
    assert result.offset_msg_id.split(",") == ["OFFSET_ID"] * 5
    requests = [request for _, request in servers.sent]
    whole = [len(decode_batch(request.body or b"")) for request in requests[:-1]]
    assert whole == [2, 2, 2, 1]
    assert all(len(request.body or b"") <= 1_000 for request in requests)
    assert len({(a, (r.ext_fields or {})["e"]) for a, r in servers.sent}) == 1
    # It does not fit with what surrounds a message in a batch.
    last = requests[-1]
    assert ("false", bytes(990)) == ((last.ext_fields or {})["m"], last.body)


def test_many_messages_are_batches_of_512(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")

    play(servers)(send_batch(make_publisher(), [Message("T", b"x")] * 1_100))

    assert [len(decode_batch(r.body or b"")) for _, r in servers.sent] == [512, 512, 76]


def test_batch_that_fails_midway_says_how_many_are_stored(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    servers.failures = {"a:1": [ResponseCode.SUCCESS, *[ResponseCode.SYSTEM_ERROR] * 9]}

    with pytest.raises(SendFailed, match="the first 512 of 600 messages of a batch to") as caught:
        play(servers)(send_batch(make_publisher(), [Message("T", b"x")] * 600))

    # Sent again, the first 512 would be there twice.
    assert caught.value.outcome_unknown


def test_nothing_of_a_batch_is_sent_if_one_message_is_wrong(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")

    with pytest.raises(UsageError, match="1 to"):
        play(servers)(
            send_batch(make_publisher(), [Message("T", b"x")] * 600 + [Message("T", b"")])
        )

    assert servers.sent == []


@pytest.mark.parametrize("failure", [refused("b:1"), ResponseCode.SYSTEM_BUSY])
def test_broker_that_does_not_answer_or_refuses_is_avoided_by_later_sends_if_asked_for(
    play: Callable[[Handler], Play], failure: ConnectFailed | ResponseCode
) -> None:
    servers = Servers("a", "b", queues=1)
    servers.failures = {"b:1": [failure]}
    publisher = make_publisher(avoid_slow_brokers=True)
    played = play(servers)

    for _ in range(5):
        played(send(publisher, Message("T", b"x")))

    assert [address for address, _ in servers.sent].count("b:1") == 1
    played.now_ms += 600_000
    for _ in range(2):
        played(send(publisher, Message("T", b"x")))
    assert [address for address, _ in servers.sent].count("b:1") == 2


def test_broker_that_refuses_a_message_for_good_is_not_avoided(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", "b", queues=1)
    servers.failures = {"b:1": [ResponseCode.MESSAGE_ILLEGAL]}
    publisher = make_publisher(avoid_slow_brokers=True)
    played = play(servers)

    for _ in range(2):
        with suppress(BrokerError):
            played(send(publisher, Message("T", b"x")))
    for _ in range(4):
        played(send(publisher, Message("T", b"x")))

    assert [address for address, _ in servers.sent].count("b:1") == 3


def test_batch_of_several_sharding_keys_is_refused(play: Callable[[Handler], Play]) -> None:
    messages = [Message("T", b"1", sharding_key="a"), Message("T", b"2", sharding_key="b")]

    with pytest.raises(UsageError, match="sharding keys"):
        play(Servers("a"))(send_batch(make_publisher(), messages))


def test_oneway_is_written_and_not_waited_for(play: Callable[[Handler], Play]) -> None:
    driver = play(Servers("a"))

    driver(send_oneway(make_publisher(), Message("T", b"x")))

    ((address, request),) = driver.oneways
    assert (address, request.is_oneway) == ("a:1", True)


def test_topic_without_route_is_created_by_the_templates(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a", queues=8)
    servers.topics = {"TBW102": ("a",)}
    driver = play(servers)
    publisher = make_publisher()

    queues = driver(fetch_publish_queues(publisher, "NEW"))
    driver(send(publisher, Message("NEW", b"x")))
    servers.topics["NEW"] = ("a",)
    driver.now_ms += 1_001
    driver(send(publisher, Message("NEW", b"x")))

    assert [MessageQueue("NEW", "a", n) for n in range(4)] == queues
    route = publisher.routes.find("NEW")
    assert route is not None
    assert (len(route.publish_queues), route.is_template) == (8, False)


@pytest.mark.parametrize("left", [{"TBW102": ("a",)}, {}])
def test_restarted_name_server_moves_no_key(
    play: Callable[[Handler], Play], left: dict[str, tuple[str, ...]]
) -> None:
    servers = Servers("a", queues=8)
    driver = play(servers)
    publisher = make_publisher()
    keyed = [Message("T", b"x", sharding_key=f"k{number}") for number in range(8)]
    before = [driver(send(publisher, message)).queue for message in keyed]
    servers.topics = left
    driver.now_ms += 30_001

    after = [driver(send(publisher, message)).queue for message in keyed]

    assert after == before
    assert max(queue.queue_id for queue in after) > 3
    with pytest.raises(TopicRouteNotFound):
        driver(fetch_publish_queues(publisher, "T"))


def test_routes_of_topics_that_nobody_sends_to_any_more_are_forgotten(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")
    servers.topics |= {f"T{number}": ("a",) for number in range(1_000)}
    driver, publisher = play(servers), make_publisher()
    for number in range(1_000):
        driver(send(publisher, Message(f"T{number}", b"x")))
    # The name server has lost the topic, which producers go on with.
    del servers.topics["T1"]
    for _ in range(4):
        driver.now_ms += UNUSED_ROUTE_MS // 2
        for topic in ("T0", "T1", "T"):
            driver(send(publisher, Message(topic, b"x")))

    assert sorted(publisher.routes.topics) == ["T", "T0", "T1"]


def test_topic_registered_between_two_answers_keeps_its_queues(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a", queues=8)
    servers.topics = {}

    def register_after_one_answer(address: str, request: RemotingCommand) -> RemotingCommand:
        answer = servers(address, request)
        servers.topics = {"TBW102": ("a",), "T": ("a",)}
        return answer

    queues = play(register_after_one_answer)(fetch_publish_queues(make_publisher(), "T"))

    assert queues == [MessageQueue("T", "a", n) for n in range(8)]


def test_topic_that_cannot_be_created_is_not_found(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(TopicRouteNotFound, match="'NONE'"):
        play(Servers("a"))(send(make_publisher(), Message("NONE", b"x")))


def test_topic_without_a_writable_queue_says_so(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(NoWritableQueue, match="no master or no write permission"):
        play(Servers("a", perm=4))(send(make_publisher(), Message("T", b"x")))


@pytest.mark.parametrize("key", ["", "k"])
def test_message_follows_a_static_topics_queue_to_another_broker(
    play: Callable[[Handler], Play], key: str
) -> None:
    servers = Servers("a", "b")
    servers.static_owner = "a"
    driver, publisher = play(servers), make_publisher()
    message = Message("T", b"x", sharding_key=key)
    driver(send(publisher, message, queue=MessageQueue("T", "__syslo__global__", 0)))
    servers.failures["a:1"] = [ResponseCode.NOT_LEADER_FOR_QUEUE] * 9
    servers.static_owner = "b"

    result = driver(send(publisher, message))

    assert [address for address, _ in servers.sent] == ["a:1", "a:1", "b:1"]
    assert result.queue.broker_name == "__syslo__global__"
    assert result.status is SendStatus.SEND_OK


def test_message_to_a_static_topics_queue_may_have_no_offset_yet(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")
    servers.static_owner, servers.offset = "a", "-1"

    assert play(servers)(send(make_publisher(), Message("T", b"x"))).queue_offset == -1

    others = Servers("a")
    others.offset = "-1"
    with pytest.raises(RemoteProtocolError, match="names offset -1"):
        play(others)(send(make_publisher(), Message("T", b"x")))


def test_broker_that_gets_a_master_takes_messages_soon(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a", perm=4)
    driver = play(servers)
    publisher = make_publisher()
    with pytest.raises(NoWritableQueue):
        driver(send(publisher, Message("T", b"x")))
    servers.perm = 6
    driver.now_ms += PASSING_ROUTE_MS + 1

    assert driver(send(publisher, Message("T", b"x"))).status is SendStatus.SEND_OK


def test_unreachable_name_server_is_named(play: Callable[[Handler], Play]) -> None:
    def nobody(address: str, request: RemotingCommand) -> RemotingCommand:
        raise refused(address)

    with pytest.raises(ConnectFailed, match="no name server answers at ns:1"):
        play(nobody)(send(make_publisher(), Message("T", b"x")))


def test_old_route_serves_while_a_new_one_is_asked_for(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")
    driver = play(servers)
    publisher = make_publisher()
    driver(send(publisher, Message("T", b"x")))
    driver.now_ms += 30_001
    servers.topics["T"] = ("a", "b")

    driver(send(publisher, Message("T", b"x")))

    route = publisher.routes.find("T")
    assert route is not None
    assert {queue.broker_name for queue in route.publish_queues} == {"a", "b"}


def test_the_templates_route_serves_while_no_name_server_answers(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")
    servers.topics = {"TBW102": ("a",)}
    is_away = False

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if is_away and address == NAME_SERVER:
            raise refused(address)
        return servers(address, request)

    driver = play(answer)
    publisher = make_publisher()
    driver(send(publisher, Message("NEW", b"x")))
    route = publisher.routes.find("NEW")
    assert route is not None
    assert route.is_template
    is_away = True
    driver.now_ms += PASSING_ROUTE_MS + 1

    assert driver(send(publisher, Message("NEW", b"x"))).status is SendStatus.SEND_OK


def test_brokers_hear_of_the_producer_and_of_its_end(play: Callable[[Handler], Play]) -> None:
    driver = play(Servers("a"))
    publisher = make_publisher()
    driver(leave(publisher))
    assert driver.requests == []
    for _ in range(3):
        driver(send(publisher, Message("T", b"x")))
    driver(leave(publisher))

    codes = [request.code for _, request in driver.requests]
    assert codes.count(RequestCode.HEART_BEAT) == 1
    assert codes[-1] == RequestCode.UNREGISTER_CLIENT


def test_producer_that_goes_on_sending_stays_known_to_brokers(
    play: Callable[[Handler], Play],
) -> None:
    driver, publisher = play(Servers("a")), make_publisher()
    driver(send(publisher, Message("T", b"x")))
    driver.now_ms += publisher.config.times.heartbeat_ms
    driver(fetch_publish_queues(publisher, "T"))

    # The way around the operation has no heartbeat.
    now_ms = driver.now_ms
    assert prepare(publisher, Message("T", b"x"), None, timestamp_ms=1, now_ms=now_ms) is None
    driver(send(publisher, Message("T", b"x")))
    codes = [request.code for _, request in driver.requests]
    assert codes.count(RequestCode.HEART_BEAT) == 2


def test_answer_without_its_fields_is_a_protocol_error(play: Callable[[Handler], Play]) -> None:
    servers = Servers("a")

    def bare(address: str, request: RemotingCommand) -> RemotingCommand:
        return response_to(request) if request.code in SENDS else servers(address, request)

    with pytest.raises(RemoteProtocolError, match="queueId"):
        play(bare)(send(make_publisher(), Message("T", b"x")))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"queueId": "-9"}, "names queue -9"),
        ({"queueId": "1000"}, "names queue 1000"),
        ({"queueOffset": "-1"}, "names offset -1"),
        ({"queueOffset": str(1 << 62)}, "names offset"),
        ({"queueOffset": "9" * 5000}, "lacks"),
        ({"queueOffset": "x"}, "lacks"),
    ],
)
def test_answer_that_cannot_be_right_is_a_protocol_error(
    play: Callable[[Handler], Play], fields: dict[str, str], what: str
) -> None:
    servers = Servers("a")

    def lie(address: str, request: RemotingCommand) -> RemotingCommand:
        answer = servers(address, request)
        return altered(answer, **fields) if request.code in SENDS else answer

    with pytest.raises(RemoteProtocolError, match=f"{what}.*is not known") as caught:
        play(lie)(send(make_publisher(), Message("T", b"x")))
    assert caught.value.outcome_unknown


def test_message_to_a_retry_topic_stands_in_the_queue_that_the_answer_names(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers("a")
    servers.topics["%RETRY%G"] = ("a",)
    # As of a dead letter, whose topic has one queue.
    servers.more = {"queueId": "0"}

    result = play(servers)(send(make_publisher(), Message("%RETRY%G", b"x")))

    assert result.queue == MessageQueue("%RETRY%G", "a", 0)


def test_message_to_a_queue_of_another_topic_is_refused(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(UsageError, match="cannot go to a queue of 'U'"):
        play(Servers("a"))(
            send(make_publisher(), Message("T", b"x"), queue=MessageQueue("U", "a", 0))
        )


def test_result_is_a_plain_tuple() -> None:
    queue = MessageQueue("T", "a", 0)
    result = SendResult(SendStatus.SEND_OK, "m", "o", queue, 5)

    assert result == (SendStatus.SEND_OK, "m", "o", queue, 5, None)


# --- the way around the operation -----------------------------------------------------------------


def send_directly(
    driver: Play, publisher: Publisher, messages: list[Message], queue: MessageQueue | None = None
) -> SendResult:
    """Send a message or several as a face does."""
    now_ms = driver.now_ms
    if len(messages) == 1:
        direct = prepare(publisher, messages[0], queue, timestamp_ms=now_ms, now_ms=now_ms)
    else:
        direct = prepare_batch(publisher, messages, queue, timestamp_ms=now_ms, now_ms=now_ms)
    assert direct is not None
    outcome: RemotingCommand | TransportError
    try:
        request = direct.invoke.request
        assert isinstance(request, SendRequest)
        outcome = driver.handler(direct.invoke.address, request.command())
    except TransportError as error:
        outcome = error
    result = read_outcome(publisher, direct.load, direct.target, outcome)
    if result is not None:
        return result
    result = driver(go_on(publisher, direct, outcome))
    assert isinstance(result, SendResult)
    return result


FAILURES: list[tuple[list[Exception | int], int]] = [
    ([], 2),
    ([ResponseCode.SYSTEM_BUSY], 2),
    ([refused("a:1"), ResponseCode.SYSTEM_ERROR], 2),
    ([refused("a:1")] * 9, 2),
    ([refused("a:1")], 0),
    ([InvokeTimeout("no answer", address="a:1")] * 2, 1),
    ([ResponseCode.NO_PERMISSION], 2),
    ([ResponseCode.MESSAGE_ILLEGAL], 2),
    ([ResponseCode.FLUSH_DISK_TIMEOUT], 2),
    ([InvokeTimeout("no answer", address="a:1"), ResponseCode.MESSAGE_ILLEGAL], 2),
]


@pytest.mark.parametrize("brokers", [("a",), ("a", "b")])
@pytest.mark.parametrize(("failures", "retry_times"), FAILURES)
@pytest.mark.parametrize("queue", [None, MessageQueue("T", "a", 1)])
@pytest.mark.parametrize("count", [1, 3])
def test_sends_around_the_operation_end_as_those_by_it(
    play: Callable[[Handler], Play],
    brokers: tuple[str, ...],
    failures: list[Exception | int],
    retry_times: int,
    queue: MessageQueue | None,
    count: int,
) -> None:
    def outcome_of(*, is_direct: bool) -> Any:
        servers = Servers(*brokers)
        driver, publisher = play(servers), make_publisher(retry_times=retry_times)
        messages = [Message("T", b"x%d" % n, keys=("k",), tags="A") for n in range(count)]
        # The route is known then, and the broker knows the producer.
        driver(send(publisher, messages[0]))
        servers.sent.clear()
        servers.failures["a:1"] = list(failures)
        ended: Any
        try:
            if is_direct:
                ended = send_directly(driver, publisher, messages, queue)
            elif count == 1:
                ended = driver(send(publisher, messages[0], queue=queue))
            else:
                ended = driver(send_batch(publisher, messages, queue=queue))
        except (SendFailed, BrokerError) as error:
            ended = type(error), str(error), getattr(error, "brokers_tried", None)
        sent = [(at, r.code, dict(r.ext_fields or {}), r.body) for at, r in servers.sent]
        return ended, driver.slept_ms, sent

    assert outcome_of(is_direct=False) == outcome_of(is_direct=True)


def test_only_the_usual_send_goes_around_the_operation(play: Callable[[Handler], Play]) -> None:
    driver, publisher = play(Servers("a")), make_publisher()
    message = Message("T", b"x")

    def is_direct(*, later_ms: int = 0, queue: Any = None) -> bool:
        now_ms = driver.now_ms + later_ms
        return prepare(publisher, message, queue, timestamp_ms=1, now_ms=now_ms) is not None

    # No route yet, and no heartbeat.
    assert not is_direct()
    driver(send(publisher, message))
    assert is_direct()
    assert not is_direct(queue=lambda queues, _: queues[0])
    assert not is_direct(later_ms=publisher.config.times.route_refresh_ms + 1)
    with pytest.raises(UsageError, match="is not a Message"):
        prepare(publisher, "text", None, timestamp_ms=1, now_ms=driver.now_ms)  # type: ignore[arg-type]
    publisher.routes.remove("T")
    assert not is_direct()


def test_batch_of_one_request_goes_around_the_operation(play: Callable[[Handler], Play]) -> None:
    driver, publisher = play(Servers("a")), make_publisher()
    driver(send(publisher, Message("T", b"x")))

    def prepared(*messages: Message, queue: MessageQueue | None = None) -> Attempt | None:
        now_ms = driver.now_ms
        return prepare_batch(publisher, messages, queue, timestamp_ms=1, now_ms=now_ms)

    many, large = [Message("T", b"x")] * BATCH_COUNT_MAX, Message("T", bytes(3_000_000))
    direct = prepared(*many)
    assert direct is not None
    request = direct.invoke.request
    assert isinstance(request, SendRequest)
    assert [e.body for e in decode_batch(request.body)] == [b"x"] * BATCH_COUNT_MAX
    assert len(direct.load.msg_id.split(",")) == BATCH_COUNT_MAX
    assert prepared(*many, many[0]) is None
    assert prepared(large, large) is None
    keyed = [Message("T", b"x", sharding_key=key) for key in "ab"]
    with pytest.raises(UsageError, match="several sharding keys"):
        prepared(*keyed)
    assert prepared(*keyed, queue=MessageQueue("T", "a", 1)) is not None
    with pytest.raises(UsageError, match="at least one message"):
        prepared()
    with pytest.raises(UsageError, match="is not a Message"):
        prepared("text")  # type: ignore[arg-type]
