"""AVG_BY_LOAD: follow the group's plan, and offer the next one if it is our turn.

The first broker of the group by name that answers has the plan register, so that all members look
at one. Its answer says which member is to plan: it alone contains loads. That member asks the other
brokers for their loads, computes the next plan, and offers it. If the offer is refused, another
member's plan was taken, and the next look brings it. Whatever fails, the member goes on with the
plan it knows; queues' locks keep members apart that follow different plans for a moment.

Apache's brokers have no register: members then divide as MINIMAL_MOVE does, and say so once.
Tests: simulation/test_plans.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.plan_answers import ask_plan_at, followed, merge_loads
from sparrowmq.client.operations.request import ask
from sparrowmq.client.subscriber import NoPlanRegister, PlanKnown, RequestFailed, Subscriber
from sparrowmq.errors import BrokerError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import GroupPlan, GroupPlanAnswer, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import GetGroupPlanRequestHeader, OfferGroupPlanRequestHeader
from sparrowmq.strategies.by_load import FollowedPlan, plan_next
from sparrowmq.strategies.group_strategy import Owners, TopicView


def find_plan(
    subscriber: Subscriber,
    views: Sequence[TopicView],
    *,
    brokers: Sequence[str],
    owners: Owners,
    is_complete: bool,
) -> Operation[FollowedPlan | None]:
    """Return the plan to follow, after an offer of ours if it is our turn; None without one.

    Args:
        views: the topics with their queues and members.
        brokers: the brokers that answered, sorted.
        owners: the present owners, from which the first plan begins.
        is_complete: whether all brokers answered. Otherwise a plan would leave out queues.
    """
    register = brokers[0]
    known = subscriber.plan
    if known is not None and known.broker_name != register:
        known = None
    epoch = 0 if known is None else known.epoch
    try:
        answer = yield from ask_plan(subscriber, register, known_epoch=epoch)
    except SparrowError as error:
        if isinstance(error, BrokerError) and (
            error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        ):
            subscriber.plan = None
            if not subscriber.has_no_register:
                subscriber.has_no_register = True
                subscriber.report(NoPlanRegister(register))
            return None
        subscriber.report(RequestFailed("the group's plan", None, error))
        return None if known is None else known.plan
    if answer.plan is not None:
        known = PlanKnown(register, answer.epoch, followed(answer.plan))
    elif answer.epoch == 0:
        known = None
    subscriber.plan = known
    if answer.loads is not None and is_complete:
        yield from _plan(subscriber, views, brokers, answer, owners)
    return None if subscriber.plan is None else subscriber.plan.plan


def ask_plan(
    subscriber: Subscriber, broker_name: str, *, known_epoch: int = 0, needs_loads: bool = False
) -> Operation[GroupPlanAnswer]:
    """Ask a broker for the plan and, where it is our turn or `needs_loads`, for the loads.

    Raises: SparrowError.
    """
    config = subscriber.config
    now_ms = yield from now()
    capacity = subscriber.listener_calls.capacity_per_s(
        now_ms, call_count_max=config.consume_thread_count
    )
    header = GetGroupPlanRequestHeader(
        consumer_group=config.group,
        capacity_per_minute=min(round(capacity * 60), 2**53),
        known_epoch=known_epoch,
        needs_loads=needs_loads,
    )
    address = _address(subscriber, broker_name)
    return (yield from ask_plan_at(address, header, timeout_ms=config.times.invoke_timeout_ms))


def _plan(
    subscriber: Subscriber,
    views: Sequence[TopicView],
    brokers: Sequence[str],
    answer: GroupPlanAnswer,
    owners: Owners,
) -> Operation[None]:
    """Compute the next plan and offer it, if it differs from the present one."""
    register, *others = brokers
    outcomes = yield from gather_outcomes(
        [ask_plan(subscriber, name, needs_loads=True) for name in others], name="loads"
    )
    loads = merge_loads([answer, *outcomes])
    if loads is None:
        # The next member to plan may get all of them.
        return
    known = subscriber.plan
    found = plan_next(views, None if known is None else known.plan, owners, loads)
    if found is None:
        return
    plan, gain = found
    by_member: dict[str, list[MessageQueue]] = {}
    for queue, owner in plan.owners.items():
        by_member.setdefault(owner, []).append(queue)
    offer = GroupPlan(
        epoch=0 if known is None else known.epoch,
        client_ids=sorted(plan.client_ids),
        owners=by_member,
        moved=list(gain.moved),
        load_before=round(gain.load_before, 3),
        load_after=round(gain.load_after, 3),
    )
    yield from _offer(subscriber, register, offer)


def _address(subscriber: Subscriber, broker_name: str) -> str:
    # A broker's name is all that the address depends on.
    return subscriber.get_broker_address(MessageQueue("", broker_name, 0))


def _offer(subscriber: Subscriber, register: str, offer: GroupPlan) -> Operation[None]:
    """Offer a plan; follow it at the next look, which the broker asks for if it takes the offer."""
    config = subscriber.config
    header = OfferGroupPlanRequestHeader(consumer_group=config.group)
    try:
        yield from ask(
            _address(subscriber, register),
            RequestCode.OFFER_GROUP_PLAN,
            header,
            body=encode_body(offer),
            timeout_ms=config.times.invoke_timeout_ms,
        )
    except BrokerError:
        # Another plan was taken, or the members have changed: the next look shows it.
        return
    except SparrowError as error:
        subscriber.report(RequestFailed("an offer of a plan", None, error))
