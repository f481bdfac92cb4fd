"""Change every request of an operation on its way to the driver. Pure.

An operation yields its requests as effects. The requests can therefore be put into a namespace
without a change of the client's operations. Tests: test_namespace.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from sparrowmq.calling.effects import Effect, Invoke, Oneway, Operation, Spawn
from sparrowmq.model.names import TOOLS_GROUP
from sparrowmq.model.namespace import Namespace
from sparrowmq.protocol.command import RemotingCommand

T = TypeVar("T")

# A change returns a copy, since an operation may change its request and send it again.
Change: TypeAlias = Callable[[RemotingCommand], RemotingCommand]

_TOPIC, _GROUP = "topic", "consumerGroup"


def changed(operation: Operation[T], change: Change) -> Operation[T]:
    """Run an operation, and those it spawns, with changed requests."""
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
            answer = yield _change(effect, change)
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as error:
            # `Cancelled` is passed on too: the operation decides how to end.
            failure = error


def _change(effect: Effect, change: Change) -> Effect:
    if isinstance(effect, Spawn):
        return structs.replace(effect, operation=changed(effect.operation, change))
    if not isinstance(effect, Invoke | Oneway):
        return effect
    request = effect.request
    command = request if isinstance(request, RemotingCommand) else request.command()
    return structs.replace(effect, request=change(command))


def named(operation: Operation[T], namespace: Namespace) -> Operation[T]:
    """Run an operation, and those it spawns, with topics and groups of a namespace.

    Only for requests that name topics and groups in their headers, as all requests of a read do.
    """
    return changed(operation, partial(_name, namespace))


def _name(namespace: Namespace, request: RemotingCommand) -> RemotingCommand:
    fields = dict(request.ext_fields or {})
    for name in (_TOPIC, _GROUP):
        if name in fields and fields[name] != TOOLS_GROUP:
            fields[name] = namespace.wrap(fields[name])
    return structs.replace(request, ext_fields=fields) if fields else request
