"""What goes wrong, tried one by one on both faces, against what the page of errors prints.

A case of the page is a heading, a line of the error's kind and of what becomes of the message, and
the text. In the text stand HOST:PORT for an address, ID for a message's id, BROKER for a broker's
name, and ... for what differs from machine to machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from certificates import Certificates
from commands import Commands
from hostile import HANG_UP, HostileCluster
from signals import wait_asleep
from sparrowmq import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq import errors as errors_module
from sparrowmq.calling.tls import client_context
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/errors.md").read_text()
CASE = re.compile(r"^### (.+)\n\n`(\w+)`, (.+)\n\n```text\n(.+)\n```$", re.M)
MAY_BE_STORED = "the message may be stored"
NOWHERE = "127.0.0.1:1"
ACCOUNTS = """
accounts:
- accessKey: manager1
  secretKey: "12345678"
  admin: true
- accessKey: reader12
  secretKey: "12345678"
  defaultTopicPerm: SUB
"""
# What the servers of `up` run under with a bound on the size of a file, as a full disk is one.
# Python itself would write its bytecode cut off there, and could not import it again.
SMALL_FILES = """
import resource, sys
sys.dont_write_bytecode = True
from sparrowmq.hosting.__main__ import parse_settings, run_both
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
sys.exit(run_both(parse_settings(sys.argv[1:])))
"""

pytestmark = pytest.mark.slow


class Row(NamedTuple):
    """A case of the page."""

    kind: str
    fate: str
    text: str


ROWS = {title: Row(kind, fate, text) for title, kind, fate, text in CASE.findall(PAGE)}


def pattern_of(text: str) -> re.Pattern[str]:
    """Return what a text of the page stands for."""
    escaped = re.escape(text)
    for name, meaning in {
        "HOST:PORT": r"[\w.-]+:\d+",
        "BROKER": r"broker-a",
        "ID": r"[0-9A-F]{32}",
        # What is left of it at the attempt.
        re.escape("1000 ms"): r"(1000|9\d\d) ms",
        re.escape("..."): r".+",
    }.items():
        escaped = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", meaning.replace("\\", r"\\"), escaped)
    return re.compile(escaped, re.S)


class Stage:
    """Where a case is tried: a face, and a cluster that no case harms."""

    def __init__(
        self, face: str, cluster: EmbeddedCluster, request: pytest.FixtureRequest, log: Any
    ) -> None:
        self.is_async = face == "asyncio"
        self.cluster = cluster
        self.request = request
        self.log = log

    @property
    def certificates(self) -> Certificates:
        found: Certificates = self.request.getfixturevalue("certificates")
        return found

    @property
    def tmp_path(self) -> Path:
        found: Path = self.request.getfixturevalue("tmp_path")
        return found

    @contextlib.contextmanager
    def producer(self, name_server: str, **settings: Any) -> Generator[Callable[[Any], Any]]:
        """Give the `send` of a producer of the face."""
        if not self.is_async:
            with Producer("GID_p", name_server=name_server, **settings) as plain:
                yield plain.send
            return
        with asyncio.Runner() as runner:
            producer = AsyncProducer("GID_p", name_server=name_server, **settings)
            try:
                yield lambda message: runner.run(producer.send(message))
            finally:
                runner.run(producer.close())

    def send(self, name_server: str, message: Any = None, **settings: Any) -> None:
        """Send one message by a producer of its own."""
        with self.producer(name_server, **settings) as send:
            send(Message("orders", b"x") if message is None else message)

    def consume(self, name_server: str, topic: str, words: str, listener: Any = None) -> str:
        """Run a consumer until a line of its log has the words; return the line."""
        settings: Any = {
            "name_server": name_server,
            "listener": listener or (lambda messages, context: None),
            "start": "first",
        }
        with self.log.at_level(logging.WARNING):
            if self.is_async:
                asyncio.run(self._consume_async(topic, words, settings))
            else:
                with PushConsumer("GID_c", **settings) as consumer:
                    consumer.subscribe(topic)
                    consumer.start()
                    wait_until(words, lambda: self.line(words))
        found = self.line(words)
        assert found is not None
        return found

    async def _consume_async(self, topic: str, words: str, settings: Any) -> None:
        async with AsyncPushConsumer("GID_c", **settings) as consumer:
            await consumer.subscribe(topic)
            await consumer.start()
            await asyncio.to_thread(wait_until, words, lambda: self.line(words))

    def line(self, words: str) -> str | None:
        """Return the first line of the log with these words."""
        return next((line for line in list(self.log.messages) if words in line), None)


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(options=("--no-auto-create-topics",)) as running:
        running.create_topic("orders", 2)
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def stage(
    request: pytest.FixtureRequest, shared: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> Stage:
    return Stage(request.param, shared, request, caplog)


Case = Callable[[Stage], Any]
CASES: dict[str, Case] = {}


def case(title: str) -> Callable[[Case], Case]:
    """Register what tries a case of the page: it raises the error, or returns the log's line."""

    def register(function: Case) -> Case:
        assert title not in CASES
        CASES[title] = function
        return function

    return register


