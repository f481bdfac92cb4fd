"""The whole state of a broker, as one record that its processors share.

Processors are functions of this state and a request. This file has the changes of the state that
several processors need, such as making a topic and asking for its write and registration.
Tests: test_broker.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from sparrowmq.broker.audit_log import AuditLog
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.consumer_groups import ConsumerGroups, ProducerGroups
from sparrowmq.broker.consumer_offsets import ConsumerOffsets
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.lock_waits import LockWaits
from sparrowmq.broker.pending_replies import PendingReplies
from sparrowmq.broker.plan_register import PlanRegister
from sparrowmq.broker.pop_changes import UnflushedPops
from sparrowmq.broker.pop_queues import PopQueues
from sparrowmq.broker.pull_hold import HeldPull, PullHold
from sparrowmq.broker.queue_lock_table import QueueLockTable
from sparrowmq.broker.rates import Added, Rates, TotalsByKey
from sparrowmq.broker.relays import Relays
from sparrowmq.broker.request_modes import RequestModes
from sparrowmq.broker.rounds import Rounds
from sparrowmq.broker.route_questions import RouteQuestions
from sparrowmq.broker.subscription_groups import SubscriptionGroups
from sparrowmq.broker.timer_messages import TimerMessages
from sparrowmq.broker.topic_configs import TopicConfigs, queue_ids
from sparrowmq.broker.transaction_checks import TransactionChecks
from sparrowmq.model import MessageQueue
from sparrowmq.model.message import PROPERTY_CLUSTER, PROPERTY_MSG_REGION
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import MQ_VERSION, LanguageCode, RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from sparrowmq.protocol.record import scan_records
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.serving.access_control import AccessControl, Permission
from sparrowmq.serving.connections import Connection, Output, Push, Reply
from sparrowmq.serving.refusals import Refusals
from sparrowmq.serving.requests import DENIED, Refusal, Request
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.retention import Retention

# How far beyond a queue's end a group may commit. A power cut may lose messages that were not
# flushed, and members commit the offsets of messages that they have consumed.
COMMIT_AHEAD_MAX = 1_000
# A clock at the start that is so far ahead of the last message may be wrong.
_CLOCK_LEAD_DAYS_MIN = 365
_DAY_MS = 86_400_000


class BrokerRefusal(Enum):
    """Kinds of refusals, of requests that contradict the broker's state, by counter name."""

    CLOSED_TOPIC = "sendsToClosedTopicsRefused"
    GROUP_NAME = "groupNamesRefused"
    COMMIT_BEYOND_END = "commitsBeyondEndRefused"
    LATE_COMMIT = "lateCommitsIgnored"
    LATE_POP = "latePopsRefused"
    LOCK = "locksRefused"
    ACCESS = "requestsDenied"


@dataclass(slots=True)
class Counters:
    """Counts since the broker's start, for GET_BROKER_RUNTIME_INFO."""

    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    # Members with a client id that another connection of the group already had.
    duplicate_client_ids: int = 0


