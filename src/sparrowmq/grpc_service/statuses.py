"""The outcome of a call: the codes of gRPC clients for the broker's codes.

Business errors are answers with a status; a call of gRPC itself fails only for a broken stream.
Source: GrpcConverter, ResponseBuilder of 5.5.0. Differs from RocketMQ: its proxy answers every
refusal of its own broker with INTERNAL_SERVER_ERROR.
 Tests: test_server.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sparrowmq.errors import InvokeTimeout, LocalProtocolError, SparrowError, TooManyInFlight
from sparrowmq.grpc_service.messages import Code, Status
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.requests import DENIED

_CODES: Mapping[int, Code] = MappingProxyType(
    {
        ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
        ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
        ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
        ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
        ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
        ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
        # The message came again meanwhile, or is not in flight.
        ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
        ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    }
)


class Rejected(Exception):
    """A call that is answered with an error status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> Status:
        """The status of the answer."""
        return Status(code=self.code, message=str(self))


def ok() -> Status:
    """Return the status of success."""
    return Status(code=Code.OK, message="OK")


def check_answer(answer: RemotingCommand) -> RemotingCommand:
    """Return the broker's answer. Raises: Rejected, unless it is a success."""
    if answer.code == ResponseCode.SUCCESS:
        return answer
    remark = answer.remark or f"the broker answered with code {answer.code}"
    if remark.startswith(DENIED):
        raise Rejected(Code.UNAUTHORIZED, remark.removeprefix(DENIED))
    raise Rejected(_CODES.get(answer.code, Code.INTERNAL_SERVER_ERROR), remark)


def reject(error: SparrowError) -> Rejected:
    """Return the error status for an error of the connection to the broker."""
    if isinstance(error, TooManyInFlight):
        return Rejected(Code.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, InvokeTimeout):
        return Rejected(Code.PROXY_TIMEOUT, str(error))
    if isinstance(error, LocalProtocolError):
        # The client's values do not fit into a request.
        return Rejected(Code.BAD_REQUEST, str(error))
    return Rejected(Code.INTERNAL_SERVER_ERROR, str(error))


def common_status(statuses: list[Status]) -> Status:
    """Return the status of an answer with several results."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="the results differ")
