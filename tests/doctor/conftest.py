"""A consumer group as the doctor would see it, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.group_snapshot import (
    BrokerView,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    MemberReport,
    QueueProgress,
    Sample,
    SubscriptionView,
    TopicQueues,
    TopicSnapshot,
)
from sparrowmq.doctor.group_view import examine
from sparrowmq.doctor.rules import apply_rules
from sparrowmq.model import MessageQueue

Offsets = tuple[int, int | None]


class SeenGroup:
    """A group whose members all work and have no backlog, until a test says otherwise.

    Args:
        ids: the client ids that every broker lists; an id listed twice comes from two ports.
        queues: how many each topic has at each broker.
        interval_ms: between the looks; 0 is one look.
    """

    def __init__(
        self,
        ids: Sequence[str] = ("10.0.0.1@1", "10.0.0.2@1"),
        *,
        queues: int = 4,
        topics: Sequence[str] = ("T",),
        brokers: Sequence[str] = ("broker-a",),
        interval_ms: int = 6_000,
        model: str = "CLUSTERING",
        strategy: str = "AVG",
        where: str = "CONSUME_FROM_FIRST_OFFSET",
        consume_type: str = "CONSUME_PASSIVELY",
        language: str = "JAVA",
    ) -> None:
        self.strategy = strategy
        self.interval_ms = interval_ms
        self.reports: list[MemberReport] = []
        self.topics = {
            topic: TopicSnapshot(
                topic=topic,
                queues=tuple(
                    TopicQueues(name, queues, queues, cluster="C") for name in sorted(brokers)
                ),
            )
            for topic in topics
        }
        self.offsets: dict[MessageQueue, tuple[Offsets, Offsets]] = {}
        # How long the first unconsumed message of a queue waits.
        self.waits_ms: dict[MessageQueue, int] = {}
        for view in self.topics.values():
            for queue in view.subscribe_queues:
                self.offsets[queue] = ((100, 100), (100, 100))
        self._consume_type, self._model, self._where = consume_type, model, where
        self._language = language
        self.then: dict[str, BrokerView] = {}
        self.now: dict[str, BrokerView] = {}
        for name in brokers:
            self.listing(name, ids)

    def listing(
        self,
        broker: str,
        ids: Sequence[str],
        *,
        before: Sequence[str] | None = None,
        addresses: Sequence[str] | None = None,
        expressions: dict[str, str] | None = None,
        expressions_before: dict[str, str] | None = None,
        versions: int = 1,
        failure: str = "",
        addresses_before: Sequence[str] | None = None,
        answer_ms: int | None = None,
    ) -> None:
        """Say whom a broker lists now and, where that differs, whom it listed a moment ago."""

        def view(
            listed: Sequence[str], wanted: dict[str, str], addresses: Sequence[str] | None
        ) -> BrokerView:
            places = addresses or [f"10.1.0.{n}:5000{n}" for n in range(len(listed))]
            return BrokerView(
                broker_name=broker,
                cluster="C",
                address="10.9.9.9:10911",
                cid_all=None if failure else tuple(listed),
                connections=tuple(
                    MemberConnection(client_id, address, self._language, 395)
                    for client_id, address in zip(listed, places, strict=False)
                ),
                subscriptions=tuple(SubscriptionView(t, e, versions) for t, e in wanted.items()),
                failure=failure,
                answer_ms=answer_ms,
                consume_type=self._consume_type,
                message_model=self._model,
                consume_from_where=self._where,
            )

        wanted = expressions or dict.fromkeys(self.topics, "*")
        self.now[broker] = view(ids, wanted, addresses)
        self.then[broker] = view(
            ids if before is None else before,
            expressions_before or wanted,
            addresses_before or addresses,
        )

    def flow(
        self,
        *queue_ids: int,
        then: Offsets,
        now: Offsets,
        topic: str = "T",
        broker: str = "broker-a",
    ) -> None:
        """Say the broker's and the group's offset of queues, a moment ago and now."""
        for queue_id in queue_ids:
            self.offsets[MessageQueue(topic, broker, queue_id)] = (then, now)

    def report(
        self,
        client_id: str,
        *,
        expressions: dict[str, str] | None = None,
        held: Sequence[MessageQueue] = (),
        cached: int = 0,
        done: int = 0,
        versions: int = 1,
        is_locked: bool = True,
        **told: object,
    ) -> None:
        """Say what a member tells of itself."""
        wanted = dict.fromkeys(self.topics, "*") if expressions is None else expressions
        self.reports.append(
            MemberReport(
                client_id=client_id,
                held=tuple(
                    HeldQueue(q, is_locked=is_locked, cached_count=cached, commit_offset=done)
                    for q in held
                ),
                subscriptions=tuple(SubscriptionView(t, e, versions) for t, e in wanted.items()),
                **told,  # type: ignore[arg-type]
            )
        )

    def snapshot(self) -> GroupSnapshot:
        def sample(at_ms: int, views: dict[str, BrokerView], index: int) -> Sample:
            return Sample(
                at_ms=at_ms,
                timestamp_ms=1_700_000_000_000 + at_ms,
                brokers=tuple(views.values()),
                progress=tuple(
                    QueueProgress(queue, *offsets[index], wait_ms=self.waits_ms.get(queue, 0))
                    for queue, offsets in self.offsets.items()
                ),
            )

        samples = [sample(0, self.then, 0), sample(self.interval_ms, self.now, 1)]
        return GroupSnapshot(
            group="G",
            samples=tuple(samples if self.interval_ms else samples[1:]),
            topics=tuple(self.topics.values()),
            reports=tuple(self.reports),
            strategy=self.strategy,
            strategy_is_known=True,
        )

    def findings(self) -> dict[str, Finding]:
        """What each rule says, by rule; the doctor says it unless another rule explains it."""
        found = apply_rules(examine(self.snapshot()))
        assert len({finding.rule for finding in found}) == len(found)
        return {finding.rule: finding for finding in found}


@pytest.fixture
def seen_group() -> type[SeenGroup]:
    """`SeenGroup`, whose instances are groups as the doctor sees them."""
    return SeenGroup
