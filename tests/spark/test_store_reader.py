"""A store's files read without its broker give what the broker gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.1")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from sparrowmq import Message, MessageQueue, Producer
from sparrowmq.protocol.record import Record
from sparrowmq.spark import store_reader
from sparrowmq.spark import topic_queues as connections
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.failures import DataLossError, RocketMQError
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.partition import RangesPartition
from sparrowmq.spark.pushed_filters import FilteringReader
from sparrowmq.spark.store_files import TOPICS_PATH, ReadOnlySeries, StoreFiles
from sparrowmq.spark.store_reader import StoreReader
from sparrowmq.store.config import FlushMode, StoreConfig
from sparrowmq.store.consume_queue import ENTRY, FILLER_SIZE
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.storage import COPYING_PATH
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow

BORN_MS = 1_357_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three topics that lie in the log between one another."""
    with EmbeddedCluster(tmp_path_factory.mktemp("data")) as found:
        for topic in ("orders", "noise", "orders-eu"):
            found.create_topic(topic, queues=3)
        with Producer("GID_store_test", name_server=found.name_server) as producer:
            for number in range(300):
                body = b"%d" % number if number % 10 else b"%d" % number * 5_000
                for topic in ("orders", "noise", "orders-eu"):
                    queue = MessageQueue(topic, "broker-a", number % 2)
                    message = Message(
                        topic,
                        body,
                        tags=f"t{number % 3}",
                        keys=(f"k{number}",),
                        properties={"p": "é"},
                    )
                    producer.send(message, queue=queue)
        # A broker that runs writes the queues' last entries now and then; one that stops does.
        found.restart()
        yield found
        connections.disconnect()


def store_of(cluster: EmbeddedCluster) -> Path:
    return cluster.log_path.parent / "store"


def rows_of(reader: Any) -> list[dict[str, Any]]:
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def live(cluster: EmbeddedCluster, **given: str) -> list[dict[str, Any]]:
    options = {"nameServer": cluster.name_server, "profile": "full", **given}
    return rows_of(RocketMQReader(parse_options(options, scope="batch")))


def offline(path: Path, **given: str) -> list[dict[str, Any]]:
    options = {"storePath": str(path), "profile": "full", **given}
    return rows_of(StoreReader(parse_options(options, scope="batch")))


EVERY_COLUMN = (
    "topic,brokerName,queueId,queueOffset,commitLogOffset,msgId,offsetMsgId,keys,tags,body,flag,"
    "sysFlag,bornTimestamp,storeTimestamp,bornHost,storeHost,reconsumeTimes,storeSize,properties,"
    "key,value,partition,offset,timestamp,timestampType"
)


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "orders", "columns": EVERY_COLUMN},
        {"topicPattern": "orders.*", "minPartitions": "7", "profile": "full"},
        {
            "assign": '{"noise": {"broker-a": [1, 2]}}',
            "subExpression": "t1 || t2",
            "columns": EVERY_COLUMN,
        },
        {
            "assign": '{"noise": {"broker-a": [1]}, "orders": {"broker-a": [0]}}',
            "subExpression": "t1",
            "columns": EVERY_COLUMN,
        },
        {
            "topic": "orders",
            "startingOffsets": '{"orders": {"broker-a": {"0": 17, "1": -1}}}',
            "endingOffsets": '{"orders": {"broker-a": {"0": 40}}}',
        },
    ],
)
def test_the_rows_are_those_of_the_running_broker(
    cluster: EmbeddedCluster, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reader, "CHUNK_BYTES", 10_000)
    broker = RocketMQReader(
        parse_options({"nameServer": cluster.name_server, **given}, scope="batch")
    )
    files = StoreReader(
        parse_options({"storePath": str(store_of(cluster)), **given}, scope="batch")
    )

    expected = rows_of(broker)

    assert rows_of(files) == expected
    assert len(expected) >= 23


def test_topics_of_a_running_broker_are_read_before_it_has_filed_them(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path) as cluster:
        cluster.create_topic("filed", queues=2)
        with Producer("GID_filed", name_server=cluster.name_server) as producer:
            producer.send(Message("filed", b"x"))
        cluster.restart()
        cluster.create_topic("fresh", queues=5)
        store = store_of(cluster)
        assert b"fresh" not in (store / TOPICS_PATH).read_bytes()
        files = StoreFiles(str(store))

        assert [range(2), range(5)] == [files.queue_ids(name) for name in ("filed", "fresh")]
        assert {"filed", "fresh"} <= set(files.topics())
        # Another broker has written the file since.
        table = json.loads((store / TOPICS_PATH).read_bytes())
        table["dataVersion"]["counter"] += 1_000
        (store / TOPICS_PATH).write_text(json.dumps(table))
        assert "fresh" not in files.topics()
        connections.disconnect()


