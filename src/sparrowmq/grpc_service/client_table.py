"""The clients of the service: their connections to the broker, groups and telemetry streams.

Each client has a connection of its own to the broker (`serving/local_connection.py`). So the broker
knows the client's groups, and asks it for the outcome of transactions, as it does with clients of
the remoting protocol. Tests: test_server.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from sparrowmq.errors import RemoteProtocolError, SparrowError
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.message_content import to_message
from sparrowmq.grpc_service.messages import (
    Code,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from sparrowmq.grpc_service.statuses import Rejected, check_answer, reject
from sparrowmq.grpc_service.transaction_ids import TransactionId
from sparrowmq.protocol.bodies import ConsumerData, SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import MQ_VERSION_5, RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import CheckTransactionStateRequestHeader, decode_header
from sparrowmq.protocol.record import decode_messages
from sparrowmq.protocol.signatures import signed
from sparrowmq.serving.local_connection import LocalConnection

# Commands that wait to be written to one telemetry stream; the broker repeats a dropped question.
COMMANDS_MAX = 1_000
# Questions have their messages, of up to 4 MiB each.
COMMAND_BYTES_MAX = 16 * 1024 * 1024
STREAMS_MAX = 20_000
# GrpcClientConfig of the official clients: their deadline of a call that does not wait.
REQUEST_TIMEOUT_MS = 3_000
# PendingReplies.FLUSH_TIMEOUT_MS, and time for the answer: the broker answers every request that
# does not wait for messages by then. What it has done is not known without its answer.
ANSWER_MS = 8_000


class CommandQueue(asyncio.Queue["TelemetryCommand | None"]):
    """The commands that wait to be written to a telemetry stream; `size` is that of all, in bytes.

    None ends the stream.
    """

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self.size = 0
        self._sizes: deque[int] = deque()

    def _put(self, item: TelemetryCommand | None) -> None:
        super()._put(item)
        self._sizes.append(0 if item is None else item.ByteSize())
        self.size += self._sizes[-1]

    def _get(self) -> TelemetryCommand | None:
        self.size -= self._sizes.popleft()
        return super()._get()


class BrokerPort(Protocol):
    """The broker, as the service uses it."""

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        ...

    @property
    def body_bytes_max(self) -> int:
        """The size of the largest body that the broker takes."""
        ...

    @property
    def delay_ms_max(self) -> int:
        """The longest time that a message may wait for its delivery."""
        ...

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, None if there is no such topic."""
        ...

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group's settings, None if there is no such group."""
        ...

    def connect(
        self,
        address: str,
        *,
        on_request: Callable[[RemotingCommand], RemotingCommand | None],
        on_closed: Callable[[], None],
    ) -> LocalConnection:
        """Connect to the broker in the name of a peer."""
        ...


@dataclass(slots=True, eq=False)
class Client:
    """One client.

    Attributes:
        caller: as it was in its last call: its account may have another key by now.
        consumers: its membership in a consumer group, by its last settings.
        published_topics: the topics of its last settings that it sends to.
        transaction_topics: the topics of its transactions, whose producer groups it is in.
        connection: its connection to the broker; None if there is none now.
        streams: the commands that wait for its telemetry streams, by stream.
        seen_ms: when it called last, by the monotonic clock.
        request_timeout_ms: its deadline of a call that does not wait, by its last settings.
    """

    caller: Caller
    consumers: list[ConsumerData] = field(default_factory=list)
    published_topics: frozenset[str] = frozenset()
    transaction_topics: set[str] = field(default_factory=set)
    connection: LocalConnection | None = None
    streams: list[CommandQueue] = field(default_factory=list)
    seen_ms: int = 0
    request_timeout_ms: int = REQUEST_TIMEOUT_MS


