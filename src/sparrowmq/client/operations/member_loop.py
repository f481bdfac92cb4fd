"""A push consumer's loop: carry out the due actions of its `GroupMember`, and report the results.

The loop spawns one small operation per action. Each operation ends by reporting its result to the
member and waking the loop. The member counts an operation that never ends as lost. A failure of one
queue therefore stops neither the loop nor another queue. Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from sparrowmq.calling.effects import (
    Call,
    Cancel,
    Now,
    Operation,
    Sleep,
    Spawn,
    Task,
    Timestamp,
    Wait,
    join,
)
from sparrowmq.client.operations.callbacks import notify_user
from sparrowmq.client.operations.deliver import (
    call_listener,
    hand_over,
    settle_ended,
    with_own_topic,
)
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.handover import (
    acquire,
    ask_members,
    regain,
    renew_locks,
    unlock,
)
from sparrowmq.client.operations.heartbeats import (
    consumer_connections,
    heartbeat_all,
    unregister,
)
from sparrowmq.client.operations.offsets import update_offset
from sparrowmq.client.operations.pull_loop import keep_pulling
from sparrowmq.client.operations.rebalance import find_shares
from sparrowmq.client.operations.routes import refresh_route
from sparrowmq.client.operations.send_back import queues_for_again, send_again, send_back
from sparrowmq.client.operations.trace_reports import finish
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.client.subscriber import (
    HELD_MS_MAX,
    GivenUp,
    JoinedGroup,
    RebalanceListenerFailed,
    RequestFailed,
    Subscriber,
    max_reconsume_times,
)
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.errors import (
    SparrowError,
    TopicRouteNotFound,
    TransportError,
)
from sparrowmq.membership.actions import (
    AbandonPull,
    Acquire,
    AskMembers,
    CallOnAssign,
    CallOnRevoke,
    Commit,
    Deliver,
    DuplicateClientId,
    Heartbeat,
    Leave,
    Pull,
    QueueLost,
    Rebalance,
    RefreshRoutes,
    Regain,
    RenewLocks,
    SendBack,
    Unlock,
)
from sparrowmq.membership.group_offset import KnownOffset
from sparrowmq.model import (
    MessageExt,
    MessageQueue,
)
from sparrowmq.protocol.bodies import HeartbeatData

# An operation that carries out the actions of one type.
Carrier: TypeAlias = Callable[[Subscriber, Any], Operation[None]]
# How long the route of a topic that is not subscribed stays without being read anew. Who pulls such
# a topic by hand reads it every `routes.ROUTE_MS`.
LEFT_ROUTE_MS = 60_000
# How long the end waits for the user's callback of the last change.
LAST_CHANGE_MS = 2_000
# How long leaving waits for a heartbeat under way, and how often it checks.
LAST_HEARTBEAT_MS = 3_000
LAST_HEARTBEAT_LOOK_MS = 10


def run_member(
    subscriber: Subscriber,
    carriers: Mapping[type, Carrier] = MappingProxyType({}),
    take_deliveries: Callable[[Subscriber, Sequence[Deliver]], None] = hand_over,
) -> Operation[None]:
    """Run a member of the group until the member has left (`subscriber.member.leave`).

    Args:
        carriers: operations that replace operations of this module, by the action's type.
        take_deliveries: a function that takes the deliveries instead of the listener.
    """
    operations = {**_OPERATIONS, **carriers}
    member, wake, calls = subscriber.member, subscriber.wake, subscriber.listener_calls
    due_ms: int = yield Now()
    while not member.is_done:
        wake.clear()
        now_ms: int = yield Now()
        if now_ms - due_ms >= MARKED_LEASE_MS:
            member.stood_still(now_ms - due_ms, now_ms)
        settle_ended(subscriber, now_ms)
        yield from _pull_resubscribed(subscriber, now_ms)
        for delivery, back in calls.take_back(now_ms, is_suspended=member.is_suspended):
            subscriber.counters.note_taken_back(sum([len(delivery.batches[at]) for at in back]))
            member.take_back(delivery, back)
        member.deliveries.ahead_max = calls.ahead_max
        deliveries: list[Deliver] = []
        for action in member.due(now_ms):
            if isinstance(action, Deliver):
                deliveries.append(action)
                continue
            if isinstance(action, AbandonPull):
                pulling = subscriber.pulls.pop(action.queue, None)
                if pulling is not None:
                    yield Cancel(pulling)
                continue
            name = type(action).__name__
            task: Task = yield Spawn(operations[type(action)](subscriber, action), name)
            if isinstance(action, Pull):
                subscriber.pulls[action.queue] = task
        if deliveries:
            take_deliveries(subscriber, deliveries)
        task_count = calls.begin_tasks(
            now_ms,
            call_count=len(member.deliveries),
            task_count_max=subscriber.config.consume_thread_count,
        )
        for _ in range(task_count):
            yield Spawn(call_listener(subscriber), "calls of the listener")
        yield from _report_facts(subscriber)
        _report_stuck(subscriber, now_ms)
        due_ms = member.next_due_ms(now_ms)
        if (tasks_due_ms := calls.next_due_ms(now_ms)) is not None:
            due_ms = min(due_ms, tasks_due_ms)
        yield Wait(wake, max(0, due_ms - now_ms))
    if subscriber.notifying is not None:
        try:
            yield from join(subscriber.notifying, timeout_ms=LAST_CHANGE_MS)
        except SparrowError as error:
            subscriber.report(RebalanceListenerFailed(error))
    yield from finish(subscriber.tracer)


def _report_facts(subscriber: Subscriber) -> Operation[None]:
    for fact in subscriber.member.take_facts():
        if isinstance(fact, DuplicateClientId):
            yield Spawn(_report_duplicate(subscriber, fact), "duplicate client id")
            continue
        subscriber.report(fact)
        if isinstance(fact, QueueLost) and subscriber.callbacks.on_lost is not None:
            yield from notify_user(subscriber, fact)


def _report_stuck(subscriber: Subscriber, now_ms: int) -> None:
    config = subscriber.config
    call_count_max = config.consume_thread_count
    if config.orderly:
        # One call at a time for each queue. The retry topic has next to no calls in order.
        queues = [owned.queue for owned in subscriber.member.owned_queues()]
        own = sum(queue.topic != subscriber.retry_topic for queue in queues)
        call_count_max = min(call_count_max, own)
    stuck = subscriber.listener_calls.find_stuck(
        subscriber.member.deliveries,
        now_ms,
        call_count_max=call_count_max,
        timeout_ms=config.consume_timeout_ms,
    )
    if stuck is not None:
        subscriber.report(stuck)


def _report_duplicate(subscriber: Subscriber, fact: DuplicateClientId) -> Operation[None]:
    """Report the addresses of all connections that use our client id."""
    config = subscriber.config
    addresses: set[str] = set()
    for broker in subscriber.routes.addresses():
        try:
            found = yield from consumer_connections(
                broker, config.group, timeout_ms=config.times.invoke_timeout_ms
            )
        except SparrowError as error:
            subscriber.report(RequestFailed("list of connections", None, error))
            continue
        addresses.update(
            c.client_addr for c in found.connection_set if c.client_id == fact.client_id
        )
        if len(addresses) > 1:
            break
    subscriber.report(fact._replace(addresses=tuple(sorted(addresses))))


def _refresh_routes(subscriber: Subscriber, _: RefreshRoutes) -> Operation[None]:
    member, routes = subscriber.member, subscriber.routes
    has_changed = False
    found: list[str] = []
    hosts = {queue: routes.host(queue) for queue in subscriber.pulls}
    in_hand = {routes.host(owned.queue) for owned in member.owned_queues()}
    addresses = {name: routes.address(name) for name in in_hand}
    for topic in member.topics:
        try:
            changed = yield from refresh_route(
                subscriber.routes,
                subscriber.name_servers,
                topic,
                timeout_ms=subscriber.config.times.invoke_timeout_ms,
            )
            has_changed = has_changed or changed
            found.append(topic)
            subscriber.missing_topics.discard(topic)
        except TopicRouteNotFound as error:
            # The first heartbeat makes the retry topic. A known route stays in use: the name
            # server may have been restarted.
            if topic != subscriber.retry_topic:
                subscriber.missing_topics.add(topic)
                subscriber.report(RequestFailed(f"route of {topic}", None, error))
        except TransportError as error:
            subscriber.report(RequestFailed("routes", None, error))
            break
        except SparrowError as error:
            # A fault of one topic's route says nothing about other topics.
            subscriber.report(RequestFailed(f"route of {topic}", None, error))
    now_ms: int = yield Now()
    moved = {name for name, address in addresses.items() if _has_moved(routes, name, address)}
    for queue, host in hosts.items():
        if routes.host(queue) != host or host in moved:
            yield from _pull_anew(subscriber, queue, now_ms)
    if moved:
        # Its former address may go on answering, or stay silent: no connection shows it.
        member.connection_lost(subscriber.queues_served_by(moved), now_ms)
    _forget_left_topics(subscriber, now_ms)
    member.routes_refreshed(found=found, has_changed=has_changed, now_ms=now_ms)
    subscriber.wake.set()


def _forget_left_topics(subscriber: Subscriber, now_ms: int) -> None:
    """Forget routes that nobody reads anew: heartbeats went to their brokers for ever."""
    member, routes = subscriber.member, subscriber.routes
    used = {*member.topics, *(owned.queue.topic for owned in member.owned_queues())}
    for topic in set(routes.topics) - used:
        route = routes.find(topic)
        if route is not None and now_ms - route.fetched_ms >= LEFT_ROUTE_MS:
            routes.remove(topic)


def _has_moved(routes: RouteCache, broker_name: str, former: str | None) -> bool:
    """Return whether a broker has another address than its former one: perhaps a new master."""
    address = routes.address(broker_name)
    return address is not None and former is not None and address != former


def _pull_resubscribed(subscriber: Subscriber, now_ms: int) -> Operation[None]:
    """End pulls that wait at a broker for messages of a topic's former expression.

    Their answers would pass over messages that came since and match the new expression alone.
    """
    topics, subscriber.resubscribed = subscriber.resubscribed, set()
    if topics:
        for queue in [queue for queue in subscriber.pulls if queue.topic in topics]:
            yield from _pull_anew(subscriber, queue, now_ms)


def _pull_anew(subscriber: Subscriber, queue: MessageQueue, now_ms: int) -> Operation[None]:
    """End a queue's pull, which a broker may hold for long, and pull anew."""
    pulling = subscriber.pulls.pop(queue, None)
    if pulling is not None:
        yield Cancel(pulling)
        subscriber.member.pull_abandoned(queue, now_ms)


