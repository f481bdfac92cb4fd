"""A broker without sockets for tests of the machine, and a whole cluster on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from small_stores import split_records
from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.broker.host import BrokerHost, Round, attempt
from sparrowmq.broker.server import BrokerServer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Operation, invoke
from sparrowmq.nameserver.server import NameServerServer
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.serving.connections import Connection, Output, Push, Reply, Written
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.remoting_server import bind
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.message_store import MessageStore
from steps import made

SMALL_FILE_BYTES = 1 << 20


@dataclass
class Rig:
    """A broker and its clock. Work runs at once, unless `holds_work`.

    What asks its `name_servers` is left to the test, in `operations`.
    """

    root: Path
    config: BrokerConfig
    saved: SavedTables | None = None
    now_ms: int = 1_000
    timestamp_ms: int = 1_700_000_000_000
    holds_work: bool = False
    name_servers: tuple[str, ...] = ()
    operations: list[Operation[None]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    _numbers: int = 0

    def __post_init__(self) -> None:
        storage = FileStorage(self.root)
        self.store = MessageStore(
            storage,
            StoreConfig(
                flush=self.config.flush,
                commit_log_file_size=SMALL_FILE_BYTES,
                index_slot_count=64,
                index_entry_count=256,
                consume_queue_file_size=2_000,
            ),
        )
        self.store.load(timestamp_ms=self.timestamp_ms)
        self.broker = Broker(
            self.config,
            self.store,
            random_below=lambda count: count - 1,
            saved=self.saved or SavedTables(),
            now_ms=self.now_ms,
            timestamp_ms=self.timestamp_ms,
        )
        self.world = RigWorld(self)
        self.host = BrokerHost(self.broker, storage, self.world, name_servers=self.name_servers)
        self.world.end_turn()

    def connect(self, port: int = 0) -> Connection:
        self._numbers += 1
        address = f"10.0.0.1:{port or 40_000 + self._numbers}"
        return Connection(self._numbers, address, encode_host(address))

    def handle(self, connection: Connection, command: RemotingCommand) -> list[Output]:
        """Serve one command; returns all outputs, and keeps them too."""
        before = len(self.outputs)
        self.world.perform(
            self.broker.handle(
                command, connection, now_ms=self.now_ms, timestamp_ms=self.timestamp_ms
            )
        )
        self.world.end_turn()
        return self.outputs[before:]

    def call(
        self,
        connection: Connection,
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: bytes | None = None,
        **extra: Any,
    ) -> RemotingCommand:
        """Serve one request and return its answer."""
        command = RemotingCommand(
            code=code, ext_fields=ext_fields, body=body, opaque=len(self.outputs), **extra
        )
        replies = [
            output.command
            for output in self.handle(connection, command)
            if isinstance(output, Reply | Written) and output.connection is connection
        ]
        assert len(replies) == 1, replies
        return replies[0]

    def work(self, error: Exception | None = None) -> None:
        """Do all work that is due; with an error, every round of it fails by the error."""
        self.world.error = error
        self.host.settle()
        self.host.begin_rounds()
        self.world.error = None

    def advance(self, duration_ms: int) -> list[Output]:
        """Let time pass in steps of a tick; returns what came out."""
        before = len(self.outputs)
        for _ in range(duration_ms // 100):
            self.now_ms += 100
            self.timestamp_ms += 100
            self.host.tick()
            self.work()
        return self.outputs[before:]

    def create_topic(
        self, topic: str, queues: int = 4, *, writes: int | None = None, perm: int = 6
    ) -> None:
        reply = self.call(
            self.connect(),
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues if writes is None else writes),
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
        assert reply.code == 0, reply.remark

    def send(
        self,
        connection: Connection,
        topic: str = "T",
        body: bytes | None = b"body",
        *,
        queue_id: int = 0,
        properties: str = "",
        code: int = RequestCode.SEND_MESSAGE_V2,
        **fields: str,
    ) -> RemotingCommand:
        return self.call(connection, code, send_fields(topic, queue_id, properties, **fields), body)

    def pull(
        self, connection: Connection, topic: str = "T", *, queue_id: int = 0, **fields: str
    ) -> list[Output]:
        command = RemotingCommand(
            code=RequestCode.PULL_MESSAGE, ext_fields=pull_fields(topic, queue_id, **fields)
        )
        return self.handle(connection, command)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """Return everything readable in a queue."""
        if self.store.queues.max_offset(topic, queue_id) == 0:
            return []
        result = self.store.queues.get(
            topic, queue_id, queue_offset=0, count_max=1_000, bytes_max=1 << 24
        )
        return split_records(result.records)

    @staticmethod
    def replies(outputs: Sequence[Output]) -> list[RemotingCommand]:
        return [output.command for output in outputs if isinstance(output, Reply | Written)]

    @staticmethod
    def pushes(outputs: Sequence[Output]) -> list[tuple[Connection, str]]:
        """Return who was told that which group changed."""
        return [
            (output.connection, (output.command.ext_fields or {})["consumerGroup"])
            for output in outputs
            if isinstance(output, Push)
        ]

    def restart(self) -> Rig:
        """Stop cleanly and start another broker on the same files."""
        tables = self.broker.state
        saved = SavedTables(
            topics=tables.topics.table(),
            groups=tables.groups.table(),
            offsets=tables.offsets.table(),
            delays=tables.delays.table(),
            timers=tables.timers.table(),
            pops=tables.pops.table(),
        )
        self.store.close()
        return Rig(
            self.root,
            self.config,
            saved,
            now_ms=self.now_ms,
            timestamp_ms=self.timestamp_ms,
        )


class RigWorld:
    """The world of a rig's broker: its rounds run at once, unless the rig holds work."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        # The error of each round, in the place of its work.
        self.error: Exception | None = None

    def monotonic_ms(self) -> int:
        return self._rig.now_ms

    def timestamp_ms(self) -> int:
        return self._rig.timestamp_ms

    def perform(self, outputs: Sequence[Output]) -> None:
        self._rig.outputs += made(outputs)

    def end_turn(self) -> None:
        self._rig.host.settle()
        if not self._rig.holds_work:
            self._rig.host.begin_rounds()

    def end_turn_soon(self) -> None:
        self._rig.host.settle()

    def begin_round(self, round: Round) -> None:
        round.end(self.error or attempt(round))

    def begin_operation(self, operation: Operation[None]) -> None:
        if self._rig.name_servers:
            self._rig.operations.append(operation)
        else:
            # Without name servers, registration asks nothing.
            assert list(operation) == []