# --- addresses --------------------------------------------------------------------------------


@case("Nothing listens at the address")
def nothing_listens(stage: Stage) -> None:
    stage.send(NOWHERE)


@case("The host's name is not found")
def no_such_host(stage: Stage) -> None:
    stage.send("no-such-host.invalid:9876")


@case("The address begins with http://")
def scheme(stage: Stage) -> None:
    stage.send(f"http://{NOWHERE}")


@case("The address is a broker's")
def address_of_a_broker(stage: Stage) -> None:
    stage.send(stage.cluster.broker)


@case("A server of another kind listens at the address")
def server_of_another_kind(stage: Stage) -> None:
    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listening.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            stage.send(f"127.0.0.1:{listening.getsockname()[1]}")
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@case("The name server is gone")
def name_server_is_gone(stage: Stage) -> None:
    with HostileCluster() as cluster:
        cluster.name_server.add_topic("orders")
        with stage.producer(cluster.address) as send:
            send(Message("orders", b"x"))
            cluster.name_server.lies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: HANG_UP
            # What is known serves on.
            send(Message("orders", b"x"))
            send(Message("payments", b"x"))


@case("A consumer's name server does not answer")
def consumer_without_name_server(stage: Stage) -> str:
    return stage.consume(NOWHERE, "orders", "no name server answers")


# --- topics, rights and certificates ----------------------------------------------------------


@case("The topic does not exist")
def no_topic(stage: Stage) -> None:
    stage.send(stage.cluster.name_server, Message("payments", b"x"))


@case("A consumer's topic does not exist")
def no_topic_to_consume(stage: Stage) -> str:
    return stage.consume(stage.cluster.name_server, "payments", "'payments'")


@contextlib.contextmanager
def guarded(stage: Stage) -> Generator[str]:
    """Give the name server of a cluster with access control."""
    accounts = stage.tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    with EmbeddedCluster(options=("--acl", str(accounts))) as cluster:
        address = cluster.name_server
        with Admin(name_server=address, access_key="manager1", secret_key="12345678") as admin:
            admin.create_topic("orders", 2)
        yield cluster.name_server


@case("No access key where one is wanted")
def no_key(stage: Stage) -> None:
    with guarded(stage) as name_server:
        stage.send(name_server)


@case("An access key that the server does not know")
def unknown_key(stage: Stage) -> None:
    with guarded(stage) as name_server:
        stage.send(name_server, access_key="nobody99", secret_key="12345678")


@case("A wrong secret key")
def wrong_secret(stage: Stage) -> None:
    with guarded(stage) as name_server:
        stage.send(name_server, access_key="manager1", secret_key="87654321")


@case("An access key without the right to send")
def no_right(stage: Stage) -> None:
    with guarded(stage) as name_server:
        stage.send(name_server, access_key="reader12", secret_key="12345678")


@case("The server's certificate has expired")
def expired(stage: Stage) -> None:
    made = stage.certificates.issue("expired", has_expired=True)
    context = client_context(ca_file=stage.certificates.ca.path)
    options = ("--tls-cert", str(made.path), "--tls-key", str(made.key))
    with EmbeddedCluster(options=options) as cluster:
        stage.send(cluster.name_server, tls=context)


@case("A server without TLS")
def no_tls(stage: Stage) -> None:
    stage.send(stage.cluster.name_server, tls=ssl.create_default_context())


@case("A server with TLS, a client without")
def wants_tls(stage: Stage) -> None:
    made = stage.certificates.server
    options = ("--tls-cert", str(made.path), "--tls-key", str(made.key))
    with EmbeddedCluster(options=options) as cluster:
        stage.send(cluster.name_server)


# --- messages ---------------------------------------------------------------------------------


@case("A text where a message belongs")
def text_for_a_message(stage: Stage) -> None:
    stage.send(stage.cluster.name_server, "text")


@case("A text where the body belongs")
def text_for_a_body(_: Stage) -> None:
    Message("orders", "text")  # type: ignore[arg-type]


@case("A body over the client's bound")
def large_body(stage: Stage) -> None:
    stage.send(stage.cluster.name_server, Message("orders", bytes(5 << 20)))


@case("A body over the broker's bound")
def larger_body(stage: Stage) -> None:
    message = Message("orders", os.urandom(5 << 20))
    stage.send(stage.cluster.name_server, message, body_bytes_max=8 << 20)


@case("Properties over the bound of a header")
def large_header(stage: Stage) -> None:
    stage.send(stage.cluster.name_server, Message("orders", b"x", properties={"a": "x" * 40_000}))


