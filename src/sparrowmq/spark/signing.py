"""Sign every request of an operation, for brokers with access control. Pure.

An operation yields its requests as effects, so they can be signed on their way to the driver: no
operation of the client needs to know of keys.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import structs

from sparrowmq.protocol.acl import Credentials, sign_request
from sparrowmq.runtime.effects import Effect, Invoke, Oneway, Operation, Spawn

T = TypeVar("T")


def signed(operation: Operation[T], credentials: Credentials) -> Operation[T]:
    """Run an operation, and those it spawns, with signed requests."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            effect = operation.send(answer) if failure is None else operation.throw(failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = failure = None
        try:
            answer = yield _sign(effect, credentials)
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as error:
            # Cancelled too: the operation decides what becomes of it.
            failure = error


def _sign(effect: Effect, credentials: Credentials) -> Effect:
    if isinstance(effect, Spawn):
        return effect._replace(operation=signed(effect.operation, credentials))
    if not isinstance(effect, Invoke | Oneway):
        return effect
    request = effect.request
    fields = sign_request(request.ext_fields, request.body, credentials=credentials)
    # A copy, for an operation may change its request and send it again.
    return effect._replace(request=structs.replace(request, ext_fields=fields))
