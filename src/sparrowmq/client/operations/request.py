"""Send a request whose answer must be a success, and decode the answer within bounds.

Tests: client/test_hostile_servers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

from sparrowmq.calling.effects import Invoke, Now, Operation
from sparrowmq.client.name_servers import NameServers
from sparrowmq.errors import BrokerError, ConnectFailed, RemoteProtocolError, TransportError
from sparrowmq.protocol.bodies import decode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import encode_header

T = TypeVar("T")
B = TypeVar("B", bound=Struct)

INVOKE_TIMEOUT_MS = 3_000
# How long a name server may take to know a topic that another one does not know.
OTHERS_MS_MAX = 1_000
# Larger bodies are not decoded: decoding blocks the driver, and needs many times a body's size in
# memory.
ANSWER_BYTES_MAX = 8 * 1024 * 1024
# The length of a remark in an error's text and in logs.
REMARK_CHARACTERS_MAX = 2_000

_SHORTER_DELAY = "give a shorter delay, or raise the broker's timerMaxDelaySec"
# Advice, by words of a remark. PlainPermissionManager.java, PlainAccessValidator.java.
_HINTS_BY_REMARK = (
    (
        "No accessKey is configured",
        "give access_key and secret_key; commands take them from a context, or from "
        "SPARROWMQ_ACCESS_KEY and SPARROWMQ_SECRET_KEY",
    ),
    ("No acl config for", "check access_key; the server has no such account"),
    ("Check signature failed", "check secret_key"),
    ("timer message illegal", _SHORTER_DELAY),
    ("TIMER_DELAY_MS is", _SHORTER_DELAY),
    ("recall failed, operation is forbidden", "set recallMessageEnable=true at the broker"),
    ("recall failed, timestamp invalid", "the message is due, or delivered already"),
    ("AclException", "have an administrator of the cluster allow it to this access key"),
)
_HINTS_BY_CODE: Mapping[int, str] = MappingProxyType(
    {
        ResponseCode.SYSTEM_BUSY: "the broker has more to do than it can: send more slowly; "
        "a slave of RocketMQ 5 serves consumers only if it has slaveReadEnable=true",
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "name servers listen at port 9876 and brokers "
        "at 10911 unless set otherwise, and older servers lack newer requests",
        ResponseCode.MESSAGE_ILLEGAL: "make the message smaller, or raise the broker's bounds",
        ResponseCode.SERVICE_NOT_AVAILABLE: "look at the broker's log and its disk",
        ResponseCode.NO_PERMISSION: "see what the topic, the group and the broker permit",
        ResponseCode.TOPIC_NOT_EXIST: "create the topic, or check its name",
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or check its name",
    }
)


def make_request(
    code: int, header: Struct | None = None, *, body: bytes | None = None
) -> RemotingCommand:
    """Make a request from a typed header."""
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

    Raises: TransportError; BrokerError if the answer's code is not SUCCESS.
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
    read: Callable[[RemotingCommand, str], T],
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[T]:
    """Ask the name server in use, or the next one that returns a readable answer.

    One that does not know a topic may be behind, or have started again: the next one is asked too.
    RocketMQ's clients believe the first. The others have little time for that, and none if they
    were silent of late: a consumer looks for all its topics, of which many may be missing, before
    it begins.

    Args:
        read: decodes a successful answer from an address.
        timeout_ms: the time for all name servers together; each gets a share of the rest.

    Raises: ConnectFailed if no name server answers; RemoteProtocolError if no answer can be read;
    BrokerError for an answer other than SUCCESS.
    """
    failure: TransportError | RemoteProtocolError | None = None
    refusal: BrokerError | None = None
    addresses = name_servers.in_order()
    now_ms: int = yield Now()
    deadline_ms = now_ms + timeout_ms
    for place, address in enumerate(addresses):
        share_ms = max(1, (deadline_ms - now_ms) // (len(addresses) - place))
        if refusal is not None:
            if name_servers.was_silent(address, now_ms):
                continue
            share_ms = min(share_ms, OTHERS_MS_MAX)
        try:
            reply: RemotingCommand = yield Invoke(address, make_request(code, header), share_ms)
            if reply.code == ResponseCode.SUCCESS:
                answer = read(reply, address)
                name_servers.mark_answered(address)
                return answer
        except (TransportError, RemoteProtocolError) as error:
            failure = error
            begun_ms, now_ms = now_ms, (yield Now())
            if 2 * (now_ms - begun_ms) > share_ms:
                # One whose host refuses at once costs no time.
                name_servers.note_silent(address, now_ms)
        else:
            refused = _refusal_of(reply, address)
            if reply.code != ResponseCode.TOPIC_NOT_EXIST:
                name_servers.mark_answered(address)
                raise refused
            refusal = refusal or refused
            now_ms = yield Now()
    if refusal is not None:
        name_servers.mark_answered(refusal.address)
        raise refusal
    if isinstance(failure, RemoteProtocolError):
        raise failure
    tried = ", ".join(addresses)
    advice = "" if "; " in str(failure) else "; check the address, and that one runs there"
    raise ConnectFailed(
        f"no name server answers at {tried}: {failure}{advice}", address=tried
    ) from failure


def _refusal_of(reply: RemotingCommand, address: str) -> BrokerError:
    is_understood = reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    subject = "" if is_understood else f"{address} may be a broker, and no name server"
    return error_of(reply, address, subject=subject)


def decode_answer(
    body_type: type[B],
    reply: RemotingCommand,
    address: str,
    *,
    absent: bytes | None = None,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> B:
    """Decode the body of an answer.

    Args:
        absent: the result for an answer without a body; None makes a missing body an error.
        bytes_max: the largest body that is read.

    Raises: RemoteProtocolError, which names the address.
    """
    body = reply.body or absent
    if body is not None and len(body) > bytes_max:
        raise RemoteProtocolError(
            f"{address} answers with a {body_type.__name__} of {len(body)} bytes; the limit is "
            f"{bytes_max}"
        )
    try:
        return decode_body(body_type, body)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{address} answers with {error}") from error


def error_of(reply: RemotingCommand, address: str, *, subject: str = "") -> BrokerError:
    """Make the error for an answer that is not a success, with advice.

    Args:
        subject: a text that names the request, if the caller cannot know it.
    """
    remark = (reply.remark or "").strip()[:REMARK_CHARACTERS_MAX]
    hint = next(
        (hint for words, hint in _HINTS_BY_REMARK if words in remark),
        _HINTS_BY_CODE.get(reply.code, ""),
    )
    error = BrokerError(reply.code, remark, address=address, subject=subject, hint=hint)
    error.refresh_route = reply.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    return error