@dataclass(slots=True)
class BrokerState:
    """The parts of a broker.

    Args:
        random_below: returns a random number from 0 to one less than its argument, for queue -1.
        store_host: the broker's address, as in records.

    Attributes:
        origin_properties: the properties that the broker adds to each message.
        sent_answer: the header of the answer to a plain send, with places for position, queue id,
            queue offset and opaque.
        clock_lead_days: by how many days the clock at the start was ahead of the last message; 0 if
            it was by less than a year.
    """

    config: BrokerConfig
    store: MessageStore
    random_below: Callable[[int], int]
    store_host: bytes
    boot_timestamp_ms: int
    topics: TopicConfigs
    groups: SubscriptionGroups
    delays: DelaySchedule
    timers: TimerMessages
    transactions: TransactionChecks
    access: AccessControl | None = None
    offsets: ConsumerOffsets = field(default_factory=ConsumerOffsets)
    audit: AuditLog = field(default_factory=AuditLog)
    consumers: ConsumerGroups = field(default_factory=ConsumerGroups)
    producers: ProducerGroups = field(default_factory=ProducerGroups)
    locks: QueueLockTable = field(default_factory=QueueLockTable)
    lock_waits: LockWaits = field(default_factory=LockWaits)
    plans: PlanRegister = field(default_factory=PlanRegister)
    modes: RequestModes = field(default_factory=RequestModes)
    route_questions: RouteQuestions = field(default_factory=RouteQuestions)
    holds: PullHold = field(default_factory=PullHold)
    pops: PopQueues = field(default_factory=PopQueues)
    # The answers to the pops, acknowledgements and changes of this turn.
    awaiting_pop_log: list[Reply] = field(default_factory=list)
    # The pops whose answers wait for the flush of the pop log, oldest first.
    unflushed_pops: deque[UnflushedPops] = field(default_factory=deque)
    # The end of the pop log, and whether its last append has failed.
    pop_log_offset: int = 0
    is_pop_log_failing: bool = False
    # The time of the last event, for answers that are made later.
    now_ms: int = 0
    wall_ahead_ms: int = 0
    journal: Rounds = field(default_factory=Rounds)
    saves: Rounds = field(default_factory=Rounds)
    registrations: Rounds = field(default_factory=Rounds)
    # The writes of the committed offsets that a reply waits for.
    offset_saves: Rounds = field(default_factory=Rounds)
    counters: Counters = field(default_factory=Counters)
    refusals: Refusals[BrokerRefusal] = field(default_factory=lambda: Refusals(BrokerRefusal))
    rates: Rates = field(default_factory=Rates)
    stored_totals: TotalsByKey = field(default_factory=TotalsByKey)
    consumed_totals: TotalsByKey = field(default_factory=TotalsByKey)
    relays: Relays = field(default_factory=Relays)
    # The value of `locks.changes` up to which the journal has every lock.
    locks_written: int = 0
    pending: PendingReplies = field(init=False)
    retention: Retention = field(init=False)
    origin_properties: str = field(init=False)
    sent_answer: bytes = field(init=False)
    clock_lead_days: int = field(init=False)
    _opaque: int = 0

    def __post_init__(self) -> None:
        self.pending = PendingReplies(self.journal, self.registrations, self.offset_saves)
        self.retention = Retention(self.config.retention, self.store)
        last_ms = self.store.put_timestamp_ms
        lead_days = (self.boot_timestamp_ms - last_ms) // _DAY_MS if last_ms else 0
        self.clock_lead_days = lead_days if lead_days >= _CLOCK_LEAD_DAYS_MIN else 0
        region, cluster = self.config.region, self.config.cluster_name
        self.sent_answer = _sent_answer(region, self.store_host)
        self.origin_properties = (
            f"{PROPERTY_MSG_REGION}\x01{region}\x02{PROPERTY_CLUSTER}\x01{cluster}"
        )

    @property
    def timestamp_ms(self) -> int:
        """The wall clock at the last event."""
        return self.now_ms + self.wall_ahead_ms

    @property
    def doubted_clock_lead_days(self) -> int:
        """`clock_lead_days` for a day, or until the clock is set right and the broker restarted."""
        is_new = self.timestamp_ms < self.boot_timestamp_ms + _DAY_MS
        return self.clock_lead_days if is_new else 0

    @property
    def awaits_pop_log(self) -> bool:
        """Whether the end of the turn has changes of pops to log, or answers to send."""
        return bool(self.awaiting_pop_log) or (
            self.pops.has_changes and not self.is_pop_log_failing
        )

    def change_config(self, config: BrokerConfig) -> None:
        """Take other settings; only settings that may change at run time have an effect."""
        self.config = config
        self.retention.config = config.retention
        self.timers.config = config
        self.transactions.config = config
        self.groups.auto_create = config.auto_create_groups

    def put_topic(self, topic: TopicConfig, *, timestamp_ms: int) -> None:
        """Make or change a topic; `journal.asked` and `registrations.asked` then cover it."""
        self.topics.put(topic, timestamp_ms=timestamp_ms)
        self.note_topics_changed()

    def note_topics_changed(self) -> None:
        """Ask for a write and a registration of the changed topics."""
        self.journal.ask()
        self.registrations.ask()

    def round_of_topic(self, topic: str) -> int:
        """Return the journalling round after which a crash leaves a topic; 0 if it does now."""
        if self.topics.is_saved(topic):
            return 0
        return self.journal.begun if self.topics.is_in_round(topic) else self.journal.ask()

    def put_group(self, group: SubscriptionGroupConfig, *, timestamp_ms: int) -> None:
        """Make or change a group's settings; `journal.asked` then covers it."""
        self.groups.put(group, timestamp_ms=timestamp_ms)
        self.note_groups_changed()

    def round_of_offsets(self) -> int:
        """Return the round after which the offsets are written, 0 if nothing is ever written."""
        if self.store.failure is not None:
            return 0
        if not self.offsets.is_changed:
            return self.offset_saves.begun
        self.saves.ask()
        return self.offset_saves.ask()

    def note_groups_changed(self) -> None:
        """Ask for a write of the changed groups."""
        self.journal.ask()

    def find_group(self, group: str, *, timestamp_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group's settings; make them at the first use if the broker may."""
        found = self.groups.find(group)
        if found is None and self.groups.may_create(group):
            found = SubscriptionGroupConfig(group_name=group)
            self.put_group(found, timestamp_ms=timestamp_ms)
        return found

    def refusal(self, kind: BrokerRefusal, request: Request, code: int, remark: str) -> Refusal:
        """Count a refusal of a kind; return the refusal, to be raised."""
        text = f"refused {request.connection.address}: {remark}"
        facts = self.refusals.note(kind, text, now_ms=request.now_ms)
        return Refusal(code, remark, facts=facts)

    def check_access(self, request: Request, topic: str, permission: Permission) -> None:
        """Refuse a request whose account lacks permission for a topic that no header field names.

        Raises: Refusal.
        """
        access_key = (request.command.ext_fields or {}).get(ACCESS_KEY, "")
        reason = self.find_denial(access_key, topic, permission)
        if reason is not None:
            remark = f"{DENIED}{reason}"
            raise self.refusal(BrokerRefusal.ACCESS, request, ResponseCode.SYSTEM_ERROR, remark)

    def check_held(self, held: HeldPull) -> None:
        """Refuse a request that has waited if the rules of access have changed to its harm.

        Raises: Refusal.
        """
        access = self.access
        if access is None or held.rules is access.table:
            return
        rules, connection = access.table, held.connection
        reason = access.find_refusal(held.command, connection.address)
        if reason is not None:
            text = f"refused {connection.address}, which waited: {reason}"
            facts = self.refusals.note(BrokerRefusal.ACCESS, text, now_ms=self.now_ms)
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{DENIED}{reason}", facts=facts)
        held.rules = rules

    def find_denial(self, access_key: str, topic: str, permission: Permission) -> str | None:
        """Return why an account lacks a permission for a topic; None if the access is allowed."""
        if self.access is None:
            return None
        return self.access.find_denial(access_key, topic, permission)

    def read_named(self, position: int) -> bytes | None:
        """Return the record of the message at a position that a peer names, None if none is there.

        The message's queue must lead to it: a body may hold what looks like a record, of any topic,
        with the messages behind it as its properties.
        """
        data = self.store.records.read(position) or b""
        for topic, queue_id, queue_offset in scan_records(data):
            entry = self.store.queues.entry(topic, queue_id, queue_offset)
            if entry is not None and entry[:2] == (position, len(data)):
                return data
        return None

    def is_member(self, group: str, connection: Connection) -> bool:
        """Return whether a connection is a listed member of a group."""
        found = self.consumers.find(group)
        return found is not None and connection in found.members

    def may_commit(self, topic: str, queue_id: int, *, offset: int) -> bool:
        """Return whether an offset lies at most `COMMIT_AHEAD_MAX` beyond the queue's end."""
        return offset <= self.store.queues.max_offset(topic, queue_id) + COMMIT_AHEAD_MAX

    def has_queue(self, queue: MessageQueue) -> bool:
        """Return whether a queue is one of this broker's, or was one and has had messages.

        A topic with fewer queues hides the others: their owners finish and commit what they have
        in hand, and with more queues again the group goes on from there.
        """
        topic = self.topics.find(queue.topic)
        if topic is None or queue.broker_name != self.config.broker_name:
            return False
        return (
            queue.queue_id in queue_ids(topic)
            or self.store.queues.max_offset(queue.topic, queue.queue_id) > 0
        )

    def find_waited_queue(self, topic: str, queue_id: int) -> int | None:
        """Return where a message goes that has waited for a queue; None without its topic.

        The topic may have fewer queues by now, and nobody consumes the others. Differs from
        RocketMQ, which puts the message there.
        """
        found = self.topics.find(topic)
        if found is None:
            return None
        count = found.read_queue_nums
        return queue_id if queue_id in queue_ids(found) or count == 0 else queue_id % count

    def count_readable(self, topic: str) -> int:
        """Return how many queues of a topic are read; 0 for an unknown topic."""
        found = self.topics.find(topic)
        return 0 if found is None else found.read_queue_nums

    def any_queue(self, topic: TopicConfig) -> int:
        """Return a random queue id of a topic; 0 for a topic without queues."""
        count = topic.write_queue_nums
        return self.random_below(count) if count > 1 else 0

    def count_stored(self, topic: TopicConfig) -> int:
        """Return how many messages a topic has stored in all."""
        name = topic.topic_name
        ends = (self.store.queues.max_offset(name, queue_id) for queue_id in queue_ids(topic))
        return sum(max(0, end) for end in ends)

    def note_totals(self, now_ms: int) -> None:
        """Note the totals of stored and consumed messages, if a note is due."""
        self.stored_totals.note(now_ms, self.store.queues.totals)
        self.consumed_totals.note(now_ms, self.offsets.totals)

    def consumed(self, group: str, topic: str, *, now_ms: int) -> tuple[Added, ...] | None:
        """Return a group's progress in a topic over a minute, an hour and a day.

        None if the group has no offset of the topic.
        """
        total = self.offsets.find_total(group, topic)
        if total is None:
            return None
        return self.consumed_totals.added(now_ms, f"{topic}@{group}", total)

    def after_journal(self, outputs: Iterable[Output], *, now_ms: int) -> list[Output]:
        """Let replies wait until the changes so far are in the journal, and survive a crash."""
        journal_round = self.journal.ask()
        late: list[Output] = []
        for output in outputs:
            if isinstance(output, Reply):
                add = self.pending.add_for_rounds
                late += add(output, journal_round=journal_round, now_ms=now_ms)
            else:
                late.append(output)
        return late

    def notify_group(self, group_name: str, *, now_ms: int) -> list[Output]:
        """Notify every member of a group that its membership changed, or do so soon."""
        group = self.consumers.find(group_name)
        settings = self.groups.find(group_name)
        if group is None:
            return []
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return []
        if not self.consumers.announce(group, now_ms):
            return []
        code, fields = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_name}
        return [self.push(connection, code, fields) for connection in group.members]

    def notify_due(self, now_ms: int) -> list[Output]:
        """Notify the groups whose changes were gathered."""
        outputs: list[Output] = []
        for name in self.consumers.due_changes(now_ms):
            outputs += self.notify_group(name, now_ms=now_ms)
        return outputs

    def push(
        self,
        connection: Connection,
        code: int,
        ext_fields: Mapping[str, str],
        *,
        body: bytes | None = None,
    ) -> Push:
        """Return a one-way request to a client."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command = RemotingCommand(
            code=code, ext_fields=ext_fields, body=body, opaque=self._opaque, flag=ONEWAY_FLAG
        )
        return Push(connection, command)


def _sent_answer(region: str, store_host: bytes) -> bytes:
    """Return the head that `framing.encode_head` writes, with places for the fields that differ."""
    quoted = msgspec.json.encode(region).decode().replace("%", "%%")
    msg_id = f"{store_host.hex().upper()}%016X"
    return (
        f'{{"code":{ResponseCode.SUCCESS.value},"extFields":{{"MSG_REGION":{quoted},'
        f'"TRACE_ON":"true","msgId":"{msg_id}","queueId":"%d","queueOffset":"%d"}},'
        f'"flag":{RESPONSE_FLAG},"language":"{LanguageCode.PYTHON.name}","opaque":%d,'
        f'"version":{MQ_VERSION},"serializeTypeCurrentRPC":"JSON"}}'
    ).encode()
