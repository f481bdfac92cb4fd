"""How the broker is and how it is set, and what of that can be changed from afar."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparrowmq.broker.processors.status import CHANGEABLE
from sparrowmq.protocol.bodies import KVTable, decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Fact
from sparrowmq.store.config import FlushMode

# ExportConfigsCommand.needBrokerProprties takes no null.
EXPORTED = {
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime"),
    *("filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
    *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
    *("autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
}


def settings(rig: Any) -> dict[str, str]:
    reply = rig.call(rig.connect(), RequestCode.GET_BROKER_CONFIG)
    return dict(line.split("=", 1) for line in reply.body.decode().splitlines())


def change(rig: Any, body: bytes) -> RemotingCommand:
    reply = rig.call(rig.connect(), RequestCode.UPDATE_BROKER_CONFIG, None, body)
    assert isinstance(reply, RemotingCommand)
    return reply


def test_runtime_info_counts(rig: Any) -> None:
    rig.send(rig.connect())
    rig.pull(rig.connect())

    reply = rig.call(rig.connect(), RequestCode.GET_BROKER_RUNTIME_INFO)
    table = decode_body(KVTable, reply.body).table

    assert (table["putMessageTimesTotal"], table["msgGetTotalTodayNow"]) == ("1", "1")
    # Apache's clusterList divides the first of three numbers.
    assert [len(table[name].split(" ")) for name in ("putTps", "getTransferedTps")] == [3, 3]
    # As each version writes it; of 5.x, exportMetrics cannot do without, and clusterList shows it.
    assert table["getTransferedTps"] == table["getTransferredTps"]
    assert table["brokerActive"] == "true"
    assert all(isinstance(value, str) for value in table.values())
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert str(rig.timestamp_ms) == table["earliestMessageTimeStamp"]
    assert (table["commitLogMinOffset"], table["dispatchBehindBytes"]) == ("0", "0")
    size = r"\d+\.\d [KMGTPE]iB"
    assert re.fullmatch(rf"Total : {size}, Free : {size}\.", table["commitLogDirCapacity"])


@pytest.mark.parametrize(("days", "told"), [(364, 0), (365, 365), (3_653, 3_653)])
def test_clock_far_ahead_of_the_last_message_at_the_start_is_told(
    rig: Any, days: int, told: int
) -> None:
    rig.send(rig.connect())
    rig.timestamp_ms += days * 86_400_000
    again = rig.restart()

    assert list(again.host.first_rounds()) == []
    facts = [each for each in again.outputs if isinstance(each, Fact)]
    assert [(fact.warning, f"{told} days ahead" in fact.text) for fact in facts] == (
        [(True, True)] if told else []
    )
    leads = []
    for later_ms in (0, -days * 86_400_000, 2 * days * 86_400_000):
        again.timestamp_ms += later_ms
        again.advance(100)
        reply = again.call(again.connect(), RequestCode.GET_BROKER_RUNTIME_INFO)
        leads.append(decode_body(KVTable, reply.body).table["clockLeadDays"])
    # It may be right, and the broker has rested for long.
    assert leads == [str(told), str(told), "0"]
    again.store.close()


def test_an_empty_broker_has_no_earliest_message(rig: Any) -> None:
    reply = rig.call(rig.connect(), RequestCode.GET_BROKER_RUNTIME_INFO)

    assert decode_body(KVTable, reply.body).table["earliestMessageTimeStamp"] == "-1"


def test_settings_are_readable_without_paths(rig: Any) -> None:
    found = settings(rig)

    assert EXPORTED | CHANGEABLE.keys() <= found.keys()
    assert "/" not in "".join(found.values())


def test_listed_settings_change_what_the_broker_does(rig: Any) -> None:
    reply = change(
        rig,
        b"#comment\nfileReservedTime=48\ndeleteWhen=03;15\ndiskSpaceWarningLevelRatio=95\n"
        b"transactionCheckMax=7\nautoCreateSubscriptionGroup=false\n",
    )
    pulled = rig.replies(rig.pull(rig.connect(), consumerGroup="GID_unknown"))

    assert reply.code == 0
    assert tuple(
        settings(rig)[name]
        for name in (
            "fileReservedTime",
            "deleteWhen",
            "diskSpaceWarningLevelRatio",
            "transactionCheckMax",
            "autoCreateSubscriptionGroup",
        )
    ) == ("48", "03;15", "95", "7", "false")
    assert rig.broker.state.retention.retention_hours == 48
    assert rig.broker.state.transactions.config.transaction_check_max == 7
    assert [each.code for each in pulled] == [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
    (fact,) = [each for each in rig.outputs if isinstance(each, Fact)]
    assert fact.warning
    assert "changed settings until the broker stops: fileReservedTime is 48, " in fact.text


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"brokerName=x", ResponseCode.NO_PERMISSION, "'brokerName' cannot be changed remotely"),
        (b"storePathRootDir=/", ResponseCode.NO_PERMISSION, "these can: fileReservedTime, "),
        (b"rocketmqHome=;touch x", ResponseCode.NO_PERMISSION, "cannot be changed"),
        (b"fileReservedTime=0", ResponseCode.SYSTEM_ERROR, "must be from 1 to 876000"),
        pytest.param(
            b"fileReservedTime=" + b"9" * 5_000,
            ResponseCode.SYSTEM_ERROR,
            "must be from 1 to 876000",
            id="5000 digits",
        ),
        (b"transactionTimeOut=3600001", ResponseCode.SYSTEM_ERROR, "must be from 1 to 3600000"),
        (b"fileReservedTime=-1", ResponseCode.SYSTEM_ERROR, "is '-1'"),
        (b"diskSpaceCleanForciblyRatio=1", ResponseCode.SYSTEM_ERROR, "from 50 to 100"),
        (b"deleteWhen=25", ResponseCode.SYSTEM_ERROR, "deleteWhen: delete_when is '25'"),
        (b"autoCreateSubscriptionGroup=1", ResponseCode.SYSTEM_ERROR, "give true or false"),
        (b"nothing", ResponseCode.SYSTEM_ERROR, "'nothing' is not a NAME=VALUE"),
        (b"x=" + b"1" * 20_000, ResponseCode.SYSTEM_ERROR, "settings of 20002 bytes"),
    ],
)
def test_whatever_else_is_refused_and_changes_nothing(
    rig: Any, body: bytes, code: int, words: str
) -> None:
    before = settings(rig)

    reply = change(rig, b"transactionCheckMax=3\n" + body if len(body) < 100 else body)

    assert code == reply.code
    assert words in (reply.remark or "")
    assert before == settings(rig)


def test_runtime_info_tells_what_a_power_cut_would_take(make_rig: Any) -> None:
    rig = make_rig(flush=FlushMode.ASYNC)
    rig.create_topic("T", 1)
    rig.holds_work = True
    rig.send(rig.connect())

    reply = rig.call(rig.connect(), RequestCode.GET_BROKER_RUNTIME_INFO)
    table = decode_body(KVTable, reply.body).table

    assert table["remainHowManyDataToFlush"] == f"{rig.store.appended_position} B"
