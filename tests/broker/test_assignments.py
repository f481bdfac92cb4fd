"""QUERY_ASSIGNMENT and the request modes: who gets what to consume, and what a restart keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparrowmq.broker import route_questions
from sparrowmq.broker.config_files import read_tables
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.broker.journal_records import RequestModeChange, decode_changes
from sparrowmq.broker.processors import assignments
from sparrowmq.protocol.bodies import QueueData, RequestMode, TopicRouteData
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.serving.connections import Push, Reply
from sparrowmq.store.file_storage import FileStorage

ROUTE = TopicRouteData(
    queue_datas=[
        QueueData(broker_name="broker-b", read_queue_nums=2, write_queue_nums=2, perm=6),
        QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6),
        QueueData(broker_name="broker-c", read_queue_nums=8, write_queue_nums=8, perm=2),
    ]
)
# The queues that can be read, in order.
QUEUES = [*(("broker-a", n) for n in range(4)), *(("broker-b", n) for n in range(2))]


def join(rig: Any, client_id: str) -> Any:
    connection = rig.connect()
    consumer = {"groupName": "GID_c", "subscriptionDataSet": []}
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    assert rig.call(connection, RequestCode.HEART_BEAT, None, json.dumps(body).encode()).code == 0
    return connection


def question(client_id: str, **fields: str) -> RemotingCommand:
    body = {
        "topic": "T",
        "consumerGroup": "GID_c",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **fields,
    }
    return RemotingCommand(code=RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())


def read(outputs: list[Any]) -> tuple[set[str], list[tuple[str, int]]] | None:
    """Return the modes and the queues of the only answer, None if the member keeps its own."""
    (reply,) = (each for each in outputs if isinstance(each, Reply))
    assert reply.command.code == ResponseCode.SUCCESS
    found = json.loads(reply.command.body or b"").get("messageQueueAssignments")
    if found is None:
        return None
    queues = [each["messageQueue"] for each in found]
    assert {each["topic"] for each in queues} <= {"T"}
    return {each["mode"] for each in found}, [
        (each["brokerName"], each["queueId"]) for each in queues
    ]


def put(rig: Any, command: RemotingCommand) -> list[Any]:
    """Let the broker have a question, before it asks the name servers."""
    found: list[Any] = rig.broker.handle(
        command, rig.connect(), now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms
    )
    return found


def ask(rig: Any, client_id: str, *, route: TopicRouteData | None = ROUTE, **fields: Any) -> Any:
    """Ask for a member's queues; the name server answers with `route`."""
    put(rig, question(client_id, **fields))
    return read(rig.broker.routed("T", route))


def set_mode(rig: Any, mode: str = "POP", share: int = 0, **fields: Any) -> RemotingCommand:
    body = {
        "topic": "T",
        "consumerGroup": "GID_c",
        "mode": mode,
        "popShareQueueNum": share,
        **fields,
    }
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    found: RemotingCommand = rig.call(rig.connect(), code, None, json.dumps(body).encode())
    return found


@pytest.fixture
def group(rig: Any) -> Any:
    """Make a topic with members `a` to `d`."""
    rig.create_topic("T", 4)
    for client_id in "cabd":
        join(rig, client_id)
    return rig


class TestByQueues:
    def test_members_divide_the_queues_of_all_brokers(self, group: Any) -> None:
        shares = [ask(group, each)[1] for each in "abcd"]

        assert shares == [QUEUES[:2], QUEUES[2:4], QUEUES[4:5], QUEUES[5:]]
        assert ask(group, "a")[0] == {"PULL"}

    def test_the_other_strategy_deals_in_turn(self, group: Any) -> None:
        assert ask(group, "b", strategyName="AVG_BY_CIRCLE")[1] == [QUEUES[1], QUEUES[5]]

    def test_each_member_of_a_broadcast_has_all(self, group: Any) -> None:
        assert ask(group, "a", messageModel="BROADCASTING")[1] == QUEUES

    def test_a_member_that_is_not_listed_has_none(self, group: Any) -> None:
        assert ask(group, "z") == (set(), [])

    @pytest.mark.parametrize(
        "fields", [{"strategyName": "CONSISTENT_HASH"}, {"consumerGroup": "GID_z"}]
    )
    def test_what_the_broker_cannot_divide_stays(self, group: Any, fields: dict[str, Any]) -> None:
        assert ask(group, "a", **fields) is None

    def test_without_a_route_members_keep_their_queues(self, group: Any) -> None:
        assert ask(group, "a", route=None) is None
        assert ask(group, "a", route=TopicRouteData()) is None