def _heartbeat(subscriber: Subscriber, _: Heartbeat) -> Operation[None]:
    """Send one heartbeat for all consumers that share our connections."""
    if subscriber.is_beating:
        # Another consumer has just begun a heartbeat for us.
        return
    begun_ms: int = yield Now()
    beating = [subscriber]
    for other in list(subscriber.companions.values()):
        # A consumer without routes has no broker yet.
        if other is not subscriber and other.routes.topics and not other.is_beating:
            other.member.heartbeat.join(begun_ms)
            beating.append(other)
    for one in beating:
        one.is_beating = True
    try:
        yield from _send_heartbeats(subscriber, beating)
    finally:
        for one in beating:
            one.is_beating = False


def _send_heartbeats(subscriber: Subscriber, beating: Sequence[Subscriber]) -> Operation[None]:
    config = subscriber.config
    named = {config.group: subscriber} | subscriber.companions
    begun_ms: int = yield Now()
    addresses = sorted({address for one in beating for address in one.routes.addresses()})
    for each in named.values():
        each.named_at = frozenset(addresses)
    asked = _addresses_to_ask(subscriber, addresses, begun_ms)
    failures, expiry_ms, _ = yield from heartbeat_all(
        asked,
        HeartbeatData(
            client_id=config.client_id,
            consumer_data_set=[named[group].consumer_data for group in sorted(named)],
        ),
        timeout_ms=config.times.invoke_timeout_ms,
    )
    for error in failures.values():
        subscriber.report(RequestFailed("heartbeat", None, error))
    now_ms: int = yield Now()
    for address in asked:
        subscriber.silent.note(
            address, config.client_id, has_answered=address not in failures, now_ms=now_ms
        )
    unanswered = failures.keys() | (set(addresses) - set(asked))
    for one in beating:
        own = frozenset(one.routes.addresses())
        failed = len(unanswered & own)
        reached = len(own) - failed
        one.unanswered = own & unanswered
        answered, one.answered = one.answered, own - unanswered
        if reached and not one.has_joined:
            one.has_joined = True
            one.report(JoinedGroup(one.config.client_id, tuple(one.user_topics)))
        one.member.heartbeat_done(
            reached=reached,
            failed=failed,
            expiry_ms=expiry_ms,
            silent=one.queues_served_by(
                {
                    name
                    for address in unanswered
                    for name in one.routes.broker_names_at(address)
                    if one.routes.address(name) == address
                }
            ),
            has_returned=not one.answered <= answered,
            now_ms=now_ms,
        )
        one.wake.set()


