"""The pages of topics, of brokers, and of the doctor's findings in all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.client.operations.brokers import broker_config, find_broker
from sparrowmq.client.operations.producers import ConnectedProducer
from sparrowmq.client.operations.topics import TopicStatus, look_at_topic, perm_name
from sparrowmq.dash.group_page import (
    RATE_HEIGHT,
    WINDOWS_S,
    bucket_of,
    choose_window,
    name_ticks,
)
from sparrowmq.dash.strips import TimeBar, TimeWindow, draw_bars
from sparrowmq.dash.tables import Cell, PageTable, TableColumn, describe_missing
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import View, Visit, group_href, messages_href, topic_href
from sparrowmq.doctor import Finding, Severity
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model.names import check_topic
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words.catalog import Words

# The list names at most so many groups that read a topic.
_GROUPS_NAMED = 5


async def show_topics(watcher: Watcher, visit: Visit) -> View:
    """List the topics; RocketMQ's own only if the URL asks for them."""
    with_internal = visit.query.get("internal") == "yes"
    seen = watcher.overview
    rows = []
    for topic in watcher.seen_topics:
        if topic.is_internal and not with_internal:
            continue
        named = ", ".join(topic.groups[:_GROUPS_NAMED])
        more = len(topic.groups) - _GROUPS_NAMED
        rows.append(
            [
                Cell(topic.topic, topic_href(topic.topic)),
                Cell(topic.queue_count),
                Cell(watcher.topic_rates.get(topic.topic)),
                Cell(topic.max_offset),
                Cell(len(topic.groups)),
                Cell(named, note=visit.words("and {n} more", n=more) if more > 0 else ""),
                Cell(", ".join(place.broker_name for place in topic.places)),
            ]
        )
    table = PageTable(
        name="topics",
        title="Topics",
        columns=(
            TableColumn("topic", "topic"),
            TableColumn("queues", "queues", "number"),
            TableColumn("in_per_s", "in/s", "rate"),
            TableColumn("end_offsets", "messages ever", "number"),
            TableColumn("group_count", "groups", "number"),
            TableColumn("groups", "read by", "prose"),
            TableColumn("brokers", "brokers", "prose"),
        ),
        rows=rows,
        empty="There is no topic yet.",
    )
    return View(
        template="topics.html",
        title="Topics",
        tables=(table,),
        context={"with_internal": with_internal, "has_looked": seen is not None},
    )


async def show_topic(watcher: Watcher, visit: Visit) -> View:
    """Show a topic: its brokers, queues and groups. Raises: as `look_at_topic`."""
    name = check_topic(visit.request.path_params["topic"])
    status, failures = await watcher.driver.run(look_at_topic(watcher.directory, name))
    producers = await _find_producers(watcher, status)
    window_s, now_ms = choose_window(visit.query), timestamp_ms()
    since_ms, bucket_ms = now_ms - window_s * 1000, bucket_of(window_s)
    rates = watcher.history.rates(name, is_topic=True, since_ms=since_ms, bucket_ms=bucket_ms)
    bars = [TimeBar(each.at_ms, each.in_per_s) for each in rates]
    chart = draw_bars(
        visit.words("in/s"),
        bars,
        TimeWindow(since_ms, now_ms),
        bucket_ms=bucket_ms,
        height=RATE_HEIGHT,
    )
    return View(
        template="topic.html",
        name=name,
        tables=(
            _queue_table(status),
            _reader_table(watcher, status),
            _producer_table(producers),
            _place_table(status),
        ),
        problems=describe_missing(failures),
        context={
            "charts": [chart],
            "windows": WINDOWS_S,
            "window_s": window_s,
            "ticks": name_ticks(window_s, visit.words),
            "topic": name,
            "messages": messages_href(name),
            "count": sum(at.max_offset - at.min_offset for at in status.queues),
            "rate": watcher.topic_rates.get(name),
        },
    )