class TestByMessages:
    def test_each_member_pops_from_all_queues_of_each_broker(self, group: Any) -> None:
        assert set_mode(group).code == ResponseCode.SUCCESS

        for client_id in "abcd":
            assert ask(group, client_id) == ({"POP"}, [("broker-a", -1), ("broker-b", -1)])

    def test_members_share_the_queues_of_those_after_them(self, group: Any) -> None:
        set_mode(group, share=1)

        assert ask(group, "a")[1] == QUEUES[:4]
        assert ask(group, "d")[1] == [QUEUES[5], *QUEUES[:2]]

    def test_as_many_sharers_as_members_share_all(self, group: Any) -> None:
        set_mode(group, share=3)

        assert ask(group, "a")[1] == [("broker-a", -1), ("broker-b", -1)]

    def test_more_members_than_queues_have_one_each(self, group: Any) -> None:
        set_mode(group, share=1)
        for client_id in "efgh":
            join(group, client_id)

        assert [ask(group, each)[1] for each in "afgh"] == [
            QUEUES[:1],
            QUEUES[5:],
            QUEUES[:1],
            QUEUES[1:2],
        ]

    def test_as_many_members_as_queues_share_still(self, group: Any) -> None:
        set_mode(group, share=1)
        for client_id in "ef":
            join(group, client_id)

        assert ask(group, "a")[1] == QUEUES[:2]

    def test_members_are_notified_of_another_mode_only(self, group: Any) -> None:
        def notices() -> int:
            found = [
                each
                for each in group.outputs
                if isinstance(each, Push)
                and each.command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            ]
            return len(found)

        group.advance(5_000)
        before = notices()
        set_mode(group)
        group.advance(5_000)
        assert notices() == before + 4

        set_mode(group)
        group.advance(5_000)
        assert notices() == before + 4