@case("Too much waits to be sent")
def buffer_full(stage: Stage) -> None:
    with HostileCluster() as cluster:
        cluster.name_server.add_topic("orders")
        cluster.broker.lies[RequestCode.SEND_MESSAGE_V2] = lambda *_: None
        settings: Any = {"buffer_bytes_max": 1000, "send_timeout_ms": 300}
        message = Message("orders", bytes(900))

        async def run() -> None:
            async with AsyncProducer("G", name_server=cluster.address, **settings) as producer:
                first = producer.send_nowait(message)
                try:
                    producer.send_nowait(message)
                finally:
                    await asyncio.wait({first})
                    first.exception()

        if stage.is_async:
            asyncio.run(run())
        with Producer("G", name_server=cluster.address, **settings) as producer:
            producer.send_nowait(message)
            producer.send_nowait(message)


# --- brokers ----------------------------------------------------------------------------------


def has_unread(port: int) -> bool:
    """Return whether bytes came to a port that its process has not read. Linux alone."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = [line.split() for line in lines]
    return any(
        local.endswith(f":{port:04X}") and int(queues.partition(":")[2], 16)
        for _, local, _, _, queues, *_ in sockets
    )


@case("The broker is killed while it has the message")
def killed_in_mid_send(stage: Stage) -> None:
    # No attempt ends by its time, however slow the machine is.
    settings: Any = {"send_timeout_ms": 60_000}
    with EmbeddedCluster() as cluster, stage.producer(cluster.name_server, **settings) as send:
        send(Message("orders", b"x"))
        port = int(cluster.broker.rpartition(":")[2])
        # It takes the bytes and does not act on them until it ends.
        os.kill(cluster.pid, signal.SIGSTOP)

        def kill() -> None:
            wait_until("the broker has the message", lambda: has_unread(port))
            cluster.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            send(Message("orders", b"x"))
        finally:
            killer.join()


@case("The broker does not answer")
def silent(stage: Stage) -> None:
    with (
        EmbeddedCluster() as cluster,
        stage.producer(cluster.name_server, send_timeout_ms=1_000) as send,
    ):
        send(Message("orders", b"x"))
        os.kill(cluster.pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        try:
            send(Message("orders", b"x"))
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
            # One deadline over all attempts; three of a second each would be past this.
            assert 0.9 < time.monotonic() - begun_s < 2.5


@case("The broker is down")
def down(stage: Stage) -> None:
    with HostileCluster() as cluster:
        cluster.name_server.brokers["broker-a"] = NOWHERE
        cluster.name_server.add_topic("orders")
        stage.send(cluster.address)


@case("The broker's disk is as full as it may be")
def nearly_full(stage: Stage) -> None:
    options = [f"--disk-{name}-percent=1" for name in ("expire", "force", "full")]
    with EmbeddedCluster(options=tuple(options)) as cluster:
        stage.send(cluster.name_server)


@case("The broker cannot write")
def cannot_write(stage: Stage) -> None:
    command = (
        *(sys.executable, "-c", SMALL_FILES, "--stop-with-stdin", "--nameserver-port", "0"),
        *("--broker-port", "0", "--data", str(stage.tmp_path), "--disk-force-percent", "100"),
        *("--disk-full-percent", "100"),
    )
    pipe = subprocess.PIPE
    with (
        (stage.tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log) as process,
    ):
        assert process.stdout is not None
        ready = process.stdout.readline().decode()
        name_server = ready.partition("nameserver=")[2].split()[0]
        try:
            stage.send(name_server, Message("orders", os.urandom(100_000)))
        finally:
            process.communicate(timeout=60)
            # The error sends its reader there.
            assert (stage.tmp_path / "log").read_text().count("messages cannot be written") == 1


# --- the program ------------------------------------------------------------------------------


@case("The listener raises")
def listener_raises(stage: Stage) -> str:
    def listener(messages: Any, context: Any) -> None:
        raise ValueError("no such flight")

    with HostileCluster() as cluster:
        cluster.name_server.add_topic("orders")
        cluster.broker.add_messages("orders", b"1")
        return stage.consume(cluster.address, "orders", "the listener failed", listener)


@case("A client is used after its end")
def used_after_close(stage: Stage) -> None:
    async def run() -> None:
        async with AsyncProducer("G", name_server=NOWHERE) as producer:
            pass
        await producer.send(Message("orders", b"x"))

    if stage.is_async:
        asyncio.run(run())
    with Producer("G", name_server=NOWHERE) as producer:
        pass
    producer.send(Message("orders", b"x"))


@case("A client of asyncio is used in two event loops")
def two_loops(stage: Stage) -> None:
    producer = AsyncProducer("G", name_server=stage.cluster.name_server)
    with asyncio.Runner() as runner:
        runner.run(producer.send(Message("orders", b"x")))
        try:
            asyncio.run(producer.send(Message("orders", b"x")))
        finally:
            runner.run(producer.close())


@case("A client is used after a fork")
def used_after_fork(stage: Stage) -> None:
    with stage.producer(stage.cluster.name_server) as send:
        send(Message("orders", b"x"))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if stage.is_async:
                    # The loop was copied as well: whoever forks begins another.
                    asyncio.events._set_running_loop(None)
                send(Message("orders", b"x"))
            except BaseException as error:
                os.write(writing, f"{type(error).__name__} {error}".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            kind, _, text = said.read().decode().partition(" ")
        os.waitpid(child, 0)
        raise getattr(errors_module, kind)(text)


# --- what holds the page ----------------------------------------------------------------------


def test_page_and_tests_have_the_same_cases() -> None:
    assert list(ROWS) == list(CASES)


@pytest.mark.parametrize("title", CASES)
def test_case_is_as_the_page_says(stage: Stage, title: str) -> None:
    row = ROWS[title]
    if row.kind == "WARNING":
        assert pattern_of(row.text).search(CASES[title](stage))
        return

    with pytest.raises(SparrowError) as caught:
        CASES[title](stage)

    error = caught.value
    assert pattern_of(row.text).fullmatch(str(error)), str(error)
    assert (row.kind, row.fate.startswith(MAY_BE_STORED)) == (
        type(error).__name__,
        error.outcome_unknown,
    )


def test_page_lists_every_kind_with_its_flags() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| *(.*?) *\|", PAGE, re.M))
    kinds = {
        name: kind
        for name, kind in vars(errors_module).items()
        if isinstance(kind, type) and issubclass(kind, SparrowError)
    }

    assert kinds.keys() == rows.keys()
    for name, kind in kinds.items():
        flags = [flag for flag in ("retriable", "outcome_unknown") if getattr(kind, flag)]
        assert ", ".join(f"`{flag}`" for flag in flags) == rows[name], name


# --- beside the two faces ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "code"),
    [
        ("Nothing listens at the address", 3),
        ("The address is a broker's", 3),
        ("The address begins with http://", 2),
    ],
)
def test_command_prints_the_error_alone(shared: EmbeddedCluster, title: str, code: int) -> None:
    address = {"The address is a broker's": shared.broker}.get(title, NOWHERE)
    result = Commands(f"http://{address}" if "http" in title else address)("ls")

    assert code == result.exit_code
    assert result.output.count("\n") == 1
    assert ROWS[title].text.partition("; ")[2] in result.output


def test_ctrl_c_ends_the_consumer_of_the_readme_without_a_traceback(
    shared: EmbeddedCluster,
) -> None:
    (code,) = re.findall(
        r"```python\n((?:(?!```).)*# until Ctrl-C.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    code = code.replace("127.0.0.1:9876", shared.name_server).replace("flights", "orders")
    code = code.replace("Event().wait()", "print('ready', flush=True); Event().wait()")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in {b"ready\n", b""}:
            pass
        wait_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)

    # Until the consumer is closed, its listener may print messages behind.
    assert (process.returncode, said, b"goodbye\n" in out) == (0, b"", True)


def show_topic(name_server: str, topic: str) -> None:
    with Admin(name_server=name_server) as admin:
        admin.topic_status(topic)


# Wrong types too, which type checkers would show.
WRONG: Any = None
MISTAKES: dict[str, Callable[[str, Producer], object]] = {
    "address": lambda _, p: Producer("GID_p", name_server="localhost"),
    "group name": lambda at, p: Producer("GID p", name_server=at),
    "value": lambda at, p: PollConsumer("GID_c", name_server=at, pull_batch_size=0),
    "listener": lambda at, p: PushConsumer("GID_c", name_server=at, listener=WRONG),
    "topic name": lambda _, p: p.send(Message("T x", b"x")),
    "property": lambda _, p: p.send(Message("T", b"x", properties={"KEYS": "x"})),
    "no message": lambda _, p: p.send(WRONG),
    "topic": lambda at, p: show_topic(at, "T_nope"),
}


def test_the_traceback_of_a_mistake_is_short(cluster: EmbeddedCluster) -> None:
    found: dict[str, int] = {}
    last: dict[str, str] = {}
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for name, make in MISTAKES.items():
            with pytest.raises(SparrowError) as caught:
                make(cluster.name_server, producer)
            # From the line of MISTAKES on, which stands for the user's; a whole statement gets no
            # line of carets.
            trace = caught.tb.tb_next
            text = traceback.format_exception(type(caught.value), caught.value, trace)
            found[name] = len("".join(text).splitlines()) - 1
            last[name] = traceback.extract_tb(trace)[-1].filename

    assert {name: lines for name, lines in found.items() if lines > 12} == {}
    assert {name: file for name, file in last.items() if file != __file__} == {}