def send_fields(topic: str, queue_id: int, properties: str = "", **fields: str) -> dict[str, str]:
    return {
        "a": "GID_p",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        **fields,
    }


def pull_fields(topic: str, queue_id: int, **fields: str) -> dict[str, str]:
    return {
        "consumerGroup": "GID_c",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **fields,
    }


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*, name_servers: tuple[str, ...] = (), **settings: Any) -> Rig:
        config = BrokerConfig(address="127.0.0.1:10911", **settings)
        rig = Rig(tmp_path / f"store{len(rigs)}", config, name_servers=name_servers)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.store.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    rig = make_rig()
    rig.create_topic("T", 4)
    rig.outputs.clear()
    return rig


class Peer:
    """A bare connection, for what no driver would write."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()
        self.commands: list[RemotingCommand] = []

    @classmethod
    async def connect(cls, address: str) -> Peer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def write(self, command: RemotingCommand) -> None:
        self.writer.write(encode_frame(command))

    async def read_reply(self, opaque: int) -> RemotingCommand:
        """Return the answer to a request; pushes before it are dropped."""
        while (command := await self.read_command()) is not None:
            if command.is_response and command.opaque == opaque:
                return command
        raise EOFError("the connection was closed")

    async def read_command(self) -> RemotingCommand | None:
        """Return the next command, or None at the connection's end."""
        while not self.commands:
            data = await asyncio.wait_for(self.reader.read(65_536), 10)
            if not data:
                return None
            self.commands += self.decoder.receive_data(data)
        return self.commands.pop(0)

    async def is_closed(self) -> bool:
        """Return whether the server closes the connection without another word."""
        try:
            return not await asyncio.wait_for(self.reader.read(1), 10)
        except ConnectionResetError:
            return True

    async def is_ended(self) -> bool:
        """Return whether the server closes the connection, perhaps after some last words."""
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(self.reader.read(), 10)
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


@dataclass
class Live:
    """A name server and a broker on this event loop, and a client to ask them."""

    root: Path
    driver: AsyncDriver
    name_server: str
    broker: str
    broker_server: BrokerServer
    names: NameServerServer
    received: list[RemotingCommand]

    async def call(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: bytes | None = None,
        *,
        timeout_ms: int = 5_000,
    ) -> RemotingCommand:
        request = RemotingCommand(code=code, ext_fields=ext_fields, body=body)
        return await self.driver.run(invoke(address, request, timeout_ms=timeout_ms))

    async def restart_name_server(self) -> None:
        """Stop the name server and start another one at its address."""
        await self.names.stop()
        host, _, port = self.name_server.rpartition(":")
        self.names = NameServerServer(self.root / "nameserver", limits=LIMITS)
        await self.names.start(bind(host, int(port)))

    async def connect(self, address: str) -> Peer:
        """Open a bare connection."""
        return await Peer.connect(address)


LIMITS = ServerLimits(
    connections_max=64,
    first_frame_ms=300,
    started_frame_ms=300,
    send_buffer_bytes_max=64 * 1024,
    send_stall_ms=300,
    sweep_ms=50,
)


@pytest.fixture
def peer() -> Callable[[str], Awaitable[Peer]]:
    return Peer.connect


@pytest_asyncio.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    name_socket, broker_socket = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    name_server = f"127.0.0.1:{name_socket.getsockname()[1]}"
    broker = f"127.0.0.1:{broker_socket.getsockname()[1]}"
    names = NameServerServer(tmp_path / "nameserver", limits=LIMITS)
    await names.start(name_socket)
    config = BrokerConfig(address=broker)
    server = BrokerServer(tmp_path / "store", config, name_servers=[name_server], limits=LIMITS)
    await server.start(broker_socket)
    received: list[RemotingCommand] = []
    driver = AsyncDriver(on_request=lambda _, command: received.append(command))
    live = Live(tmp_path, driver, name_server, broker, server, names, received)
    yield live
    await driver.aclose()
    await server.stop()
    await live.names.stop()