def _addresses_to_ask(subscriber: Subscriber, addresses: Sequence[str], now_ms: int) -> list[str]:
    """Return the brokers without those that another member of this process asks again for all."""
    since_ms = subscriber.held_since_ms
    waits = since_ms is None or now_ms - since_ms < HELD_MS_MAX
    timeout_ms = subscriber.config.times.invoke_timeout_ms
    client_id, silent = subscriber.config.client_id, subscriber.silent
    asked = [
        address
        for address in addresses
        if address not in subscriber.unanswered
        or silent.may_ask(address, client_id, now_ms=now_ms, timeout_ms=timeout_ms)
        or not waits
    ]
    is_held = len(asked) < len(addresses)
    subscriber.held_since_ms = (now_ms if since_ms is None else since_ms) if is_held else None
    return asked


def _rebalance(subscriber: Subscriber, _: Rebalance) -> Operation[None]:
    shares = yield from find_shares(subscriber)
    now_ms: int = yield Now()
    subscriber.member.rebalanced(shares, now_ms)
    subscriber.wake.set()


def _send_back(subscriber: Subscriber, action: SendBack) -> Operation[None]:
    done: list[int] = []
    dead: list[MessageExt] = []
    offsets = [message.queue_offset for message in action.messages]
    try:
        for message in action.messages:
            is_dead = yield from _send_back_one(
                subscriber, with_own_topic(message), delay_level=action.delay_level
            )
            done.append(message.queue_offset)
            if is_dead:
                dead.append(with_own_topic(message))
    except SparrowError as error:
        # The other messages would fail too, each perhaps after a long wait.
        subscriber.report(RequestFailed("send back", action.queue, error))
    if dead:
        subscriber.report(GivenUp(action.queue, tuple(dead), is_broadcasting=False))
    failed = offsets[len(done) :]
    subscriber.counters.sent_back += len(done)
    now_ms: int = yield Now()
    if (owned := subscriber.member.find_queue(action.queue, action.epoch)) is not None:
        owned.sent_back(done=done, failed=failed, now_ms=now_ms)
    subscriber.wake.set()