class Clients:
    """The table of clients. A client of another account is another client.

    Attributes:
        kept: what goes on when its call has ended.
    """

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._clients: dict[tuple[str, str], Client] = {}
        self._stream_count = 0
        self.kept: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, caller: Caller) -> Client:
        """Return the client of a caller, new at its first call."""
        key = _key(caller)
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Client(caller)
        return found

    def known(self, caller: Caller) -> Client | None:
        """Return the client of a caller, None if it has neither connection nor stream."""
        return self._clients.get(_key(caller))

    def keep(self, work: Awaitable[None]) -> asyncio.Future[None]:
        """Do work that goes on when its call has ended."""
        future = asyncio.ensure_future(work)
        self.kept.add(future)
        future.add_done_callback(self.kept.discard)
        return future

    async def ask(
        self,
        caller: Caller,
        request: RemotingCommand,
        *,
        timeout_ms: int = ANSWER_MS,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        """Ask the broker in the caller's name; return an answer of any code.

        Args:
            given_up: done once nobody wants the answer; the broker does not wait with it then.

        Raises: Rejected.
        """
        request.language, request.version = caller.language, MQ_VERSION_5
        # A message is renewed long after its receive: its account may have another key by now.
        known = self.known(caller)
        credentials = (caller if known is None else known.caller).credentials
        if credentials is not None:
            request = signed(request, credentials)
        try:
            connection = self._connect(caller)
            return await connection.ask(request, timeout_ms=timeout_ms, given_up=given_up)
        except SparrowError as error:
            raise reject(error) from error

    async def ask_well(self, caller: Caller, request: RemotingCommand) -> RemotingCommand:
        """Ask the broker in the caller's name; return its success. Raises: Rejected."""
        return check_answer(await self.ask(caller, request))

    def _connect(self, caller: Caller) -> LocalConnection:
        client = self.find(caller)
        if client.connection is None or client.connection.is_closed:

            def closed() -> None:
                if client.connection is opened:
                    client.connection = None
                self._drop_unused(client)

            opened = self._broker.connect(
                caller.address,
                on_request=lambda request: self._requested(client, request),
                on_closed=closed,
            )
            client.connection = opened
        return client.connection

    def open_stream(self, client: Client) -> CommandQueue:
        """Return the queue of commands for a new telemetry stream of a client. Raises: Rejected."""
        if self._stream_count >= STREAMS_MAX:
            self._drop_unused(client)
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{STREAMS_MAX} telemetry streams are open")
        self._stream_count += 1
        commands = CommandQueue(COMMANDS_MAX)
        client.streams.append(commands)
        return commands

    def close_stream(self, client: Client, commands: CommandQueue) -> None:
        """Forget a telemetry stream."""
        self._stream_count -= 1
        client.streams.remove(commands)
        self._drop_unused(client)

    def forget(self, client: Client) -> None:
        """Forget a client that has ended."""
        client.consumers, client.published_topics = [], frozenset()
        if client.connection is not None:
            client.connection.close()

    def _drop_unused(self, client: Client) -> None:
        key = _key(client.caller)
        is_unused = client.connection is None and not client.streams
        if is_unused and self._clients.get(key) is client:
            del self._clients[key]

    def _requested(self, client: Client, request: RemotingCommand) -> RemotingCommand | None:
        """Pass the broker's question for a transaction's outcome on; refuse other questions."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE and client.streams:
            command = self._recover_command(request)
            if command is not None:
                tell(client.streams[-1], command)
        if request.is_oneway:
            return None
        remark = f"a client of the gRPC service cannot answer request {request.code}"
        return response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def _recover_command(self, request: RemotingCommand) -> TelemetryCommand | None:
        try:
            header = decode_header(CheckTransactionStateRequestHeader, request.ext_fields)
        except RemoteProtocolError:
            return None
        name = self._broker.broker_name
        found = decode_messages(request.body or b"", broker_name=name).messages
        if not found:
            return None
        place = TransactionId(header.commit_log_position, header.tran_state_table_offset)
        return TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                message=to_message(found[0], topic=found[0].topic),
                transaction_id=place.encode(),
            )
        )


def _key(caller: Caller) -> tuple[str, str]:
    access_key = "" if caller.credentials is None else caller.credentials.access_key
    return access_key, caller.client_id


def tell(commands: CommandQueue, command: TelemetryCommand) -> None:
    """Queue a command of a telemetry stream; a full queue loses its oldest ones."""
    size = command.ByteSize()
    while commands.full() or (commands.size and commands.size + size > COMMAND_BYTES_MAX):
        commands.get_nowait()
        commands.task_done()
    commands.put_nowait(command)