def test_times_find_the_same_messages(cluster: EmbeddedCluster) -> None:
    rows = live(cluster, topic="orders")
    middle = int(rows[len(rows) // 2]["storeTimestamp"].timestamp() * 1000)

    for given in ({"startingTimestamp": str(middle)}, {"endingTimestamp": str(middle)}):
        expected = live(cluster, topic="orders", **given)

        assert offline(store_of(cluster), topic="orders", **given) == expected
        assert 0 < len(expected) < 300
    late = {"startingTimestamp": "4102444800000"}
    assert offline(store_of(cluster), topic="orders", **late) == []
    with pytest.raises(RocketMQError, match="has no message stored at or after 2100-01-01"):
        offline(
            store_of(cluster), topic="orders", **late, startingOffsetsByTimestampStrategy="error"
        )


@pytest.fixture
def small_store(tmp_path: Path) -> Path:
    """Two queues of 100 messages each, in log files of 8 KiB and queue files of 20 entries."""
    path = tmp_path / "store"
    config = StoreConfig(
        flush=FlushMode.ASYNC,
        commit_log_file_size=8_192,
        index_slot_count=64,
        index_entry_count=256,
        consume_queue_file_size=400,
    )
    store = MessageStore(FileStorage(path), config)
    store.load(timestamp_ms=BORN_MS)
    for number in range(200):
        record = Record(
            topic="T",
            queue_id=number % 2,
            body=b"%d" % number * 20,
            properties=f"KEYS\x01k{number}",
            born_timestamp_ms=BORN_MS + number,
        )
        store.put(record, timestamp_ms=BORN_MS + number)
    store.dispatch()
    store.close()
    return path


def test_a_log_of_many_files_is_read_once(
    small_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reader, "PARTITION_BYTES", 3_000)
    monkeypatch.setattr(store_reader, "CHUNK_BYTES", 1_000)
    options = parse_options({"storePath": str(small_store), "topic": "T"}, scope="batch")
    before = {path: path.stat().st_mtime_ns for path in sorted(small_store.rglob("*"))}

    rows = rows_of(StoreReader(options))
    bodies = {int(row["keys"][1:]): row["body"] for row in rows}

    assert len(StoreReader(options).partitions()) > 10
    assert [(queue, offset) for queue in (0, 1) for offset in range(100)] == [
        (row["queueId"], row["queueOffset"]) for row in rows
    ]
    assert {number: b"%d" % number * 20 for number in range(200)} == bodies
    assert before == {path: path.stat().st_mtime_ns for path in sorted(small_store.rglob("*"))}


def test_what_retention_removed_is_left_out(small_store: Path) -> None:
    (small_store / "commitlog" / f"{0:020d}").unlink()
    begin = StoreFiles(str(small_store)).log.bases[0]

    rows = offline(small_store, topic="T")

    assert 0 < len(rows) < 200
    assert begin == min(row["commitLogOffset"] for row in rows)
    with pytest.raises(DataLossError) as caught:
        offline(small_store, topic="T", startingOffsets='{"T": {"broker-a": {"0": 0}}}')
    assert "offset 0 was to be read, but the queue begins at" in str(caught.value)


def test_fillers_before_a_queues_first_message_are_no_messages(small_store: Path) -> None:
    entry = StoreFiles(str(small_store)).queue("T", 1).entry(0)
    queue = small_store / "consumequeue/F/0" / f"{0:020d}"
    queue.parent.mkdir(parents=True)
    queue.write_bytes(ENTRY.pack(0, FILLER_SIZE, 0) * 2 + ENTRY.pack(*entry))

    assert StoreFiles(str(small_store)).queue("F", 0).bounds == (2, 3, None)


def test_files_of_other_programs_are_passed_over_as_by_the_broker(small_store: Path) -> None:
    rows = offline(small_store, topicPattern=".*")
    queues = small_store / "consumequeue"
    for path in (queues, queues / "T", queues / "T" / "0", small_store / "commitlog"):
        (path / ".DS_Store").touch()
    (queues / "T" / "notes.txt").touch()
    (queues / "T" / "0" / "notes.txt").touch()

    assert offline(small_store, topicPattern=".*") == rows
    # The broker refuses it in the log, too.
    (small_store / "commitlog" / "notes.txt").touch()
    with pytest.raises(RocketMQError, match=r"notes\.txt is not a file of a store; move it"):
        offline(small_store, topic="T")


def test_a_file_that_its_file_system_gives_in_parts_is_read_whole(tmp_path: Path) -> None:
    symbols = Path("/proc/kallsyms")
    if not symbols.exists():
        pytest.skip("the kernel has no list of symbols")
    (tmp_path / f"{7:020d}").symlink_to(symbols)
    with symbols.open("rb", buffering=0) as file:
        assert len(file.read(30_000)) < 30_000

    found = ReadOnlySeries(tmp_path).read(107, 30_000)

    assert found == symbols.read_bytes()[100:30_100]


def test_a_topic_that_may_not_be_read_has_no_queues(small_store: Path) -> None:
    (small_store / TOPICS_PATH).parent.mkdir(exist_ok=True)
    topics = {
        name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 1, "perm": perm}
        for name, perm in (("T", 4), ("U", 2))
    }
    (small_store / TOPICS_PATH).write_text(json.dumps({"topicConfigTable": topics}))
    files = StoreFiles(str(small_store))

    assert [range(2), range(0)] == [files.queue_ids(name) for name in topics]


def test_a_killed_broker_leaves_a_store_that_can_be_read(cluster: EmbeddedCluster) -> None:
    expected = live(cluster, topic="orders")
    cluster.kill()

    found = offline(store_of(cluster), topic="orders")
    cluster.restart()

    assert found == expected


@pytest.mark.parametrize("damage", ["entry", "size", "queue id", "queue offset", "position"])
def test_damage_is_an_error_and_never_silently_short(small_store: Path, damage: str) -> None:
    entry = StoreFiles(str(small_store)).queue("T", 1).entry(5)
    if damage == "entry":
        path, at = small_store / "consumequeue/T/1" / f"{0:020d}", 5 * 20 + 7
    else:
        last_byte = {"size": 3, "queue id": 15, "queue offset": 27, "position": 35}[damage]
        path, at = small_store / "commitlog" / f"{0:020d}", entry.position + last_byte
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))

    with pytest.raises(RocketMQError) as caught:
        offline(small_store, topic="T")

    assert "start its broker once" in str(caught.value)