def _send_back_one(
    subscriber: Subscriber, message: MessageExt, *, delay_level: int
) -> Operation[bool]:
    """Send a message back to the broker; return whether the message is a dead letter now."""
    config, routes = subscriber.config, subscriber.routes
    times_max = max_reconsume_times(config.max_reconsume_times)
    try:
        yield from send_back(
            subscriber.get_stored_address(message),
            config.group,
            message=message,
            delay_level=delay_level,
            max_reconsume_times=times_max,
        )
        return delay_level < 0 or message.reconsume_times >= times_max
    except SparrowError:
        route = routes.find(subscriber.retry_topic)
        timestamp_ms: int = yield Timestamp()
        for queue in queues_for_again(message, () if route is None else route.publish_queues):
            address = routes.master_address(queue.broker_name)
            if address is None:
                continue
            try:
                yield from send_again(
                    address,
                    subscriber.retry_topic,
                    message=message,
                    queue_id=queue.queue_id,
                    max_reconsume_times=times_max,
                    timestamp_ms=timestamp_ms,
                )
            except SparrowError:
                continue
            # The broker counts this attempt before it compares.
            return message.reconsume_times + 1 >= times_max
        raise


def _commit(subscriber: Subscriber, action: Commit) -> Operation[None]:
    queue, epoch, offset, _ = action
    member = subscriber.member
    try:
        if subscriber.is_broadcasting:
            yield from keep_local_offset(subscriber, queue, offset)
        else:
            address = subscriber.get_broker_address(queue)
            yield from store_offset(subscriber, queue, offset, address=address)
    except SparrowError as error:
        subscriber.report(RequestFailed("commit", queue, error))
        now_ms: int = yield Now()
        if error.refresh_route:
            member.queue_moved(now_ms)
        if (owned := member.find_queue(queue, epoch)) is not None:
            owned.commit_failed(now_ms)
    else:
        now_ms = yield Now()
        member.committed(queue, epoch, offset=offset, now_ms=now_ms)
    subscriber.wake.set()


