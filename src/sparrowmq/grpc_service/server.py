"""The gRPC server: it names the caller of each call, and turns errors into statuses.

The server runs on the event loop of the broker. gRPC's own threads read and write the sockets.
Tests: test_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sparrowmq.calling import clock
from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.sockets import join_address
from sparrowmq.grpc_service.callers import Caller, identify
from sparrowmq.grpc_service.client_table import BrokerPort, Clients, CommandQueue, tell
from sparrowmq.grpc_service.messages import (
    METHODS,
    SERVICE,
    Code,
    Method,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
    TelemetryCommand,
)
from sparrowmq.grpc_service.receive_calls import ReceiveService
from sparrowmq.grpc_service.renewals import Renewals
from sparrowmq.grpc_service.route_calls import Routes
from sparrowmq.grpc_service.send_calls import SendService
from sparrowmq.grpc_service.sessions import Sessions
from sparrowmq.grpc_service.statuses import Rejected, ok
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.descriptors import descriptor_limit, peer_descriptors_max
from sparrowmq.serving.remoting_server import bind

# Of a request: a frame of the remoting protocol has as much, and Apache's proxy takes 130 MiB. An
# answer has the inflated body of one message, whose bound is its own, and its properties.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# Connections, as of the remoting protocol; at most half of the descriptors that peers may take.
CONNECTIONS_MAX = 20_000
# Calls of one connection at a time: a client has a few waiting calls for each of its queues.
CALLS_PER_CONNECTION_MAX = 1_024
# Calls that wait for the loop. Beyond gRPC's own bound of 1,000, it cancels calls by chance when a
# thousand clients call in one moment, as after a restart.
PENDING_CALLS_MAX = 20_000
# The official clients ping every 300 s, also without calls.
PING_INTERVAL_MS_MIN = 10_000
# Node's client (1.0.8) begins to wait for its settings when it has the routes of all topics. Where
# they came before, it starts 5 minutes later, when it asks again; so it is told them again.
SETTINGS_AGAIN_S = (0.5, 2.0, 8.0)
# ProxyConfig.grpcClientIdleTimeMills: a connection without calls is closed after this. A client has
# a telemetry stream.
IDLE_MS_MAX = 120_000
# The time from a call to its whole request; a telemetry stream alone has no such bound.
REQUEST_S_MAX = 30.0
# A stop waits so long for the calls that still run.
STOP_GRACE_S = 1.0

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
    ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS_MAX),
    ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers must not share a port.
    ("grpc.so_reuseport", 0),
)

LOG = logging.getLogger("sparrowmq.grpc_service")


class GrpcServer:
    """The gRPC service of one broker.

    Args:
        access: the access rules; None allows everything.
        timestamp_ms: the broker's wall clock, in milliseconds since 1970.
        now_ms: the monotonic clock.
    """

    def __init__(
        self,
        broker: BrokerPort,
        *,
        access: AccessControl | None,
        timestamp_ms: Callable[[], int],
        now_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        self._access = access
        self._clients = Clients(broker)
        self._renewals = Renewals(self._clients, now_ms=now_ms)
        self._now_ms = now_ms
        self._sessions = Sessions(broker, self._clients, self._renewals, timestamp_ms=timestamp_ms)
        self._receives = ReceiveService(
            broker, self._clients, self._renewals, timestamp_ms=timestamp_ms
        )
        routes = Routes(broker)
        sends = SendService(broker, self._clients, timestamp_ms=timestamp_ms)
        self._calls: dict[str, Callable[[Caller, Any], Awaitable[Any]]] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": self._sessions.heartbeat,
            "NotifyClientTermination": self._sessions.terminate,
            "SendMessage": sends.send,
            "EndTransaction": sends.end_transaction,
            "RecallMessage": sends.recall,
            "AckMessage": self._receives.acknowledge,
            "ChangeInvisibleDuration": self._receives.change_invisible,
            "ForwardMessageToDeadLetterQueue": self._receives.give_up,
        }
        self._streams: dict[str, Callable[[Any, Any], Any]] = {
            "Telemetry": self._telemetry,
            "ReceiveMessage": self._receive,
        }
        self._renewing: asyncio.Task[None] | None = None
        self._failures = BoundedLog(LOG)
        self._server: Any = None

    async def start(self, ip: str, port: int, *, tls: grpc.ServerCredentials | None = None) -> int:
        """Serve; return the port, which is a free one for port 0.

        Args:
            tls: the certificate of a service that speaks TLS alone; None for plain text.

        Raises: OSError if the address cannot be bound.
        """
        # gRPC's own error says neither why nor what to do.
        with contextlib.closing(bind(ip, port, "the gRPC service", "--grpc-port")):
            pass
        connections_max = min(CONNECTIONS_MAX, peer_descriptors_max(descriptor_limit()) // 2)
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections_max))
        self._server = grpc.aio.server(options=options)
        handlers = {
            method.name: self._handler(method)
            for method in METHODS
            if method.name in self._calls or method.name in self._streams
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        address = join_address(ip, port)
        if tls is None:
            bound: int = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, tls)
        await self._server.start()
        self._renewing = asyncio.create_task(self._renewals.run())
        return bound

    async def stop(self) -> None:
        """Stop serving; what runs after `STOP_GRACE_S`, such as each telemetry stream, is cut."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    def _handler(self, method: Method) -> Any:
        kinds = {
            False: grpc.stream_unary_rpc_method_handler,
            True: grpc.stream_stream_rpc_method_handler,
        }
        serve = self._streams.get(method.name) or self._serving(method)
        # Requests are read here, once their caller is known: gRPC would receive the whole request
        # of anybody, and wait for it without end. They are parsed here: gRPC logs each that it
        # cannot parse, with a traceback.
        return kinds[method.streams_responses](
            serve, response_serializer=method.response.SerializeToString
        )

    def _serving(self, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return the function that serves a call with one answer."""
        call, response = self._calls[method.name], method.response

        async def serve(requests: Any, context: Any) -> Any:
            del requests
            try:
                return await call(self._identify(context), await _read(method.request, context))
            except Rejected as rejected:
                return response(status=rejected.status)
            except Exception as error:
                return response(status=self._fail(method.name, context, error))

        return serve

    def _identify(self, context: Any) -> Caller:
        caller = identify(dict(context.invocation_metadata()), context.peer(), self._access)
        # A call alone makes nobody a client: callers with ever new ids fill no table.
        if (client := self._clients.known(caller)) is not None:
            client.caller, client.seen_ms = caller, self._now_ms()
        return caller

    async def _receive(self, requests: Any, context: Any) -> AsyncIterator[ReceiveMessageResponse]:
        del requests
        try:
            caller = self._identify(context)
            request = await _read(ReceiveMessageRequest, context)
            remaining_s = context.time_remaining()
            receiving = self._receives.receive(caller, request, remaining_s)
            async with contextlib.aclosing(receiving) as responses:
                async for response in responses:
                    yield response
        except Rejected as rejected:
            yield ReceiveMessageResponse(status=rejected.status)
        except Exception as error:
            status = self._fail("ReceiveMessage", context, error)
            yield ReceiveMessageResponse(status=status)

    def _fail(self, name: str, context: Any, error: Exception) -> Status:
        """Log a failure of the service, and return the status of the answer."""
        kind = (name, type(error))
        self._failures.log(
            logging.ERROR, kind, "%s of %s failed", name, context.peer(), error=error
        )
        text = f"{type(error).__name__}: {error}"
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=text)

    async def _telemetry(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answer a client's settings, and pass on the broker's questions, until the client ends."""
        try:
            caller = self._identify(context)
            client = self._clients.find(caller)
            commands = self._clients.open_stream(client)
        except Rejected as rejected:
            await self._abort(context, rejected)
            return
        loop = asyncio.get_running_loop()
        # Node's client says that it speaks HTTP.
        waits_s = SETTINGS_AGAIN_S if caller.language == LanguageCode.HTTP else ()
        writer = asyncio.create_task(_write_all(commands, context))
        try:
            async for data in requests:
                command = _parse(TelemetryCommand, data)
                if command.HasField("settings"):
                    settings = self._sessions.settle(client, command.settings)
                    answer = TelemetryCommand(status=ok(), settings=settings)
                    # A client that takes no answers gets no further ones made.
                    await commands.join()
                    await commands.put(answer)
                    for wait_s in waits_s:
                        loop.call_later(wait_s, tell, commands, answer)
                    waits_s = ()
            await _end(writer, commands)
        except Rejected as rejected:
            await _end(writer, commands)
            await self._abort(context, rejected)
        finally:
            writer.cancel()
            self._clients.close_stream(client, commands)

    async def _abort(self, context: Any, rejected: Rejected) -> None:
        code = grpc.StatusCode.INVALID_ARGUMENT
        if rejected.code == Code.UNAUTHORIZED:
            code = grpc.StatusCode.UNAUTHENTICATED
        await context.abort(code, str(rejected))


async def _read(kind: Any, context: Any) -> Any:
    """Return the request of a call. Raises: Rejected."""
    try:
        async with asyncio.timeout(REQUEST_S_MAX):
            data = await context.read()
    except TimeoutError:
        text = f"the request has not come whole within {REQUEST_S_MAX:g} s"
        raise Rejected(Code.BAD_REQUEST, text) from None
    if not isinstance(data, bytes):
        raise Rejected(Code.BAD_REQUEST, "the call has no request")
    return _parse(kind, data)


def _parse(kind: Any, data: bytes) -> Any:
    """Return a request. Raises: Rejected."""
    try:
        return kind.FromString(data)
    except DecodeError:
        text = f"{len(data)} bytes that are not a {kind.DESCRIPTOR.full_name}"
        raise Rejected(Code.BAD_REQUEST, text) from None


async def _end(writer: asyncio.Task[None], commands: CommandQueue) -> None:
    """Let a writer write what waits, and end: gRPC cannot end a call while it writes an answer."""
    await commands.put(None)
    await asyncio.wait({writer})


async def _write_all(commands: CommandQueue, context: Any) -> None:
    while (command := await commands.get()) is not None:
        await context.write(command)
        commands.task_done()