def _reader_table(watcher: Watcher, status: TopicStatus) -> PageTable:
    """Return the topic's groups, and how far each was behind at the last look."""
    known = {group.group: group for group in watcher.seen_groups}
    rows = []
    for name in status.groups:
        group = known.get(name)
        progress = () if group is None else group.topics
        lag = next((at.lag for at in progress if at.topic == status.topic), None)
        members = None if group is None or group.members is None else group.member_count
        tone = "bad" if members == 0 and lag else ""
        rows.append([Cell(name, group_href(name)), Cell(lag), Cell(members, tone=tone)])
    return PageTable(
        name="groups",
        title="Read by",
        columns=(
            TableColumn("group", "group"),
            TableColumn("lag", "lag", "number"),
            TableColumn("members", "members", "number"),
        ),
        rows=rows,
        empty="No group reads this topic.",
    )


async def _find_producers(
    watcher: Watcher, status: TopicStatus
) -> Sequence[ConnectedProducer] | None:
    """Return the producers at the topic's brokers; None if the brokers do not list them."""
    masters = {name: at[min(at)] for name, at in status.addresses.items() if at}
    try:
        return await watcher.producers(masters)
    except SparrowError:
        return None


def _producer_table(producers: Sequence[ConnectedProducer] | None) -> PageTable:
    return PageTable(
        name="producers",
        title="Producers",
        columns=(
            TableColumn("group", "producer group"),
            TableColumn("client_id", "client id"),
            TableColumn("host", "host"),
            TableColumn("language", "language"),
            TableColumn("brokers", "brokers", "prose"),
            TableColumn("last_ms", "last heartbeat", "time"),
        ),
        rows=[
            [
                Cell(each.group),
                Cell(each.client_id),
                Cell(each.host),
                Cell(each.language or None),
                Cell(", ".join(each.broker_names)),
                Cell(each.last_timestamp_ms or None),
            ]
            for each in producers or ()
        ],
        empty="No producer is connected."
        if producers is not None
        else "The brokers do not list their producers for this page.",
    )


def _queue_table(status: TopicStatus) -> PageTable:
    return PageTable(
        name="queues",
        title="Queues",
        columns=(
            TableColumn("queue", "queue"),
            TableColumn("first", "first", "number"),
            TableColumn("end", "end", "number"),
            TableColumn("messages", "messages", "number"),
            TableColumn("last_ms", "last message", "time"),
        ),
        rows=[
            [
                Cell(
                    text := spell_queue(at.queue),
                    messages_href(status.topic, queue=text),
                ),
                Cell(at.min_offset),
                Cell(at.max_offset),
                Cell(at.max_offset - at.min_offset),
                Cell(at.last_timestamp_ms),
            ]
            for at in status.queues
        ],
    )


def _place_table(status: TopicStatus) -> PageTable:
    return PageTable(
        name="places",
        title="At brokers",
        columns=(
            TableColumn("broker", "broker"),
            TableColumn("read_queues", "read queues", "number"),
            TableColumn("write_queues", "write queues", "number"),
            TableColumn("perm", "permissions"),
            TableColumn("addresses", "addresses", "prose"),
        ),
        rows=[
            [
                Cell(place.broker_name, f"/brokers/{quote(place.broker_name, safe='')}"),
                Cell(place.read_queue_nums),
                Cell(place.write_queue_nums),
                Cell(perm_name(place.perm)),
                Cell(
                    ", ".join(
                        f"{number}={address}"
                        for number, address in sorted(
                            status.addresses.get(place.broker_name, {}).items()
                        )
                    )
                ),
            ]
            for place in status.places
        ],
    )