def test_a_file_that_is_gone_is_a_loss(small_store: Path) -> None:
    options = {"storePath": str(small_store), "topic": "T", "profile": "full"}
    strict = StoreReader(parse_options(options, scope="batch"))
    lenient = StoreReader(parse_options({**options, "failOnDataLoss": "false"}, scope="batch"))
    (partition,) = strict.partitions()
    (small_store / "commitlog" / f"{0:020d}").unlink()

    with pytest.raises(DataLossError) as caught:
        list(strict.read(partition))

    assert "offsets 0 to " in str(caught.value)
    assert " expired before they were read" in str(caught.value)
    rows = [row for batch in lenient.read(partition) for row in batch.to_pylist()]
    assert StoreFiles(str(small_store)).log.bases[0] == rows[0]["commitLogOffset"]
    kept = {queue: StoreFiles(str(small_store)).queue("T", queue).bounds for queue in (0, 1)}
    assert {(queue, offset) for queue in (0, 1) for offset in range(*kept[queue][:2])} == {
        (row["queueId"], row["queueOffset"]) for row in rows
    }


def test_a_file_that_goes_while_it_is_read_is_a_loss(small_store: Path) -> None:
    options = {"storePath": str(small_store), "topic": "T", "profile": "full"}
    parsed = parse_options({**options, "failOnDataLoss": "false"}, scope="batch")
    (partition,) = StoreReader(parsed).partitions()
    assert isinstance(partition, RangesPartition)
    files = StoreFiles(str(small_store))
    (small_store / "commitlog" / f"{0:020d}").unlink()

    rows = [
        row
        for batch in store_reader.read_log(files, parsed, partition.ranges)
        for row in batch.to_pylist()
    ]

    assert files.log.bases[1] == min(row["commitLogOffset"] for row in rows)
    assert 200 - len(rows) == sum(
        StoreFiles(str(small_store)).queue("T", queue).bounds.min_offset for queue in (0, 1)
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "nope"}, "has no topic 'nope'; it has "),
        ({"topicPattern": "nope"}, "has no topic that matches nope"),
        ({"assign": '{"orders": {"b": [1]}}'}, "store's broker is 'broker-a' by option"),
        ({"topic": "orders", "storePath": "/nowhere"}, "/nowhere is not a store"),
    ],
)
def test_a_wrong_store_is_one_clear_error(
    cluster: EmbeddedCluster, given: dict[str, str], words: str
) -> None:
    options = {"storePath": str(store_of(cluster)), **given}

    with pytest.raises(RocketMQError) as caught:
        StoreReader(parse_options(options, scope="batch")).partitions()

    assert words in str(caught.value)


def test_an_unfinished_copy_of_a_store_is_not_read(small_store: Path) -> None:
    (small_store / COPYING_PATH).touch()

    with pytest.raises(RocketMQError, match="unfinished copy"):
        offline(small_store, topic="T")


def test_conditions_narrow_the_read_of_a_store(cluster: EmbeddedCluster) -> None:
    options = parse_options(
        {"storePath": str(store_of(cluster)), "topic": "orders,noise", "profile": "full"},
        scope="batch",
    )
    rows = rows_of(StoreReader(options))
    times = sorted({row["storeTimestamp"] for row in rows})
    moment, last = times[len(times) // 4], times[len(times) * 3 // 4]
    reader = FilteringReader(StoreReader, options)

    left = reader.pushFilters(
        [
            EqualTo(("topic",), "orders"),
            EqualTo(("queueId",), 1),
            LessThan(("queueOffset",), 140),
            GreaterThanOrEqual(("storeTimestamp",), moment),
            GreaterThanOrEqual(("storeTimestamp",), rows[0]["storeTimestamp"]),
            LessThan(("storeTimestamp",), last),
        ]
    )

    assert left == []
    expected = [
        row
        for row in rows
        if (row["topic"], row["queueId"]) == ("orders", 1)
        and row["queueOffset"] < 140
        and moment <= row["storeTimestamp"] < last
    ]
    assert 0 < len(expected) < 140
    assert rows_of(reader) == expected
