"""Celery on RocketMQ: real workers, as processes, on a cluster of ours."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from kombu import pools
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError, OperationalError
from kombu.messaging import Producer as KombuProducer
from kombu.utils.json import dumps

import sparrowmq.adapters.kombu as transport
from queue_messages import message
from sparrowmq import Admin, Message, Producer
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model import ConsumeContext, MessageQueue
from sparrowmq.model.namespace import NO_NAMESPACE
from sparrowmq.testing import EmbeddedCluster, InProcessCluster, read_messages
from waiting import wait_until

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as running:
        yield running


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    return f"q.{request.node.name}"[:60].replace("[", "-").replace("]", "")


@pytest.fixture
def app(cluster: InProcessCluster, queue: str) -> Iterator[Celery]:
    """The sending side."""
    with Celery("tasks", broker=f"rocketmq://{cluster.name_server}") as made:
        made.conf.task_default_queue = queue
        yield made
        made.pool.force_close_all()
        pools.reset()


@pytest.fixture
def start_worker(
    cluster: InProcessCluster, notes: Path, queue: str, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a worker; it is ended with the test."""
    workers: list[subprocess.Popen[bytes]] = []

    def start(
        *options: str, prefetch: int = 1, **transport_options: object
    ) -> subprocess.Popen[bytes]:
        log = tmp_path / f"worker-{len(workers)}.log"
        environment = {
            **os.environ,
            "RMQ": cluster.name_server,
            "NOTES": str(notes),
            "QUEUE": queue,
            "PREFETCH": str(prefetch),
            "OPTIONS": json.dumps(transport_options),
        }
        command = (sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-l", "INFO")
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [*command, "-n", f"w{len(workers)}@test", *options],
                cwd=HERE,
                env=environment,
                stdout=out,
                stderr=out,
            )
        workers.append(worker)
        wait_until("ready", lambda: b" ready." in log.read_bytes() or worker.poll() is not None)
        assert worker.poll() is None, log.read_text()
        return worker

    yield start
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    for worker in workers:
        assert worker.wait(30) in (0, -signal.SIGKILL)
    for log in tmp_path.glob("worker-*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()


def lines(notes: Path) -> list[list[str]]:
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def words(notes: Path) -> list[list[str]]:
    return [line[2:] for line in lines(notes)]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_run(app: Celery, start_worker: Any, notes: Path, pool: str) -> None:
    start_worker("--pool", pool, "-c", "2")

    for number in range(20):
        app.send_task("celery_app.add", (number, 1))

    wait_until("all run", lambda: len(words(notes)) >= 20)
    assert [["add", str(number + 1)] for number in range(20)] == sorted(
        words(notes), key=lambda line: int(line[1])
    )


def test_retries_wait_for_their_countdown(app: Celery, start_worker: Any, notes: Path) -> None:
    start_worker("--pool", "solo")

    app.send_task("celery_app.fail_twice")

    wait_until("retried", lambda: len(words(notes)) >= 3)
    assert [["attempt", str(number)] for number in range(3)] == words(notes)
    times = [float(line[0]) for line in lines(notes)]
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


def test_countdown_waits_at_the_broker_level_by_level(
    app: Celery, start_worker: Any, notes: Path, cluster: InProcessCluster, queue: str
) -> None:
    topic = transport.topic_of(queue)
    start_worker("--pool", "solo")
    app.send_task("celery_app.add", (0, 0))
    wait_until("the worker is there", lambda: words(notes))
    due = datetime.now(UTC) + timedelta(seconds=7)

    app.send_task("celery_app.add", (1, 1), countdown=7)

    assert len(read_messages(cluster.name_server, topic)) == 1
    wait_until("run", lambda: len(words(notes)) == 2)
    # The levels of 5 s and 1 s, and what is left at the worker.
    stored = read_messages(cluster.name_server, topic)
    assert len(stored) - 1 in (2, 3)
    ran = datetime.fromtimestamp(float(lines(notes)[1][0]), UTC)
    assert due <= ran < due + timedelta(seconds=5)


def test_several_workers_share_a_queue(app: Celery, start_worker: Any, notes: Path) -> None:
    start_worker("--pool", "solo")
    start_worker("--pool", "solo")
    count = 0

    def both_ran() -> bool:
        nonlocal count
        app.send_task("celery_app.add", (count, 0))
        count += 1
        return len({line[1] for line in lines(notes)}) == 2

    wait_until("both ran", both_ran)
    wait_until("all run", lambda: len(words(notes)) == count)
    assert {str(number) for number in range(count)} == {line[1] for line in words(notes)}


def test_an_idle_worker_takes_all_tasks_if_they_are_balanced_by_messages(
    app: Celery, start_worker: Any, notes: Path, tmp_path: Path
) -> None:
    """As many as the queues of the topic hold, with a worker that is busy all the while."""
    gate = tmp_path / "gate"
    start_worker("--pool", "solo", balance="messages", unacked_max=1)
    app.send_task("celery_app.wait_for", (str(gate),))
    wait_until("begun", lambda: words(notes))
    start_worker("--pool", "solo", balance="messages", unacked_max=1)
    for number in range(16):
        app.send_task("celery_app.add", (number, 0))

    wait_until("all run", lambda: len(words(notes)) == 17, timeout_s=60)
    gate.touch()
    wait_until("ended", lambda: ["ended", str(gate)] in words(notes), timeout_s=60)

    assert len({line[1] for line in lines(notes) if line[2] == "add"}) == 1


def test_task_of_a_killed_worker_runs_at_another(
    app: Celery, start_worker: Any, notes: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = start_worker("--pool", "solo")
    app.send_task("celery_app.wait_for", (str(gate),))
    wait_until("begun", lambda: words(notes))

    second = start_worker("--pool", "solo")
    first.kill()
    first.wait()
    gate.touch()

    wait_until("ended", lambda: ["ended", str(gate)] in words(notes), timeout_s=60)
    assert [first.pid, second.pid] == [int(line[1]) for line in lines(notes) if line[2] == "begun"]


def test_worker_that_ends_gives_back_what_it_has_not_begun(
    app: Celery,
    start_worker: Any,
    notes: Path,
    tmp_path: Path,
    cluster: InProcessCluster,
    queue: str,
) -> None:
    gate = tmp_path / "gate"
    first = start_worker("--pool", "solo", prefetch=8)
    app.send_task("celery_app.wait_for", (str(gate),))
    wait_until("begun", lambda: words(notes))
    for number in range(10):
        app.send_task("celery_app.add", (number, 0))

    first.terminate()
    gate.touch()
    first.wait(30)
    start_worker("--pool", "solo")

    topic = transport.topic_of(queue)
    wait_until("all run", lambda: len([w for w in words(notes) if w[0] == "add"]) >= 10)
    cluster.wait_until_consumed(transport.group_of(topic), topic)
    assert {str(number) for number in range(10)} == {
        word[1] for word in words(notes) if word[0] == "add"
    }


def test_remote_control_is_refused(
    app: Celery, start_worker: Any, notes: Path, tmp_path: Path, cluster: InProcessCluster
) -> None:
    start_worker("--pool", "solo")
    task = app.send_task("celery_app.add", (1, 1))

    with pytest.raises(UsageError, match="fan-out exchange"):
        task.revoke()
    with pytest.raises(UsageError, match="delete itself"):
        app.control.inspect().ping()
    with pytest.raises(UsageError, match="delete itself"), app.connection_for_read() as connection:
        app.events.Receiver(connection).capture(limit=1, timeout=1)

    with Admin(name_server=cluster.name_server) as admin:
        assert not [name for name in admin.list_topics() if "pidbox" in name or "celeryev" in name]


# --- the transport itself ---------------------------------------------------------------------


@pytest.fixture
def connection(cluster: InProcessCluster) -> Iterator[Connection]:
    with Connection(f"rocketmq://{cluster.name_server}") as opened:
        yield opened


def test_simple_queue_gives_back_what_is_rejected(connection: Connection, queue: str) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put({"number": 1})
        assert simple.qsize() == 1
        message = simple.get(timeout=20)
        assert (message.payload, message.delivery_info["redelivered"]) == ({"number": 1}, False)
        message.requeue()
        message = simple.get(timeout=20)
        assert (message.payload, message.delivery_info["redelivered"]) == ({"number": 1}, True)
        message.ack()
        simple.put({"number": 2})
        simple.put({"number": 3})
        assert simple.clear() >= 2
        assert simple.qsize() == 0


def test_task_that_is_rejected_is_dropped_unless_it_is_to_come_again(
    connection: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[bool] = []

    def note(task: transport.HeldTask, *, is_done: bool) -> None:
        decided.append(is_done)
        decide(task, is_done=is_done)

    decide = transport.HeldTask.decide
    monkeypatch.setattr(transport.HeldTask, "decide", note)
    with connection.SimpleQueue(queue) as simple:
        for requeue in (False, True):
            simple.put("x")
            simple.get(timeout=20).reject(requeue=requeue)

    assert decided == [True, False]


@pytest.mark.parametrize("eta", ["tomorrow", 5, ["2026"], ""])
def test_header_eta_of_a_program_without_celery_is_its_own(
    connection: Connection, queue: str, eta: object
) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put("x", headers={"eta": eta})
        message = simple.get(timeout=20)

        assert (message.payload, message.headers["eta"]) == ("x", eta)
        message.ack()


def test_simple_queue_without_acknowledgement(connection: Connection, queue: str) -> None:
    with connection.SimpleQueue(queue, no_ack=True) as simple:
        simple.put("x")
        assert simple.get(timeout=20).payload == "x"

    with connection.SimpleQueue(queue) as simple:
        wait_until("committed", lambda: simple.qsize() == 0)


def test_task_that_is_asked_for_without_acknowledgement_is_done(
    connection: Connection, queue: str
) -> None:
    asked = Queue(queue, channel=connection.default_channel)
    with connection.SimpleQueue(queue) as simple:
        simple.put("x")
    got: list[Any] = []

    def ask() -> bool:
        message = asked.get(no_ack=True)
        got.extend([message] if message else [])
        return bool(got)

    wait_until("came", ask)

    assert got[0].payload == "x"
    with connection.SimpleQueue(queue) as simple:
        wait_until("committed", lambda: simple.qsize() == 0)


def test_tasks_of_a_queue_that_is_consumed_anew_wait_for_acknowledgement(
    connection: Connection, queue: str
) -> None:
    channel = connection.default_channel
    with connection.SimpleQueue(queue, no_ack=True, channel=channel) as simple:
        simple.put("x")
        assert simple.get(timeout=20).payload == "x"
    with connection.SimpleQueue(queue, channel=channel) as simple:
        simple.put("y")
        simple.get(timeout=20).requeue()
        assert simple.get(timeout=20).payload == "y"
        channel.basic_recover(requeue=True)
    got: list[Any] = []

    def ask() -> bool:
        message = Queue(queue, channel=channel).get()
        got.extend([message] if message else [])
        return bool(got)

    # Nobody consumes the queue any more.
    wait_until("back", ask)
    assert got[0].payload == "y"
    got[0].ack()


@pytest.mark.parametrize("balance", ["queues", "messages"])
def test_purge_reaches_live_workers(cluster: InProcessCluster, queue: str, balance: str) -> None:
    options = {"balance": balance, "unacked_max": 1, "topic_queues": 1}
    opened = Connection(f"rocketmq://{cluster.name_server}", transport_options=options)
    with opened, opened.SimpleQueue(queue) as simple:
        for number in range(10):
            simple.put(number)
        first = simple.get(timeout=20)
        assert simple.clear() == 10
        simple.put("later")
        first.ack()
        assert (first.payload, simple.get(timeout=20).payload) == (0, "later")


def test_queue_that_was_deleted_can_be_declared_again(
    connection: Connection, cluster: InProcessCluster, queue: str
) -> None:
    declared = Queue(queue, Exchange(queue), channel=connection.default_channel)
    for change in (declared.declare, declared.delete, declared.declare):
        change()

    with Admin(name_server=cluster.name_server) as admin:
        assert len(admin.route(transport.topic_of(queue)).publish_queues) == 8


@pytest.mark.parametrize("stage", ["came later", "waits", "taken"])
def test_task_of_a_queue_that_is_cancelled_or_closed_is_given_back(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(transport, "PushConsumer", Mock())
    tasks = transport.QueueTasks("T", {}, Mock())
    body = dumps({"headers": {}, "properties": {"delivery_info": {}}}).encode()
    came = message(0, body=body)
    context = ConsumeContext(came.queue, messages=(came,))
    call = threading.Thread(target=tasks._listen, args=([came], context), daemon=True)
    if stage == "came later":
        tasks.pause()
        call.start()
    else:
        call.start()
        wait_until("the task waits", lambda: bool(tasks._waiting))
        if stage == "taken":
            tasks.take()
            tasks.close()
        else:
            tasks.pause()
    call.join(20)

    assert not call.is_alive()
    assert not context.end_undecided()


@pytest.mark.parametrize(("options", "left"), [({}, []), ({"balance": "messages"}, ["waits"])])
def test_task_that_was_not_begun_is_left_to_the_next_owner_of_its_queue(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], left: list[str]
) -> None:
    looks: list[MessageQueue] = []
    monkeypatch.setattr(transport, "PushConsumer", consumer := Mock())
    monkeypatch.setattr(transport, "LOOK_INTERVAL_S", 0.001)
    tasks = transport.QueueTasks("T", options, Mock())
    queue, subscriber = MessageQueue("T", "broker-a", 0), consumer()._subscriber
    subscriber.config.namespace, subscriber.member.assigned = NO_NAMESPACE, (queue,)
    is_moving = tasks._is_moving

    def look(place: MessageQueue) -> bool:
        looks.append(place)
        return is_moving(place)

    monkeypatch.setattr(tasks, "_is_moving", look)
    calls, taken = list[threading.Thread](), list[transport.HeldTask]()
    for offset, name in enumerate(("taken", "waits")):
        body = dumps({"id": name, "headers": {}, "properties": {"delivery_info": {}}}).encode()
        came = message(offset, body=body)
        context = ConsumeContext(queue, messages=(came,))
        call = threading.Thread(target=tasks._listen, args=([came], context), daemon=True)
        call.start()
        wait_until("the task waits", lambda: bool(tasks._waiting))
        if name == "taken":
            taken.append(tasks.take())
        calls.append(call)
    subscriber.member.assigned = ()
    count = len(looks) + 100
    wait_until("looked", lambda: len(looks) >= count and len(tasks._waiting) <= len(left))

    assert [task.payload["id"] for task in tasks._waiting] == left
    assert not taken[0].wait(0)
    tasks.close()
    for call in calls:
        call.join(20)
        assert not call.is_alive()


def test_task_of_the_retry_topic_is_left_to_the_next_owner_of_its_queue(
    cluster: InProcessCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LOOK_INTERVAL_S", 0.01)
    topic = transport.topic_of(queue)
    settings = {"name_server": cluster.name_server, "namespace": "ns", "drain_timeout_ms": 1_000}
    body = dumps({"headers": {}, "properties": {"delivery_info": {}}}).encode()
    with Admin(name_server=cluster.name_server, namespace="ns") as admin:
        admin.create_topic(topic, 1)
    with Producer("GID_p", name_server=cluster.name_server, namespace="ns") as producer:
        producer.send(Message(topic, body))
    with closing(transport.QueueTasks(topic, {**settings, "instance_name": "b"}, Mock())) as old:
        wait_until("it came", lambda: bool(old._waiting))
        old.take().decide(is_done=False)
        wait_until("it came again", lambda: bool(old._waiting))
        # The first of a group's members has the only queue of its retry topic.
        first = transport.QueueTasks(topic, {**settings, "instance_name": "a"}, Mock())
        with closing(first) as new:
            wait_until("it came to the next owner", lambda: bool(new._waiting))

            new.take().decide(is_done=True)
            with pytest.raises(Empty):
                old.take()


def test_first_decision_on_a_task_counts() -> None:
    task = transport.HeldTask({})

    task.decide(is_done=True)
    # As by a channel that is closed at that moment.
    task.decide(is_done=False)

    assert task.is_done


def held_tasks() -> int:
    gc.collect()
    return sum(type(each) is transport.HeldTask for each in gc.get_objects())


def test_tasks_that_are_done_are_forgotten(connection: Connection, queue: str) -> None:
    before = held_tasks()

    with connection.SimpleQueue(queue) as simple:
        for number in range(3):
            simple.put(number)
            simple.get(timeout=20).ack()

        wait_until("forgotten", lambda: held_tasks() <= before)


def test_new_topic_has_as_many_queues_as_the_option_says(
    cluster: InProcessCluster, queue: str
) -> None:
    options = {"topic_queues": 3}
    opened = Connection(f"rocketmq://{cluster.name_server}", transport_options=options)

    with opened, opened.SimpleQueue(queue), Admin(name_server=cluster.name_server) as admin:
        assert len(admin.route(transport.topic_of(queue)).publish_queues) == 3


def test_closed_connection_leaves_no_client_open(connection: Connection, queue: str) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put("x")
    channel: Any = connection.default_channel
    producer, admin = channel._get_producer(), channel._get_admin()
    connection.close()

    with pytest.raises(UsageError, match="closed"):
        producer.send(Message(transport.topic_of(queue), b"x"))
    with pytest.raises(UsageError, match="closed"):
        admin.list_topics()


def test_closed_connection_leaves_its_task_to_others_and_sends_no_copy(
    connection: Connection, cluster: InProcessCluster, queue: str
) -> None:
    topic = transport.topic_of(queue)
    with connection.SimpleQueue(queue) as simple:
        simple.put("x")
        simple.get(timeout=20)
        connection.close()

    with Admin(name_server=cluster.name_server) as admin:
        assert admin.consumer_ids(transport.group_of(topic)) == []
        assert sum(each.lag for each in admin.group_lag(transport.group_of(topic), topic)) == 0
    assert len(read_messages(cluster.name_server, topic)) == 1
    with connection.clone() as other, other.SimpleQueue(queue) as simple:
        message = simple.get(timeout=20)
        assert (message.payload, message.delivery_info["redelivered"]) == ("x", True)
        message.ack()


def test_task_is_an_operational_error_while_the_broker_is_away_and_sent_when_it_is_back() -> None:
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    with (
        EmbeddedCluster(flush="async") as own,
        Connection(f"rocketmq://{own.name_server}") as opened,
        opened.SimpleQueue("tasks") as simple,
    ):
        simple.put("before")
        own.kill()
        with pytest.raises(OperationalError):
            simple.put("lost", retry=True, retry_policy=policy)
        own.start()
        simple.put("after", retry=True, retry_policy={**policy, "max_retries": 20})

        with opened.SimpleQueue("tasks") as again:
            assert {again.get(timeout=60).payload for _ in range(2)} == {"before", "after"}


def test_all_connections_of_a_process_know_its_exchanges(
    cluster: InProcessCluster, queue: str
) -> None:
    declared = Queue(queue, Exchange(f"exchange of {queue}"), routing_key="video")
    url = f"rocketmq://{cluster.name_server}"
    with Connection(url) as first:
        declared(first.default_channel).declare()

    with Connection(url) as second:
        producer = KombuProducer(second.default_channel, exchange=declared.exchange)
        producer.publish("x", routing_key="video")

        assert declared(second.default_channel).queue_declare(passive=True).message_count == 1


def test_refused_account_is_an_operational_error(tmp_path: Path) -> None:
    rules = "accounts:\n  - {accessKey: celery-worker, secretKey: of-the-worker, admin: true}\n"
    (tmp_path / "plain_acl.yml").write_text(rules)
    options = ("--acl", str(tmp_path / "plain_acl.yml"))
    with EmbeddedCluster(options=options) as own:
        with Connection(f"rocketmq://celery-worker:of-the-worker@{own.name_server}") as allowed:
            allowed.ensure_connection(max_retries=1, interval_start=0)
        refused = Connection(f"rocketmq://celery-worker:wrong-secret@{own.name_server}")
        with pytest.raises(OperationalError):
            refused.ensure_connection(max_retries=1, interval_start=0)


def test_calls_that_send_tasks_back_at_once_share_a_producer(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel: Any = connection.default_channel
    second = threading.Thread(target=channel._get_producer)
    made: list[Mock] = []

    def make(*_: object, **__: object) -> Mock:
        made.append(Mock())
        if len(made) == 1:
            second.start()
            second.join(0.2)
        return made[-1]

    monkeypatch.setattr(transport, "Producer", make)
    channel._get_producer()
    second.join(20)

    assert len(made) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"auto_delete": True},
        {"exclusive": True},
        {"expires": 60},
        {"message_ttl": 60},
        {"max_priority": 9},
        {"queue_arguments": {"x-queue-type": "quorum"}},
    ],
)
def test_queue_that_no_topic_can_be_is_refused(
    connection: Connection, queue: str, options: dict[str, Any]
) -> None:
    declared = Queue(queue, channel=connection.default_channel, **options)

    with pytest.raises(UsageError, match=queue):
        declared.declare()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        connection.default_channel.queue_declare(queue, passive=True)


def test_task_that_no_queue_of_the_process_would_get_is_refused(app: Celery, queue: str) -> None:
    media = Exchange("media", type="direct")
    video = Queue(queue, media, routing_key="video")
    app.conf.task_queues = [video]
    app.conf.task_routes = {"by_key": {"exchange": "media", "routing_key": "video"}}

    with app.connection_for_write() as connection:
        channel = connection.default_channel
        with pytest.raises(UsageError, match="exchange 'media' has no queue with routing key 'vid"):
            app.send_task("by_key", connection=connection)
        with pytest.raises(UsageError, match="exchange 'media'"):
            KombuProducer(channel, exchange=media, routing_key="other").publish("x")
        # Nobody receives events.
        app.events.Dispatcher(connection).send("worker-online")
        app.send_task("by_queue", connection=connection, queue=video)
        app.send_task("by_key", connection=connection)
        assert video(channel).queue_declare(passive=True).message_count == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_sends_by_clients_of_its_own(app: Celery, queue: str) -> None:
    app.send_task("before")
    child = os.fork()
    if child == 0:
        try:
            app.send_task("in the child")
            app.pool.force_close_all()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    app.send_task("after")

    assert code == 0
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_declare(queue, passive=True).message_count == 3


@pytest.mark.parametrize("name", ["q" * 110, "任务" * 7], ids=["letters", "bytes"])
def test_queue_that_no_group_of_workers_can_consume_is_refused(
    connection: Connection, name: str
) -> None:
    with pytest.raises(UsageError, match=f"queue '{name}' has too long a name"):
        connection.SimpleQueue(name)
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        connection.default_channel.queue_declare(name, passive=True)


def test_message_of_another_program_is_a_dead_letter(
    connection: Connection, cluster: InProcessCluster, queue: str
) -> None:
    topic = transport.topic_of(queue)
    with connection.SimpleQueue(queue) as simple:
        with Producer("GID_p", name_server=cluster.name_server) as producer:
            for body in (b"{}", b'{"headers": [], "properties": {"delivery_info": {}}}'):
                producer.send(Message(topic, body))
        simple.put("x")
        assert simple.get(timeout=20).payload == "x"

        with Admin(name_server=cluster.name_server) as admin:
            group = transport.group_of(topic)
            wait_until("dead", lambda: len(admin.dead_letters(group)) == 2)


def test_unreachable_cluster_is_an_operational_error() -> None:
    connection = Connection("rocketmq://127.0.0.1:1")

    with pytest.raises(OperationalError, match=r"no name server answers at 127\.0\.0\.1:1"):
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize(
    ("url", "name_server"),
    [
        ("rocketmq://", "127.0.0.1:9876"),
        ("rocketmq://ns:1//", "ns:1"),
        ("rocketmq://[::1]:9876", "[::1]:9876"),
    ],
)
def test_url_names_the_name_server(url: str, name_server: str) -> None:
    assert Connection(url).transport.client_settings["name_server"] == name_server


@pytest.mark.parametrize(
    ("url", "settings", "reason"),
    [
        ("rocketmq://ns:1/prod", {}, "namespace': 'prod'"),
        ("rocketmq://ns:1?ssl_ca_certs=ca.pem", {}, "would not be encrypted"),
        ("rocketmq://ns:1", {"ssl": True}, "would not be encrypted"),
    ],
)
def test_what_would_go_unheeded_is_refused(url: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        assert Connection(url, **settings).transport


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"unacked_max": 0}, "unacked_max is 0; it must be a whole number from 1 to 1000"),
        ({"topic_queues": "8"}, "topic_queues is '8'; it must be a whole number from 1 to 65536"),
        ({"visibility_timeout": 0}, "visibility_timeout is 0; it must be a whole number"),
        ({"visibility_timeout": "60"}, "visibility_timeout is '60'; it must be a whole number"),
        ({"visibilty_timeout": 60}, "'visibilty_timeout'; did you mean visibility_timeout?"),
        ({"drain_timeout_ms": 60}, "'drain_timeout_ms'; there are name_server, tls"),
    ],
)
def test_error_of_an_option_names_the_option(option: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        assert Connection("rocketmq://ns:1", transport_options=option).transport


def test_options_become_settings_of_the_workers_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"unacked_max": 5, "visibility_timeout": 7, "namespace": "ns", "balance": "messages"}
    opened = Connection("rocketmq://me:hush@ns:1", transport_options=options).transport
    monkeypatch.setattr(transport, "PushConsumer", made := Mock())

    transport.QueueTasks("T", opened.consumer_settings, Mock())

    given = made.call_args.kwargs
    assert (given["access_key"], given["secret_key"], given["namespace"]) == ("me", "hush", "ns")
    assert (given["consume_thread_count"], given["consume_timeout_ms"]) == (5, 7_000)
    # Celery counts its attempts itself, and the first worker comes after the first task.
    assert (given["start"], given["max_reconsume_times"]) == ("first", 2**31 - 1)