async def show_brokers(watcher: Watcher, visit: Visit) -> View:
    """List the brokers."""
    seen = watcher.overview
    table = PageTable(
        name="brokers",
        title="Brokers",
        columns=(
            TableColumn("broker", "broker"),
            TableColumn("cluster", "cluster"),
            TableColumn("address", "address"),
            TableColumn("version", "version"),
            TableColumn("in_per_s", "in/s", "rate"),
            TableColumn("out_per_s", "out/s", "rate"),
            TableColumn("failure", "trouble", "prose"),
        ),
        rows=[
            [
                Cell(broker.name, f"/brokers/{quote(broker.name, safe='')}"),
                Cell(broker.cluster),
                Cell(broker.address),
                Cell(broker.version),
                Cell(broker.puts_per_s),
                Cell(broker.gets_per_s),
                Cell(broker.failure or broker.obstacle or None, tone="bad"),
            ]
            for broker in (seen.brokers if seen is not None else ())
        ],
        empty="No broker is known yet.",
    )
    return View(template="table.html", title="Brokers", tables=(table,))


async def show_broker(watcher: Watcher, visit: Visit) -> View:
    """Show a broker's report about itself. Raises: UsageError if no broker has this name."""
    name = visit.request.path_params["broker"]
    seen = watcher.overview
    brokers = {broker.name: broker for broker in (seen.brokers if seen is not None else ())}
    if name not in brokers:
        known = ", ".join(brokers) or "none"
        raise UsageError(f"no broker has the name {name!r}; these are known: {known}")
    broker = brokers[name]
    table = PageTable(
        name="runtime",
        title="What the broker reports",
        columns=(TableColumn("name", "name"), TableColumn("value", "value", "prose")),
        rows=[[Cell(key), Cell(value)] for key, value in sorted(broker.runtime.items())],
        empty="The broker has reported nothing.",
    )
    settings = PageTable(
        name="settings",
        title="What the broker is set to",
        columns=(TableColumn("name", "name"), TableColumn("value", "value", "prose")),
        rows=[
            [Cell(key), Cell(value)]
            for key, value in sorted((await _settings(watcher, name)).items())
        ],
        empty="The broker does not report its settings.",
    )
    return View(
        template="broker.html", name=name, tables=(table, settings), context={"broker": broker}
    )


async def _settings(watcher: Watcher, name: str) -> Mapping[str, str]:
    run, directory = watcher.driver.run, watcher.directory
    try:
        return await run(broker_config(directory, await run(find_broker(directory, name))))
    except SparrowError:
        # The broker does not answer, or access control keeps its settings from this page.
        return {}


def _finding_cells(finding: Finding, words: Words) -> tuple[Cell, Cell, Cell]:
    """Return title, consequence and remedy."""
    consequence = words.phrase(finding.consequence)
    return (
        Cell(words.phrase(finding.title)),
        Cell(consequence),
        Cell(words.remedy(finding.rule, finding.remedy)),
    )


async def show_doctor(watcher: Watcher, visit: Visit) -> View:
    """List the doctor's findings in the watched groups, the worst first."""
    found = [
        (finding, name)
        for name, group in watcher.groups.items()
        for finding in group.findings
        if group.view is not None
    ]
    found.sort(key=lambda item: (-item[0].severity, item[1], item[0].rule))
    tones = {Severity.ERROR: "bad", Severity.WARN: "warn", Severity.INFO: "quiet"}
    table = PageTable(
        name="findings",
        title="What the doctor finds",
        columns=(
            TableColumn("severity", "severity"),
            TableColumn("rule", "rule"),
            TableColumn("group", "group"),
            TableColumn("title", "finding", "prose"),
            TableColumn("consequence", "consequence", "prose"),
            TableColumn("remedy", "remedy", "prose"),
        ),
        rows=[
            [
                Cell(visit.words(finding.severity.name.lower()), tone=tones[finding.severity]),
                Cell(finding.rule),
                Cell(name, f"{group_href(name)}#finding-{finding.rule}"),
                *_finding_cells(finding, visit.words),
            ]
            for finding, name in found
        ],
        empty="Nothing is wrong.",
    )
    looked = sum(g.view is not None and not g.failure for g in watcher.groups.values())
    return View(
        template="doctor.html",
        title="Doctor",
        tables=(table,),
        context={"looked": looked, "count": max(looked, len(watcher.names))},
    )
