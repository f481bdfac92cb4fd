"""Every command of Apache's `mqadmin`, of both versions, on our cluster and on Apache's alike.

What a command prints is compared once hosts, ids, times and what depends on load are out of it.
The commands of both clusters run in one JVM each, in this order: some build on those before.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from sparrowmq import Admin
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TOPIC, GROUP, SENDERS = "admin-all", "GID_admin", "GID_admin_senders"
COUNT = 8


class Alike(Enum):
    """How alike what two clusters print must be."""

    EXACT = auto()
    # But for numbers.
    SHAPE = auto()
    # The names that ours prints before `=` are among those that Apache's prints, or a few more.
    NAMES = auto()
    # The names before `:` are those that Apache's prints, but for NOT_TOLD, and more.
    STATUS = auto()
    # Neither prints an exception: what is printed depends on when it is printed.
    RUNS = auto()


EXACT, SHAPE, NAMES, STATUS, RUNS = Alike


class Run(NamedTuple):
    """A command, and how alike what it prints must be."""

    command: str
    alike: Alike = EXACT
    # Some print until they are stopped.
    seconds: int = 30
    version: str = ""


SCRIPT = (
    Run("updateTopic -b {broker} -t made -r 4 -w 4"),
    Run("updateTopic -c DefaultCluster -t made-of-cluster -r 2 -w 3 -p 6 -o true"),
    Run("updateTopicPerm -b {broker} -t made -p 4"),
    Run("topicRoute -t made"),
    Run("topicRoute -t made -l"),
    Run("topicStatus -t {topic}"),
    Run("topicClusterList -t {topic}"),
    Run("topicList"),
    Run("topicList -c"),
    Run("updateSubGroup -b {broker} -g GID_made -r 3 -q 2"),
    Run("getConsumerConfig -g GID_made"),
    Run("getBrokerConfig -b {broker}", NAMES),
    Run("updateBrokerConfig -b {broker} -k fileReservedTime -v 48"),
    Run("brokerStatus -b {broker}", STATUS),
    Run("clusterList", SHAPE),
    Run("clusterList -m", SHAPE),
    Run("queryMsgById {of_topic}-i {offset_id}"),
    Run("queryMsgByKey -t {topic} -k k7", SHAPE),
    Run("queryMsgByUniqueKey -t {topic} -i {unique_id}"),
    Run("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 0", SHAPE),
    Run("queryMsgTraceById -i {unique_id}", SHAPE),
    Run("queryMsgById {of_topic}-i {offset_id} -g GID_admin -d {client_id}", SHAPE),
    Run("printMsg -t {topic} -d true", SHAPE),
    Run("printMsgByQueue -t {topic} -a broker-a -i 1 -p true -d true", SHAPE),
    Run("sendMsgStatus -b broker-a -c 2", SHAPE),
    Run("brokerConsumeStats -b {broker}"),
    Run("producerConnection -g {senders} -t {topic}"),
    Run("producer -b {broker}"),
    Run("consumerConnection -g {group}"),
    Run("consumerProgress -g {group}"),
    Run("consumerProgress -g {group} -s true"),
    Run("consumerProgress", SHAPE),
    Run("consumerStatus -g {group} -i {client_id}", SHAPE),
    Run("statsAll -t {topic}", SHAPE),
    Run("statsAll -a", RUNS),
    Run("allocateMQ -t {topic} -i one"),
    Run("queryCq -t {topic} -q 0 -i 0 -c 2 -g {group}", SHAPE),
    Run("sendMessage -t {topic} -p body -k sent -c tag -b broker-a -i 1"),
    Run("consumeMessage -t {topic} -b broker-a -i 2 -o 0 -c 2", SHAPE),
    Run("checkMsgSendRT -t {topic} -a 3", SHAPE),
    Run("updateSubGroup -b {broker} -g GID_cloned"),
    Run("setConsumeMode -b {broker} -t {topic} -g GID_cloned -m POP -q 8", version="5.5.0"),
    Run("cloneGroupOffset -s {group} -d GID_cloned -t {topic}"),
    Run("consumerProgress -g GID_cloned", SHAPE),
    Run("resetOffsetByTime -g {group} -t {topic} -s 0"),
    Run("skipAccumulatedMessage -g {group} -t {topic} -f true", SHAPE),
    Run("updateKvConfig -s space -k key -v value"),
    Run("deleteKvConfig -s space -k key"),
    Run("updateOrderConf -t {topic} -m put -v broker-a:4"),
    Run("updateOrderConf -t {topic} -m get"),
    Run("updateOrderConf -t {topic} -m delete"),
    Run("wipeWritePerm -b broker-a", SHAPE),
    Run("addWritePerm -b broker-a", SHAPE),
    Run("cleanExpiredCQ -b {broker}"),
    Run("cleanUnusedTopic -b {broker}"),
    Run("deleteExpiredCommitLog -b {broker}"),
    Run("getNamesrvConfig", NAMES),
    Run("updateTopicList -b {broker} -f {directory}/topics.json", version="5.5.0"),
    Run("updateSubGroupList -b {broker} -f {directory}/groups.json", version="5.5.0"),
    Run("exportMetadata -c DefaultCluster -f {directory}"),
    Run("exportConfigs -c DefaultCluster -f {directory}"),
    Run("exportMetrics -c DefaultCluster -f {directory}"),
    Run("deleteSubGroup -b {broker} -g GID_made -r true"),
    Run("deleteTopic -c DefaultCluster -t made"),
    Run("topicList"),
    Run("clusterRT -a 2 -i 2 -c DefaultCluster", RUNS, seconds=4),
    Run("startMonitoring", RUNS, seconds=4),
)
# What is left out, with what is said, or the code of 5.x that is refused: the page of the protocol
# says why.
LEFT_OUT: dict[str, int | str] = {
    "updateNamesrvConfig -k serverWorkerThreads -v 9 -n {name_server}": (
        "settings cannot be changed remotely; restart the name server with the new ones"
    ),
    "updateStaticTopic -t static -qn 4 -c DefaultCluster -n {name_server}": 513,
    "addBroker -c {broker} -b /none": 902,
    "removeBroker -c {broker} -b DefaultCluster:broker-a:0": 903,
    "haStatus -b {broker}": 907,
    "resetMasterFlushOffset -b {broker} -o 0": 908,
    "getControllerMetaData -a {broker}": 1005,
    "getSyncStateSet -a {broker} -b broker-a -n {name_server}": 1005,
    "getBrokerEpoch -b broker-a -n {name_server}": 1007,
    "getControllerConfig -a {broker}": 1010,
    "checkRocksdbCqWriteProgress -c DefaultCluster -n {name_server}": 354,
    "updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 100": 2001,
    "removeColdDataFlowCtrGroupConfig -b {broker} -g {group}": 2002,
    "getColdDataFlowCtrInfo -b {broker}": 2003,
    "setCommitLogReadAheadMode -b {broker} -m 1": 2004,
    "createUser -b {broker} -u one -p two": 3001,
    "updateUser -b {broker} -u one -p two": 3002,
    "deleteUser -b {broker} -u one": 3003,
    "getUser -b {broker} -u one": 3004,
    "listUser -b {broker}": 3005,
    "createAcl -b {broker} -s User:one -r Topic:* -a Pub -d Allow": 3006,
    "updateAcl -b {broker} -s User:one -r Topic:* -a Pub -d Allow": 3007,
    "deleteAcl -b {broker} -s User:one": 3008,
    "getAcl -b {broker} -s User:one": 3009,
    "listAcl -b {broker}": 3010,
    "switchTimerEngine -b {broker} -e F": 5001,
    "getBrokerLiteInfo -b {broker} -n {name_server}": 200074,
}
# Settings that one of the versions does not have.
EXTRA_SETTINGS = {"diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio", "filterServerNums"}
# Of brokerStatus: pools of threads and buffers that are not here, what is not measured, and the
# timer wheel.
NOT_TOLD = re.compile(
    r"(EndTransaction|ack|litePull|pull|query|send)\w*Queue\w*|remainTransientStoreBufferNumbs"
    r"|dispatchMaxBuffer|commitLogDiskRatio_.*|timer\w+"
    r"|get(Found|Miss|Total)Tps|getMessageEntireTimeMax|putMessage(DistributeTime|FailedTimes)"
)
# What differs on purpose, and is taken out of both. Topics: our broker makes those of transactions
# when it starts, Apache's with the first one, and some for RocksDB, POP, timers and replication.
# Properties: our broker adds the region, which 4.9.7 does not keep, and a checksum; 5.5.0 adds
# TRACE_ON, and keeps the producer's WAIT. The page that an error of a version refers to. And the
# progress in a retry topic, which a member looks for from time to time: after 40 s, in 5.x.
OURS = re.compile(
    r"^(DefaultCluster )?"
    r"(RMQ_SYS_(ROCKSDB_)?TRANS_(OP_)?HALF_TOPIC|TRANS_CHECK_MAX_TIME_TOPIC|rmq_sys_.*)$"
    r"|(?<=[ {])(MSG_REGION=DefaultRegion|__CRC32#=\d+|WAIT=true|TRACE_ON=true), "
    r"|(, (WAIT=true|TRACE_ON=true))+(?=})"
    rf"|^%RETRY%{GROUP} broker-a .*"
    r"|See https?://\S+ for further details\."
)


class Tools:
    """`mqadmin` of a JVM that runs one command after the other."""

    def __init__(self, java: Any) -> None:
        self._lines = java.start("Tools")
        self._count = 0

    def run(self, command: str, seconds: int) -> str:
        self._count += 1
        self._lines.process.stdin.write("\t".join([str(seconds), *command.split()]) + "\n")
        self._lines.process.stdin.flush()
        self._lines.wait_for(
            f"end of {command}",
            lambda: len(self._lines.named("ran")) >= self._count,
            timeout_s=seconds + 30,
        )
        return str(self._lines.named("ran")[-1]["printed"])

    def kill(self) -> None:
        self._lines.kill()


class Stage:
    """A cluster with a topic, a member that has consumed it, and a producer that traces."""

    def __init__(self, java: Any, cluster: Any) -> None:
        self._peers = []
        cluster.start()
        cluster.create_topic(TOPIC, queues=4)
        at = {"nameServer": cluster.name_server, "topic": TOPIC}
        member = java.peer("consume", group=GROUP, **at)
        self._peers.append(member)
        member.wait_for("started consumer", lambda: member.named("started"))
        sender = java.peer("produce", group=SENDERS, count=COUNT, trace=True, tags="A", **at)
        self._peers.append(sender)
        sender.wait_for("end of sending", lambda: sender.named("done"))
        member.wait_for("all messages", lambda: len(member.named("message")) >= COUNT)
        with Admin(name_server=cluster.name_server) as admin:
            wait_until(
                "commits",
                lambda: (
                    sum(each.committed_offset or 0 for each in admin.group_lag(GROUP, TOPIC))
                    == COUNT
                ),
                timeout_s=60,
            )
        self.seventh = sender.named("sent")[7]
        self.client_id = member.named("started")[0]["clientId"]

    def kill(self) -> None:
        for peer in self._peers:
            peer.kill()


@pytest.fixture(scope="module")
def printed(
    java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[Run, str]]:
    """What each command printed, by cluster and command."""
    found: dict[str, dict[Run, str]] = {}
    for name in ("apache", "ours"):
        home = tmp_path_factory.mktemp(f"mqadmin-{name}")
        settings = {"traceTopicEnable": "true", "enablePropertyFilter": "true"}
        cluster = (
            rig.OurCluster(java, home / "data")
            if name == "ours"
            else rig.ApacheCluster(java, home / "store", **settings)
        )
        tools = None
        stage = None
        try:
            stage = Stage(java, cluster)
            tools = Tools(java)
            (home / "topics.json").write_text('[{"topicName": "listed", "readQueueNums": 2}]')
            (home / "groups.json").write_text('[{"groupName": "GID_listed"}]')
            values = {
                "broker": cluster.broker,
                "name_server": cluster.name_server,
                "topic": TOPIC,
                "group": GROUP,
                "senders": SENDERS,
                "offset_id": stage.seventh["offsetMsgId"],
                "unique_id": stage.seventh["msgId"],
                "client_id": stage.client_id,
                "directory": str(home),
                "of_topic": f"-t {TOPIC} " if java.version.startswith("5") else "",
            }
            found[name] = {
                run: tools.run(
                    f"{run.command.format(**values)} -n {cluster.name_server}", run.seconds
                )
                for run in SCRIPT
                if run.version in ("", java.version)
            }
            left_out = LEFT_OUT if (name, java.version) == ("ours", "5.5.0") else ()
            found[name] |= {
                Run(command): tools.run(command.format(**values), 30) for command in left_out
            }
        finally:
            for each in (tools, stage, cluster):
                if each is not None:
                    each.kill()
    return found


def comparable(text: str, alike: Alike) -> list[str]:
    found = [OURS.sub("", " ".join(line.split())) for line in text.splitlines()]
    # What logback of 5.x says of itself goes before.
    found = [line for line in found if line and not re.match(r"[\d:,]+ \|-", line)]
    if alike is NAMES:
        return [line.partition("=")[0].strip() for line in found]
    if alike is STATUS:
        return [line.partition(":")[0].strip() for line in found]
    return sorted(_without_what_varies(line, alike) for line in found)


def _without_what_varies(line: str, alike: Alike) -> str:
    for pattern, put in (
        (r"\d+\.\d+\.\d+\.\d+(@[\w#.:]+|:\d+)?", "HOST"),
        (r"\b[0-9A-F]{30,}\b", "ID"),
        (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d[:,]?\d*|\b\d{13}\b", "TIME"),
        (r"/\S+/mqadmin-\w+", "HOME"),
        (r"(?<=CommitLog Offset: )\d+|(?<=Queue ID: )\d|(?<=Consume TPS: )[\d.]+", "N"),
        (r"(?<=[@$/])[\da-fx]+\b", "HASH"),
        (r"-?\d+(\.\d+)?" if alike is SHAPE else "$^", "N"),
    ):
        line = re.sub(pattern, put, line)
    return line


@pytest.mark.parametrize("run", SCRIPT, ids=lambda run: run.command)
def test_a_command_prints_what_it_prints_on_apache(
    java: Any, printed: dict[str, dict[Run, str]], run: Run
) -> None:
    if run.version not in ("", java.version):
        pytest.skip(f"a command of {run.version}")
    expected, actual = (comparable(printed[name][run], run.alike) for name in ("apache", "ours"))

    if run.alike is NAMES:
        assert set(actual) <= set(expected) | EXTRA_SETTINGS
    elif run.alike is STATUS:
        assert {name for name in expected if not NOT_TOLD.fullmatch(name)} <= set(actual)
    elif run.alike is RUNS:
        assert not [line for line in actual if "Exception" in line]
    else:
        assert actual == expected


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
@pytest.mark.parametrize("command", LEFT_OUT)
def test_a_command_of_what_is_left_out_says_so(
    printed: dict[str, dict[Run, str]], command: str
) -> None:
    said = LEFT_OUT[command]

    if isinstance(said, int):
        said = f"CODE: 3  DESC:  request type {said} not supported"
    assert said in printed["ours"][Run(command)]