def test_options_of_kombu_itself_are_taken(connection: Connection, queue: str) -> None:
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    options = {"polling_interval": 0.01, "body_encoding": None, "connect_retries_timeout": 5}
    opened = connection.clone(transport_options=options)

    with opened, opened.SimpleQueue(queue) as simple:
        # This adds the policy to the options.
        simple.put("x", retry=True, retry_policy=policy)
        opened.close()
        assert set(opened.transport_options or {}) == {*options, *policy}
        assert opened.transport.polling_interval == 0.01


def test_settings_of_tls_are_taken_beside_those_for_other_brokers() -> None:
    tls = ssl.create_default_context()

    opened = Connection("rocketmq://ns:1", ssl=True, transport_options={"tls": tls})

    assert opened.transport.client_settings["tls"] is tls


@pytest.mark.parametrize(
    ("queue", "topic"),
    [("celery", "celery"), ("high.priority", "high%2Epriority"), ("é@x", "%C3%A9%40x")],
)
def test_every_name_of_a_queue_has_a_topic(queue: str, topic: str) -> None:
    assert topic == transport.topic_of(queue)


@pytest.mark.parametrize(
    ("seconds", "level"), [(-5, 0), (0.5, 0), (4, 1), (45, 4), (7_199, 17), (90_000, 18)]
)
def test_level_is_the_longest_that_is_not_too_long(seconds: float, level: int) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=seconds)
    for text in (eta.isoformat(), eta.replace(tzinfo=None).isoformat()):
        assert level == transport.delay_level_of({"headers": {"eta": text}})
    assert transport.delay_level_of({"headers": {"eta": None}}) == 0
