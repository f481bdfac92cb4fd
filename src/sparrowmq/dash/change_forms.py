"""Forms that change the cluster: each shows what it would change, and changes it when confirmed.

A form plans by the operations of the command line. Its first answer is the preview; the second,
with `confirmed`, makes the change. Tests: test_change_forms.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations import accounts, administer, groups, topics
from sparrowmq.client.operations.routes import find_masters
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.web import Site, View, Visit, group_href, topic_href
from sparrowmq.errors import BrokerError, UsageError
from sparrowmq.model.names import check_group, check_new_topic, check_topic
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.serving.access_control import check_account

Values: TypeAlias = Mapping[str, str]


class FormField(NamedTuple):
    """A field of a form: its name, its title in the catalogue's English, its first value.

    `kind` is text, number, lines, secret, fixed or hidden; a field with choices is a list of them.
    """

    name: str
    title: str
    value: str = ""
    kind: str = "text"
    choices: Sequence[str] = ()
    hint: str = ""
    is_required: bool = False


class FormPlan(NamedTuple):
    """What a form would do: the rows before and after, the change, and the page to show then.

    `note` says in the catalogue's English what follows.
    """

    table: PageTable
    apply: Callable[[], Awaitable[object]]
    target: str
    note: str = ""


Plan: TypeAlias = Callable[[Site, Visit, Values], Awaitable[FormPlan]]


class ChangeForm(NamedTuple):
    """A form: its title and its button in the catalogue's English, its fields and its plan."""

    title: str
    button: str
    fields: Callable[[Site, Visit], Awaitable[Sequence[FormField]]]
    plan: Plan
    is_danger: bool = False


async def show_form(form: ChangeForm, site: Site, visit: Visit) -> View | Response:
    """Show a form, the preview of its change, or make the change. Raises: SparrowError."""
    fields = await form.fields(site, visit)
    sent = visit.form
    filled = [
        f._replace(value=sent.get(f.name, "")) if sent and f.kind != "fixed" else f for f in fields
    ]
    filled = [
        f._replace(value=visit.session.find_held(f.value)) if f.kind == "secret" else f
        for f in filled
    ]
    plan = None
    if visit.request.method == "POST":
        site.check_writes(visit.session)
        plan = await form.plan(site, visit, {f.name: f.value.strip() for f in filled})
        if sent.get("confirmed") == "yes":
            await plan.apply()
            await site.watcher.survey()
            return RedirectResponse(plan.target, status_code=303)
    # A page never shows a secret, not even to who has just given it.
    shown = [
        f._replace(value=visit.session.hold(f.value)) if f.kind == "secret" and f.value else f
        for f in filled
    ]
    return View(
        template="change.html",
        title=form.title,
        tables=() if plan is None else (plan.table,),
        news=None,
        context={"form": form, "fields": shown, "plan": plan},
    )