def store_offset(
    subscriber: Subscriber, queue: MessageQueue, offset: int, *, address: str
) -> Operation[None]:
    """Commit a queue's offset at its broker. Raises: TransportError, BrokerError."""
    config = subscriber.config
    yield from update_offset(
        address,
        config.group,
        queue=queue,
        offset=offset,
        client_id=config.client_id,
        timeout_ms=config.times.invoke_timeout_ms,
    )
    newest = subscriber.member.newest_message(queue)
    subscriber.known_offsets.note(queue, KnownOffset(address, offset, newest))


def keep_local_offset(subscriber: Subscriber, queue: MessageQueue, offset: int) -> Operation[None]:
    """Keep a committed offset of a BROADCASTING consumer. Raises: StoreError."""
    subscriber.local_offsets[queue] = offset
    if subscriber.local_store is not None:
        yield Call(subscriber.local_store.put, (queue, offset))


def _leave(subscriber: Subscriber, _: Leave) -> Operation[None]:
    config = subscriber.config
    # No heartbeat that names us may reach a broker after our unregistration. Other consumers
    # stop naming us; a heartbeat under way is waited for.
    subscriber.companions.pop(config.group, None)
    looks = LAST_HEARTBEAT_MS // LAST_HEARTBEAT_LOOK_MS
    while looks and subscriber.member.heartbeat.started_ms is not None:
        looks -= 1
        yield Sleep(LAST_HEARTBEAT_LOOK_MS)
    operations = [
        unregister(
            address,
            config.client_id,
            consumer_group=config.group,
            timeout_ms=config.times.invoke_timeout_ms,
        )
        for address in sorted(subscriber.named_at.union(subscriber.routes.addresses()))
    ]
    for outcome in (yield from gather_outcomes(operations, name="unregister")):
        if isinstance(outcome, SparrowError):
            # A broker that does not answer notices the closed connection.
            subscriber.report(RequestFailed("unregister", None, outcome))
    subscriber.member.left()
    subscriber.wake.set()


_OPERATIONS: Mapping[type, Carrier] = MappingProxyType(
    {
        RefreshRoutes: _refresh_routes,
        Heartbeat: _heartbeat,
        Rebalance: _rebalance,
        Acquire: acquire,
        Regain: regain,
        RenewLocks: renew_locks,
        AskMembers: ask_members,
        Unlock: unlock,
        CallOnAssign: notify_user,
        CallOnRevoke: notify_user,
        Pull: keep_pulling,
        SendBack: _send_back,
        Commit: _commit,
        Leave: _leave,
    }
)