class TestQuestions:
    def test_questions_of_one_topic_share_one_request_to_the_name_servers(self, group: Any) -> None:
        broker = group.broker
        put(group, question("a"))
        put(group, question("b"))

        assert broker.awaits_turn()
        assert broker.asked_routes() == ["T"]
        assert broker.asked_routes() == []
        assert len(broker.routed("T", ROUTE)) == 2

    @pytest.mark.asyncio
    async def test_the_route_comes_from_the_name_servers(self, live: Any) -> None:
        header = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "2"}
        header |= {"writeQueueNums": "2", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        made = await live.call(live.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert made.code == ResponseCode.SUCCESS, made.remark

        body = question("a", messageModel="BROADCASTING").body
        found = await live.call(live.broker, RequestCode.QUERY_ASSIGNMENT, None, body)
        queues = [
            each["messageQueue"] for each in json.loads(found.body)["messageQueueAssignments"]
        ]
        assert [each["queueId"] for each in queues] == [0, 1]

        body = question("a", topic="unknown").body
        found = await live.call(live.broker, RequestCode.QUERY_ASSIGNMENT, None, body)
        assert (found.code, json.loads(found.body)) == (ResponseCode.SUCCESS, {})

    def test_questions_are_bounded(self, group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(route_questions, "QUESTIONS_MAX", 1)
        put(group, question("a"))
        (refused,) = put(group, question("b"))

        assert refused.command.code == ResponseCode.SYSTEM_BUSY
        assert len(group.broker.routed("T", ROUTE)) == 1
        # An answered question leaves its place to others.
        assert not put(group, question("b"))
        assert len(group.broker.routed("T", ROUTE)) == 1

    def test_a_question_that_wants_no_answer_gets_none(self, group: Any) -> None:
        command = question("a")
        command.flag = ONEWAY_FLAG
        put(group, command)
        put(group, question("b"))

        assert len(group.broker.routed("T", ROUTE)) == 1

    def test_topics_whose_routes_are_asked_are_bounded(
        self, group: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(route_questions, "TOPICS_MAX", 1)
        put(group, question("a"))
        (refused,) = put(group, question("a", topic="other"))

        assert refused.command.code == ResponseCode.SYSTEM_BUSY
        # A question about a topic that is asked already costs no request.
        assert not put(group, question("b"))
        assert len(group.broker.routed("T", ROUTE)) == 2
        assert not put(group, question("a", topic="other"))

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "%RETRY%GID_c"}, ResponseCode.NO_PERMISSION),
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"mode": "PUSH"}, ResponseCode.SYSTEM_ERROR),
        ],
    )
    def test_a_mode_that_cannot_be_is_refused(
        self, group: Any, fields: dict[str, Any], code: int
    ) -> None:
        assert set_mode(group, **fields).code == code

    def test_modes_are_bounded_and_a_mode_may_still_change(
        self, group: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(assignments, "MODES_MAX", 1)
        codes = [set_mode(group, mode).code for mode in ("POP", "PULL")]
        refused = set_mode(group, consumerGroup="GID_other")

        assert codes == [ResponseCode.SUCCESS] * 2
        assert (refused.code, len(group.broker.state.modes)) == (ResponseCode.SYSTEM_ERROR, 1)

    def test_the_table_is_answered_as_rocketmq_writes_it(self, group: Any) -> None:
        set_mode(group, share=2)
        reply = group.call(group.connect(), RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)

        mode = {"topic": "T", "consumerGroup": "GID_c", "mode": "POP", "popShareQueueNum": 2}
        assert json.loads(reply.body) == {"messageRequestModeMap": {"T": {"GID_c": mode}}}


class TestTheDisk:
    def test_a_mode_is_acknowledged_once_the_journal_has_it(self, group: Any) -> None:
        group.holds_work = True
        body = json.dumps({"topic": "T", "consumerGroup": "GID_c", "mode": "POP"}).encode()
        command = RemotingCommand(code=RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        assert group.replies(group.handle(group.connect(), command)) == []

        work = group.broker.journal_work(now_ms=group.now_ms)
        (failed,) = group.replies(group.broker.journaled(work, OSError("no space")))
        assert failed.code != ResponseCode.SUCCESS

        group.broker.state.journal.ask()
        again = group.broker.journal_work(now_ms=group.now_ms)
        expected = RequestMode(topic="T", consumer_group="GID_c", mode="POP")
        assert decode_changes(again.encode())[-1] == RequestModeChange("T", "GID_c", expected)

    def test_file_and_journal_keep_modes_until_their_topic_or_group_is_deleted(
        self, group: Any, tmp_path: Any
    ) -> None:
        def tables() -> SavedTables:
            return read_tables(FileStorage(group.root)).tables

        set_mode(group, share=2)
        again = type(group)(tmp_path / "journal", group.config, saved=tables())
        assert again.broker.state.modes.get("T", "GID_c").mode == "POP"

        group.advance(20_000)
        saved = tables()
        assert saved.modes is not None
        again = type(group)(tmp_path / "file", group.config, saved=saved._replace(changes=()))
        assert again.broker.state.modes.get("T", "GID_c").pop_share_queue_num == 2

        group.call(group.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert group.broker.state.modes.get("T", "GID_c").mode == "PULL"
        again = type(group)(tmp_path / "deleted", group.config, saved=tables())
        assert len(again.broker.state.modes) == 0

        group.create_topic("T", 4)
        set_mode(group)
        group.call(group.connect(), RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "GID_c"})
        assert len(group.broker.state.modes) == 0