def preview(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> PageTable:
    """Return the table of a change; a value (before, after) becomes an arrow."""
    return PageTable(
        name="change",
        title="What the change would do",
        columns=tuple(TableColumn(name, name, "prose") for name in columns),
        rows=[[_cell(value) for value in row] for row in rows],
        empty="Nothing would change.",
    )


def _cell(value: object) -> Cell:
    if isinstance(value, tuple):
        before, after = value
        if before != after:
            return Cell(f"{_text(before)} → {_text(after)}", tone="warn")
        return Cell(_text(after))
    return Cell(_text(value))


def _text(value: object) -> str:
    return "–" if value in (None, "") else str(value)


def _number(values: Values, name: str) -> int | None:
    text = values[name]
    if not text:
        return None
    number = read_whole_number(text, 9)
    if number is None:
        raise UsageError(f"{name} is {text!r}; write a number")
    return number


def _run(site: Site, operation: Callable[[], Operation[Any]]) -> Callable[[], Awaitable[object]]:
    return lambda: site.watcher.driver.run(operation())


# -- Topics


async def _new_topic(site: Site, visit: Visit) -> list[FormField]:
    return [
        FormField("topic", "topic", visit.query.get("topic", ""), is_required=True),
        FormField("queues", "queues at each broker", "8", "number"),
    ]


async def _plan_new_topic(site: Site, visit: Visit, values: Values) -> FormPlan:
    name, queues = check_new_topic(values["topic"]), _number(values, "queues") or 8
    run, directory = site.watcher.driver.run, site.watcher.directory
    if name in await run(topics.list_topics(directory)):
        raise UsageError(f"topic {name!r} exists already")
    make = partial(administer.create_topic, directory, name, queues=queues)
    return FormPlan(
        preview(("topic", "queues at each broker"), [(name, (None, queues))]),
        _run(site, make),
        topic_href(name),
    )


async def _topic_settings(site: Site, visit: Visit) -> list[FormField]:
    name = visit.request.path_params["topic"]
    plan = topics.plan_topic_update(site.watcher.directory, check_topic(name))
    config = (await site.watcher.driver.run(plan))[0].before
    return [
        FormField("topic", "topic", name, "fixed"),
        FormField("write_queues", "write queues", str(config.write_queue_nums), "number"),
        FormField("read_queues", "read queues", str(config.read_queue_nums), "number"),
        FormField(
            "perm", "permissions", topics.perm_name(config.perm), choices=("rw", "r", "w", "none")
        ),
    ]


async def _plan_topic_settings(site: Site, visit: Visit, values: Values) -> FormPlan:
    name, directory = visit.request.path_params["topic"], site.watcher.directory
    operation = topics.plan_topic_update(
        directory,
        check_topic(name),
        read_queues=_number(values, "read_queues"),
        write_queues=_number(values, "write_queues"),
        perm=topics.parse_perm(values["perm"]) if values["perm"] else None,
    )
    planned = [each for each in await site.watcher.driver.run(operation) if each[1] != each[2]]
    rows = [
        (
            broker.name,
            (before.write_queue_nums, after.write_queue_nums),
            (before.read_queue_nums, after.read_queue_nums),
            (topics.perm_name(before.perm), topics.perm_name(after.perm)),
        )
        for broker, before, after in planned
    ]
    return FormPlan(
        preview(("broker", "write queues", "read queues", "permissions"), rows),
        _run(site, partial(topics.update_topic, directory, planned)),
        topic_href(name),
        note="To remove queues without losing messages, lower the write queues first, and the read "
        "queues once the removed ones are consumed.",
    )


async def _plan_topic_end(site: Site, visit: Visit, values: Values) -> FormPlan:
    name, directory = check_topic(visit.request.path_params["topic"]), site.watcher.directory
    plan = topics.plan_topic_deletion(directory, name)
    losses, readers = await site.watcher.driver.run(plan)
    rows = [(*loss, ", ".join(readers)) for loss in losses]
    return FormPlan(
        preview(("broker", "queues", "messages", "groups"), rows),
        _run(site, partial(administer.delete_topic, directory, name)),
        "/topics",
        note="The messages and the offsets of these groups are lost.",
    )


# -- Groups


async def _group_settings(site: Site, visit: Visit) -> list[FormField]:
    name = visit.request.path_params.get("group", "")
    before = None
    if name:
        found = groups.find_group_settings(site.watcher.directory, check_group(name))
        settings = await site.watcher.driver.run(found)
        before = next((config for _, config in settings if config is not None), None)
    return [
        FormField("group", "group", name, "fixed" if name else "text", is_required=True),
        FormField(
            "retries", "max retries", str(before.retry_max_times if before else 16), "number"
        ),
        FormField(
            "retry_queues",
            "queues of the retry topic",
            str(before.retry_queue_nums if before else 1),
            "number",
        ),
        FormField(
            "enabled",
            "may consume",
            "yes" if before is None or before.consume_enable else "no",
            choices=("yes", "no"),
        ),
    ]


async def _plan_group_settings(site: Site, visit: Visit, values: Values) -> FormPlan:
    name = check_group(visit.request.path_params.get("group") or values["group"])
    directory = site.watcher.directory
    operation = groups.plan_group_update(
        directory,
        name,
        is_enabled=values["enabled"] != "no",
        max_reconsume_times=_number(values, "retries"),
        retry_queues=_number(values, "retry_queues"),
    )
    planned = [c for c in await site.watcher.driver.run(operation) if c.before != c.after]
    rows = [
        (
            change.broker.name,
            (change.before and change.before.retry_max_times, change.after.retry_max_times),
            (change.before and change.before.retry_queue_nums, change.after.retry_queue_nums),
            (change.before and change.before.consume_enable, change.after.consume_enable),
        )
        for change in planned
    ]
    return FormPlan(
        preview(("broker", "max retries", "queues of the retry topic", "may consume"), rows),
        _run(site, partial(groups.update_group, directory, planned)),
        group_href(name),
    )


async def _plan_group_end(site: Site, visit: Visit, values: Values) -> FormPlan:
    name = visit.request.path_params["group"]
    groups.check_own(site.watcher.directory, name)
    group = await site.watcher.find(name)
    await site.watcher.look_now(name)
    assert group.view is not None
    brokers = group.view.snapshot.last.brokers
    if members := {each.client_id for b in brokers for each in b.connections}:
        raise UsageError(f"group {name} has {len(members)} members connected; stop them first")
    await site.watcher.driver.run(find_masters(site.watcher.directory))
    rows = [
        (topic.topic, group.view.lag([q for q in group.view.queues if q.topic == topic.topic]))
        for topic in group.view.snapshot.user_topics
    ]
    return FormPlan(
        preview(("topic", "lag"), rows or [(None, None)]),
        _run(site, partial(groups.delete_group, site.watcher.directory, name)),
        "/",
        note="The group's settings, offsets, retries and dead letters are lost.",
    )


# -- Accounts


async def show_accounts(site: Site, visit: Visit) -> View:
    """List the accounts of access control. Raises: SparrowError."""
    table = PageTable(
        name="accounts",
        title="Accounts",
        columns=(
            TableColumn("account", "account"),
            TableColumn("broker", "broker"),
            TableColumn("admin", "administrator"),
            TableColumn("from", "from addresses", "prose"),
            TableColumn("topics", "all topics"),
            TableColumn("groups", "all groups"),
            TableColumn("topic_perms", "topics", "prose"),
            TableColumn("group_perms", "groups", "prose"),
            TableColumn("delete", "delete"),
        ),
        rows=[
            [
                Cell(each.access_key, _account_href(each)),
                Cell(each.broker_name),
                Cell(visit.words("yes" if each.is_admin else "no")),
                Cell(each.white_remote_address or None),
                Cell(each.default_topic_perm or None),
                Cell(each.default_group_perm or None),
                Cell(" ".join(each.topic_perms) or None),
                Cell(" ".join(each.group_perms) or None),
                Cell(visit.words("delete"), f"{_account_href(each)}/delete"),
            ]
            for each in await _accounts(site, visit)
        ],
        empty="The brokers have no access control: everybody who reaches them may do everything.",
    )
    return View(template="accounts.html", title="Accounts", tables=(table,))


def _account_href(account: accounts.BrokerAccount) -> str:
    return f"/accounts/{quote(account.access_key, safe='')}"


async def _accounts(site: Site, visit: Visit) -> list[accounts.BrokerAccount]:
    """Return the accounts for an administrator. Raises: SparrowError."""
    site.check_writes(visit.session)
    try:
        return await site.watcher.driver.run(accounts.list_accounts(site.watcher.directory))
    except BrokerError:
        # Access control is off.
        return []


async def _account(site: Site, visit: Visit) -> list[FormField]:
    name = visit.request.path_params.get("account", "")
    known = next((a for a in await _accounts(site, visit) if a.access_key == name), None)
    perms = ("", "DENY", "PUB", "SUB", "PUB|SUB")
    return [
        FormField("account", "account", name, "fixed" if name else "text", is_required=True),
        FormField("secret", "secret key; empty leaves it" if known else "secret key", "", "secret"),
        FormField(
            "admin",
            "administrator",
            "yes" if known and known.is_admin else "no",
            choices=("yes", "no"),
        ),
        FormField("from", "from addresses", known.white_remote_address if known else ""),
        FormField(
            "topics", "all topics", known.default_topic_perm if known else "DENY", choices=perms
        ),
        FormField(
            "groups", "all groups", known.default_group_perm if known else "DENY", choices=perms
        ),
        FormField(
            "topic_perms",
            "topics",
            "\n".join(known.topic_perms) if known else "",
            "lines",
            hint="orders=PUB|SUB",
        ),
        FormField(
            "group_perms",
            "groups",
            "\n".join(known.group_perms) if known else "",
            "lines",
            hint="GID_orders=SUB",
        ),
    ]


async def _plan_account(site: Site, visit: Visit, values: Values) -> FormPlan:
    name = visit.request.path_params.get("account") or values["account"]
    found = await _accounts(site, visit)
    known = next((a for a in found if a.access_key == name), None)
    if known is None and not values["secret"]:
        raise UsageError(f"{name} is a new account; give its secret key")
    lines = {key: ",".join(values[key].split()) for key in ("topic_perms", "group_perms")}
    change = accounts.AccountChange(
        access_key=name,
        secret_key=values["secret"] or None,
        admin=values["admin"] == "yes",
        white_remote_address=values["from"],
        default_topic_perm=values["topics"] or None,
        default_group_perm=values["groups"] or None,
        topic_perms=lines["topic_perms"],
        group_perms=lines["group_perms"],
    )
    check_account(change)
    if not change.admin:
        accounts.check_administrators(found, name)
    row = (
        name,
        ("***" if known else None, "*** new" if values["secret"] else "***"),
        (known and known.is_admin, change.admin),
        (known and known.white_remote_address, values["from"]),
        (known and known.default_topic_perm, values["topics"]),
        (known and known.default_group_perm, values["groups"]),
        (known and ",".join(known.topic_perms), lines["topic_perms"]),
        (known and ",".join(known.group_perms), lines["group_perms"]),
    )
    columns = "account,secret key,administrator,from addresses,all topics,all groups,topics,groups"
    return FormPlan(
        preview(columns.split(","), [row]),
        _run(site, partial(accounts.put_account, site.watcher.directory, change)),
        "/accounts",
    )


async def _plan_account_end(site: Site, visit: Visit, values: Values) -> FormPlan:
    name = visit.request.path_params["account"]
    found = await _accounts(site, visit)
    rows = [(a.broker_name, a.access_key) for a in found if a.access_key == name]
    accounts.check_administrators(found, name)
    return FormPlan(
        preview(("broker", "account"), rows),
        _run(site, partial(accounts.delete_account, site.watcher.directory, name)),
        "/accounts",
        note="Clients that sign with this account are refused from then on.",
    )


def _deletion(*, title: str, kind: str, plan: Plan) -> ChangeForm:
    """Return the form that deletes what its address names."""

    async def fields(site: Site, visit: Visit) -> list[FormField]:
        return [FormField(kind, kind, visit.request.path_params[kind], "fixed")]

    return ChangeForm(title, button="Delete", fields=fields, plan=plan, is_danger=True)


FORMS: Mapping[str, ChangeForm] = {
    "/new-topic": ChangeForm(
        title="New topic", button="Create", fields=_new_topic, plan=_plan_new_topic
    ),
    "/topics/{topic}/settings": ChangeForm(
        title="Change the topic", button="Change", fields=_topic_settings, plan=_plan_topic_settings
    ),
    "/topics/{topic}/delete": _deletion(
        title="Delete the topic", kind="topic", plan=_plan_topic_end
    ),
    "/new-group": ChangeForm(
        title="New group", button="Create", fields=_group_settings, plan=_plan_group_settings
    ),
    "/groups/{group}/settings": ChangeForm(
        title="Change the group", button="Change", fields=_group_settings, plan=_plan_group_settings
    ),
    "/groups/{group}/delete": _deletion(
        title="Delete the group", kind="group", plan=_plan_group_end
    ),
    "/new-account": ChangeForm(
        title="New account", button="Create", fields=_account, plan=_plan_account
    ),
    "/accounts/{account}": ChangeForm(
        title="Change the account", button="Change", fields=_account, plan=_plan_account
    ),
    "/accounts/{account}/delete": _deletion(
        title="Delete the account", kind="account", plan=_plan_account_end
    ),
}
