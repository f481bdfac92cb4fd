"""The broker as a machine: commands in, outputs out.

The machine does I/O only through the store's `Storage`, and never waits. Slow work is returned to
the server, which runs it in threads, one round at a time, and reports its end:

    flush_work()        -> flushed(work, error)      the commit log to the disk (group commit)
    journal_work()      -> journaled(work, error)    changes of the configuration
    save_work()         -> saved(work, error)        config files
    expiry_work()       -> expired(work, error)      files of old messages
    registration_work() -> registered(work)          topics to the name servers

Requests go on while a round runs; the next round covers their changes. Replies wait in
`PendingReplies` for the rounds that they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from sparrowmq.broker import pop_log
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_saving import ConfigSaving, JournalWork, SavedTables, SaveWork
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.processors import (
    access_rules,
    admin,
    assignments,
    clients,
    consumer_questions,
    group_offsets,
    offsets,
    plans,
    pop,
    pop_questions,
    pull,
    query,
    recall,
    reply,
    send,
    send_back,
    status,
    transaction,
)
from sparrowmq.broker.registration import RegistrationWork
from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.broker.subscription_groups import SubscriptionGroups
from sparrowmq.broker.timer_messages import TimerMessages
from sparrowmq.broker.topic_configs import TopicConfigs
from sparrowmq.broker.transaction_checks import TransactionChecks
from sparrowmq.model.names import SCHEDULE_TOPIC, is_system_topic
from sparrowmq.protocol.bodies import TopicRouteData
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RESPONSE_FLAG, RemotingCommand
from sparrowmq.protocol.record import encode_host
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Close, Connection, Fact, Output
from sparrowmq.serving.requests import Processor, Request, answer, deny, serve
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus
from sparrowmq.store.retention import RetentionFact

# How often expired locks and silent clients are removed. RocketMQ looks every 10 s.
SCAN_INTERVAL_MS = 1_000
# A tick with more new messages than this does not index older ones.
_IDLE_PUTS_MAX = 200
# How many queues a tick checks for files of expired messages: some 10 ms.
_QUEUES_SWEPT_MAX = 200
# The damaged records that one line names.
_DAMAGED_NAMED_MAX = 8
# From a lost name server to the next registration. RocketMQ waits for its next round, every 30 s.
REGISTRATION_RETRY_MS = 1_000

PROCESSORS: Mapping[int, Processor[BrokerState]] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: send.send,
        RequestCode.SEND_MESSAGE_V2: send.send,
        RequestCode.SEND_BATCH_MESSAGE: send.send,
        RequestCode.SEND_REPLY_MESSAGE: reply.send_reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: reply.send_reply,
        RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        RequestCode.RECALL_MESSAGE: recall.recall,
        RequestCode.END_TRANSACTION: transaction.end_transaction,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: transaction.resume_check,
        RequestCode.PULL_MESSAGE: pull.pull,
        RequestCode.LITE_PULL_MESSAGE: pull.pull,
        RequestCode.POP_MESSAGE: pop.pop,
        RequestCode.ACK_MESSAGE: pop.ack,
        RequestCode.BATCH_ACK_MESSAGE: pop.ack_batch,
        RequestCode.PEEK_MESSAGE: pop_questions.peek,
        RequestCode.NOTIFICATION: pop_questions.notify,
        RequestCode.POLLING_INFO: pop_questions.polling_info,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop.change_invisible_time,
        RequestCode.QUERY_MESSAGE: query.query_message,
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
        RequestCode.GET_MAX_OFFSET: offsets.max_offset,
        RequestCode.GET_MIN_OFFSET: offsets.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
        RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all_consumer_offsets,
        RequestCode.GET_ALL_DELAY_OFFSET: offsets.all_delay_offsets,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: group_offsets.reset_offset,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: group_offsets.consumer_status,
        RequestCode.QUERY_CONSUME_TIME_SPAN: group_offsets.consume_time_span,
        RequestCode.QUERY_CORRECTION_OFFSET: group_offsets.correction_offsets,
        RequestCode.CLONE_GROUP_OFFSET: group_offsets.clone_offsets,
        RequestCode.QUERY_CONSUME_QUEUE: group_offsets.consume_queue,
        RequestCode.HEART_BEAT: clients.heartbeat,
        RequestCode.UNREGISTER_CLIENT: clients.unregister_client,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
        RequestCode.QUERY_ASSIGNMENT: assignments.query,
        RequestCode.SET_MESSAGE_REQUEST_MODE: assignments.set_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignments.all_modes,
        RequestCode.GET_GROUP_PLAN: plans.group_plan,
        RequestCode.OFFER_GROUP_PLAN: plans.offer_plan,
        RequestCode.LOCK_BATCH_MQ: clients.lock_batch,
        RequestCode.UNLOCK_BATCH_MQ: clients.unlock_batch,
        RequestCode.CHECK_CLIENT_CONFIG: clients.check_client_config,
        RequestCode.UPDATE_AND_CREATE_TOPIC: admin.update_and_create_topic,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.create_topics,
        RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
        RequestCode.GET_ALL_TOPIC_CONFIG: admin.all_topic_configs,
        RequestCode.GET_TOPIC_CONFIG: admin.topic_config,
        RequestCode.UPDATE_BROKER_CONFIG: status.update_broker_config,
        RequestCode.GET_BROKER_CONFIG: status.broker_config,
        RequestCode.GET_BROKER_RUNTIME_INFO: status.runtime_info,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: access_rules.update_account,
        RequestCode.DELETE_ACL_CONFIG: access_rules.delete_account,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: access_rules.access_version,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: access_rules.update_global_addresses,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: access_rules.access_rules,
        RequestCode.VIEW_MESSAGE_BY_ID: admin.view_message,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_and_create_group,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.create_groups,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group_config,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
        RequestCode.GET_TOPIC_STATS_INFO: admin.topic_stats,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: admin.consumer_connections,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.producer_connections,
        RequestCode.GET_ALL_PRODUCER_INFO: admin.all_producers,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: admin.topics_of_consumer,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.subscription_of_consumer,
        RequestCode.GET_CONSUME_STATS: admin.consume_stats,
        RequestCode.GET_BROKER_CONSUME_STATS: admin.broker_consume_stats,
        RequestCode.VIEW_BROKER_STATS_DATA: admin.broker_stats_data,
        RequestCode.GET_CONSUMER_RUNNING_INFO: consumer_questions.consumer_running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consumer_questions.consume_directly,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: admin.clean_queues,
        RequestCode.CLEAN_UNUSED_TOPIC: admin.clean_queues,
        RequestCode.DELETE_EXPIRED_COMMITLOG: admin.delete_expired_messages,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.topic_consumed_by,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.system_topics,
    }
)


class Broker:
    """One broker.

    Args:
        store: the loaded store; the broker is its only user.
        random_below: returns a random number from 0 to one less than its argument.
        saved: the contents of the config files.
        access: the access rules; None allows everything.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        random_below: Callable[[int], int],
        saved: SavedTables,
        now_ms: int,
        timestamp_ms: int,
        access: AccessControl | None = None,
    ) -> None:
        self.state = BrokerState(
            config=config,
            store=store,
            random_below=random_below,
            store_host=encode_host(config.address),
            boot_timestamp_ms=timestamp_ms,
            topics=TopicConfigs(config),
            groups=SubscriptionGroups(auto_create=config.auto_create_groups),
            delays=DelaySchedule(store),
            timers=TimerMessages(store, config),
            transactions=TransactionChecks(store, config),
            access=access,
        )
        self.state.now_ms, self.state.wall_ahead_ms = now_ms, timestamp_ms - now_ms
        self._saving = ConfigSaving(self.state, saved)
        self._saving.load(saved, now_ms=now_ms, timestamp_ms=timestamp_ms)
        pop_log.load(self.state, saved.pops, now_ms=now_ms, timestamp_ms=timestamp_ms)
        # What the load has changed is to be saved before the first request is served. A second
        # crash would bring offsets of messages back that the log does not have; and after a failed
        # sync only the page cache may have the journal's last changes.
        self._saving.tick()
        # An answer may wait for no more than what the recovered log has.
        self.state.pending.note_flushed(store.flushed_position, now_ms=now_ms)
        self._flush_runs = False
        # After a shortage of descriptors, memory or threads: until it ends, and until the next
        # tick.
        self._flush_is_short = False
        self._flush_rests = False
        self._puts_seen = 0
        self._flush_due_ms = 0
        self._save_due_ms = 0
        self._registration_due_ms = 0
        self._registered_version = self.state.topics.version
        self._scan_due_ms = 0
        # Of what a tick reads, why it could not be read at the last one; None if it could.
        self.read_errors: dict[str, OSError | None] = {}

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Handle one command and return its outputs."""
        state = self.state
        if command.flag & RESPONSE_FLAG:
            return state.relays.answered(command, connection)
        request = Request(command, connection, now_ms, timestamp_ms)
        body, access = command.body, state.access
        if body is not None and len(body) > state.config.message_bytes_max:
            remark = f"a body of {len(body)} bytes; the limit is {state.config.message_bytes_max}"
            return answer(request, ResponseCode.MESSAGE_ILLEGAL, remark=remark)
        if access is not None:
            reason = access.find_refusal(command, connection.address)
            if reason is not None:
                text = f"refused {connection.address}: {reason}"
                facts = state.refusals.note(BrokerRefusal.ACCESS, text, now_ms=now_ms)
                return [*deny(request, reason), *facts]
        return serve(PROCESSORS, state, request)

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Forget a connection: its memberships, its held pulls."""
        del timestamp_ms
        self.state.holds.discard(connection)
        pop.forget_connection(self.state, connection)
        self.state.pending.forget(connection)
        return [
            *self.state.relays.forget(connection),
            *clients.forget_connection(self.state, connection, now_ms=now_ms),
        ]

    def give_up(self, connection: Connection, opaque: int) -> Sequence[Output]:
        """Answer a waiting pop, whose consumer has gone, without messages."""
        return pop.give_up(self.state, connection, opaque)

    def settle(self, *, now_ms: int) -> list[Output]:
        """Write appended messages, show them to readers, and answer the sends and pulls that wait.

        Call `settle` again while `is_unsettled`: one call answers a bounded number of pulls.
        """
        store, pending = self.state.store, self.state.pending
        self.state.now_ms = now_ms
        outputs = pop_log.log_changes(self.state, now_ms=now_ms)
        written = store.write()
        is_written = written.status is PutStatus.PUT_OK
        pop_log.note_logged(self.state, is_written=is_written, now_ms=now_ms)
        if is_written:
            outputs += pending.note_written(store.written_position, now_ms=now_ms)
        else:
            reason = f"{written.status.name}: {written.remark}"
            outputs += pending.fail_unwritten(store.written_position, reason, now_ms=now_ms)
            self.state.transactions.forget_commits()
            self.state.timers.forget_recalls(store.written_position)
        dispatched = store.dispatch()
        if dispatched:
            for item in dispatched:
                if item.topic == SCHEDULE_TOPIC:
                    self.state.delays.note_arrival(item.queue_id)
            pull.wake(self.state, dispatched)
            pop.wake(self.state, dispatched)
        holds = self.state.holds
        if holds.has_ended or holds.has_drained:
            outputs += pull.answer_released(self.state)
        return outputs

    @property
    def is_unsettled(self) -> bool:
        """Whether `settle` must be called again: to answer held pulls, or to log pops."""
        return self.state.holds.has_ended or self.state.awaits_pop_log

    def awaits_turn(self) -> bool:
        """Return whether a handled command needs `settle`, or a round that begins after it."""
        state = self.state
        return (
            state.store.awaits_dispatch
            or state.awaits_pop_log
            or state.holds.has_ended
            or state.holds.has_drained
            or state.journal.is_asked
            or state.saves.is_asked
            or state.registrations.is_asked
            or state.route_questions.is_asked
        )

    def tick(self, *, now_ms: int, timestamp_ms: int) -> list[Output]:
        """Do the work that is due by time; call it about every 100 ms, and then `settle`."""
        state = self.state
        self._flush_rests = False
        state.now_ms, state.wall_ahead_ms = now_ms, timestamp_ms - now_ms
        state.holds.expire(now_ms)
        pop.show_due(state, now_ms=now_ms, timestamp_ms=timestamp_ms)
        outputs: list[Output] = state.pending.expire_flush(now_ms)
        pop_log.give_back_late(state, now_ms=now_ms)
        outputs += state.relays.expire(now_ms)
        outputs += state.notify_due(now_ms)
        outputs += clients.serve_lock_waits(state, now_ms=now_ms)
        for waiting in (state.delays, state.timers):
            state.counters.puts += waiting.deliver_due(
                timestamp_ms=timestamp_ms, find_queue=state.find_waited_queue
            )
        errors = self.read_errors
        errors["delayed messages"] = state.delays.read_error or state.timers.read_error
        errors["popped messages"] = state.pops.read_error
        errors["half messages"] = errors["messages for the index"] = None
        try:
            outputs += transaction.check_transactions(
                state, now_ms=now_ms, timestamp_ms=timestamp_ms
            )
        except OSError as error:
            errors["half messages"] = error.with_traceback(None)
        try:
            if state.counters.puts - self._puts_seen <= _IDLE_PUTS_MAX:
                state.store.build_index()
            state.store.sweep(_QUEUES_SWEPT_MAX, has_topic=self._has_topic)
        except OSError as error:
            errors["messages for the index"] = error.with_traceback(None)
        if damaged := state.store.records.take_damaged():
            more = len(damaged) - _DAMAGED_NAMED_MAX
            text = "damaged records are passed over: " + ", ".join(damaged[:_DAMAGED_NAMED_MAX])
            outputs.append(Fact(f"{text} and {more} more" if more > 0 else text, error=True))
        self._puts_seen = state.counters.puts
        state.rates.note(now_ms, puts=state.counters.puts, gets=state.counters.gets)
        state.note_totals(now_ms)
        if now_ms >= self._save_due_ms:
            self._save_due_ms = now_ms + state.config.offsets_save_interval_ms
            self._saving.tick()
        if now_ms >= self._registration_due_ms:
            self._registration_due_ms = now_ms + state.config.registration_interval_ms
            state.registrations.ask()
        if now_ms >= self._scan_due_ms:
            self._scan_due_ms = now_ms + SCAN_INTERVAL_MS
            outputs += self._drop_silent(now_ms)
        return outputs

    def _has_topic(self, topic: str) -> bool:
        topics = self.state.topics
        # A topic whose deletion the journal lacks may come back, and its offsets go on then.
        is_deleted = topics.find(topic) is None and topics.is_saved(topic)
        return not is_deleted or is_system_topic(topic)

    def _drop_silent(self, now_ms: int) -> list[Output]:
        state = self.state
        outputs: list[Output] = []
        state.locks.drop_expired(now_ms=now_ms)
        state.pops.forget_ways(now_ms)
        pop.forget_expired(state)
        state.pops.note_time(now_ms)
        if state.plans.drop_unasked(now_ms):
            state.journal.ask()
        state.producers.expire(now_ms)
        for connection in state.consumers.expired(now_ms):
            outputs += clients.forget_connection(state, connection, now_ms=now_ms)
            outputs.append(Close(connection, "its heartbeats stopped"))
        return outputs

    def is_work_due(self, now_ms: int) -> bool:
        """Return whether `flush_work` or another kind of work may be due; most turns have none."""
        state = self.state
        is_flush_due = state.config.is_sync or now_ms >= self._flush_due_ms
        return (
            (is_flush_due and not self._flush_runs)
            or state.journal.is_asked
            or state.saves.is_asked
            or state.registrations.is_asked
            or state.route_questions.is_asked
        )

    def flush_work(self, *, now_ms: int) -> FlushWork | None:
        """Return what to flush; None if a flush runs, nothing is new, or no flush is due."""
        if self._flush_runs or self._flush_rests:
            return None
        config = self.state.config
        if not config.is_sync:
            if now_ms < self._flush_due_ms:
                return None
            self._flush_due_ms = now_ms + config.async_flush_interval_ms
        work = self.state.store.flush_work()
        self._flush_runs = work is not None
        return work

    def last_flush_work(self) -> FlushWork | None:
        """Return what is left to flush before the broker stops, due or not."""
        assert not self._flush_runs
        work = self.state.store.flush_work()
        self._flush_runs = work is not None
        return work

    def flushed(self, work: FlushWork, error: Exception | None, *, now_ms: int) -> list[Output]:
        """Process the end of a flush: release the sends that it covers, then wake pulls.

        After a shortage of descriptors, memory or threads the sends wait for the next flush, which
        a tick begins.
        """
        self._flush_runs = False
        store, pending = self.state.store, self.state.pending
        store.flush_done(work, error)
        if error is not None and store.failure is None:
            was_short, self._flush_is_short = self._flush_is_short, True
            self._flush_rests = True
            text = f"the flush is put off, and tried again every tick: {error}"
            return [] if was_short else [Fact(text, warning=True)]
        if error is not None:
            # The offsets that wait for this flush are never written.
            return pending.fail_flush() + pending.fail_offsets(str(error))
        self._flush_is_short = False
        self._saving.note_flushed()
        released = pending.note_flushed(store.flushed_position, now_ms=now_ms)
        return released + self.settle(now_ms=now_ms)

    def journal_work(self, *, now_ms: int) -> JournalWork | None:
        """Return what to append to the journal, or None."""
        return self._saving.journal_work(now_ms=now_ms)

    def journaled(self, work: JournalWork, error: Exception | None) -> list[Output]:
        """Process the end of a round of journalling."""
        return self._saving.journaled(work, error)

    def save_work(self, *, now_ms: int) -> SaveWork | None:
        """Return the config files to write, or None."""
        return self._saving.save_work(now_ms=now_ms)

    @property
    def offsets_cut(self) -> int:
        """How many committed offsets were beyond their queue's end at the start."""
        return self._saving.offsets_cut

    def ask_last_save(self) -> None:
        """Ask for a last write of all changed tables, before the broker stops."""
        self._saving.ask_last()

    def saved(self, work: SaveWork, error: Exception | None) -> list[Output]:
        """Process the end of a round of config writing; return the replies that waited for it."""
        return self._saving.saved(work, error)

    def expiry_work(
        self, *, now_ms: int, timestamp_ms: int
    ) -> tuple[ExpiryWork | None, list[Output]]:
        """Return the files of old messages to remove, or None, and outputs."""
        work, facts = self.state.retention.work(now_ms=now_ms, timestamp_ms=timestamp_ms)
        return work, _facts(facts)

    def expired(self, work: ExpiryWork, error: Exception | None) -> list[Output]:
        """Process the end of a removal of files."""
        return _facts(self.state.retention.done(work, error))

    def ask_registration(self, *, now_ms: int) -> None:
        """Ask for a registration soon, since a name server may not know the broker."""
        self._registration_due_ms = min(self._registration_due_ms, now_ms + REGISTRATION_RETRY_MS)

    def registration_work(self) -> RegistrationWork | None:
        """Return the topics to register at the name servers, or None."""
        number = self.state.registrations.begin()
        if number is None:
            return None
        topics = self.state.topics
        base, self._registered_version = self._registered_version, topics.version
        return RegistrationWork(number, base, topics.take_unregistered(), topics.table())

    def asked_routes(self) -> list[str]:
        """Return the topics whose routes are to be asked of the name servers."""
        return self.state.route_questions.begin()

    def routed(self, topic: str, route: TopicRouteData | None) -> list[Output]:
        """Process a topic's route, None if no name server has one: answer who waits for it."""
        return assignments.assign(self.state, topic, route)

    def registered(self, *, is_complete: bool, now_ms: int) -> list[Output]:
        """Process the end of a registration.

        Args:
            is_complete: whether every name server accepted it; if not, the broker soon tries again.
        """
        self.state.registrations.finish()
        if not is_complete:
            self.ask_registration(now_ms=now_ms)
        return self.state.pending.note_rounds()


def _facts(facts: list[RetentionFact]) -> list[Output]:
    return [Fact(fact.text, warning=fact.warning) for fact in facts]
