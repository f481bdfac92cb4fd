"""A request whose answer must be a success."""

from __future__ import annotations

from msgspec import Struct

from sparrowmq.calling.effects import Invoke, Operation
from sparrowmq.client.name_servers import NameServers
from sparrowmq.errors import BrokerError, ConnectFailed, TransportError
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import encode_header

INVOKE_TIMEOUT_MS = 3_000


def make_request(
    code: int, header: Struct | None = None, *, body: bytes | None = None
) -> RemotingCommand:
    """Make a request of a typed header."""
    ext_fields = None if header is None else encode_header(header)
    return RemotingCommand(code=code, ext_fields=ext_fields, body=body)


def ask(
    address: str,
    code: int,
    header: Struct | None = None,
    *,
    body: bytes | None = None,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[RemotingCommand]:
    """Send a request and return its successful answer.

    Raises: TransportError; BrokerError if the answer's code is another than SUCCESS.
    """
    reply: RemotingCommand = yield Invoke(
        address, make_request(code, header, body=body), timeout_ms
    )
    if reply.code != ResponseCode.SUCCESS:
        raise error_of(reply, address)
    return reply


def ask_name_servers(
    name_servers: NameServers,
    code: int,
    header: Struct | None = None,
    *,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[RemotingCommand]:
    """Send a request to the name server in use, or to the next that answers.

    Raises: ConnectFailed if none answers; BrokerError for an answer other than SUCCESS.
    """
    failure: TransportError | None = None
    for address in name_servers.in_order():
        try:
            reply: RemotingCommand = yield Invoke(address, make_request(code, header), timeout_ms)
        except TransportError as error:
            failure = error
            continue
        name_servers.mark_answered(address)
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply, address)
        return reply
    tried = ", ".join(name_servers.in_order())
    raise ConnectFailed(
        f"no name server answers at {tried} ({failure}); check the address and that one runs there",
        address=tried,
    ) from failure


def error_of(reply: RemotingCommand, address: str) -> BrokerError:
    """Make the error of an answer that is no success."""
    return BrokerError(reply.code, reply.remark or "", address=address)
