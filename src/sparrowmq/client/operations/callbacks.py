"""Call the user's callbacks for queues that are assigned, revoked or lost, one call at a time.

One call names all queues of its kind. A callback that raises is logged and counts as done.
Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

from sparrowmq.calling.effects import Call, Operation, Sleep, Spawn
from sparrowmq.client.arguments import refuse_awaitable
from sparrowmq.client.subscriber import RebalanceListenerFailed, Subscriber
from sparrowmq.membership.actions import CallOnAssign, CallOnRevoke, QueueLost
from sparrowmq.model.queue import queue_order


def notify_user(
    subscriber: Subscriber, change: CallOnAssign | CallOnRevoke | QueueLost
) -> Operation[None]:
    """Carry out `CallOnAssign` or `CallOnRevoke`, or notify the user of a lost queue."""
    subscriber.calls.append(change)
    if subscriber.notifying is None or subscriber.notifying.done:
        subscriber.notifying = yield Spawn(_notify_in_order(subscriber), "callbacks")


def _notify_in_order(subscriber: Subscriber) -> Operation[None]:
    # Queues whose callbacks are due at the same time go into one call.
    yield Sleep(0)
    calls, member = subscriber.calls, subscriber.member
    while calls:
        kind = type(calls[0])
        changes = []
        while calls and type(calls[0]) is kind:
            changes.append(calls.popleft())
        function = subscriber.callbacks.of(kind)
        queues = subscriber.user_queues(tuple(change.queue for change in changes))
        if function is not None and queues:
            try:
                returned = yield Call(function, (sorted(queues, key=queue_order),))
                refuse_awaitable("the callback", returned)
            except Exception as error:
                # The user's code may raise anything.
                subscriber.report(RebalanceListenerFailed(error))
        for change in changes:
            if not isinstance(change, QueueLost):
                member.callback_returned(change)
        subscriber.wake.set()
