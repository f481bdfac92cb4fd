"""The form that sends a message: a new one, or one that exists, changed or not.

A message of a topic is sent to the topic again; a dead letter to its own group alone. The copy says
who sent it, as `sparrowmq msg resend` and `dlq resend` do. Tests: test_change_forms.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.client.operations.dead_letters import (
    read_dead_letters,
    resend_dead_letter,
    resend_dead_letters,
)
from sparrowmq.client.operations.resend import Edit, copy_message, find_resends, place_of
from sparrowmq.client.operations.routes import get_route
from sparrowmq.client.operations.send import send
from sparrowmq.client.operations.topics import look_at_topic
from sparrowmq.dash.change_forms import ChangeForm, FormField, FormPlan, Values, preview
from sparrowmq.dash.message_pages import SEARCHED_MAX, find_message, shorten, text_filter
from sparrowmq.dash.message_pages import preview as preview_body
from sparrowmq.dash.tables import PAGE_ROWS
from sparrowmq.dash.web import Site, Visit, letters_href, messages_href
from sparrowmq.errors import TopicRouteNotFound, UsageError
from sparrowmq.model import Message, MessageExt
from sparrowmq.model.message import RESERVED_PROPERTIES
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, check_group, check_topic, dlq_topic
from sparrowmq.model.plain_text import write_argument
from sparrowmq.model.spelling import spell_queue

# A longer body, or one that is not a text, is sent as it is.
EDITED_BYTES_MAX = 16_384
# The dead letters that one form sends again: as many as its preview shows.
RESENT_MAX = PAGE_ROWS


async def _fields(site: Site, visit: Visit) -> list[FormField]:
    if "offset" not in visit.request.path_params:
        topic = visit.request.path_params["topic"]
        return [FormField("topic", "topic", topic, "fixed"), *_content("", "", "", {})]
    message = await find_message(site.watcher, visit.request.path_params)
    text = _editable(message.body)
    return [
        FormField("topic", "topic", message.topic, "fixed"),
        *_content(text, message.tags or "", " ".join(message.keys), _own(message)),
    ]


def _content(
    body: str | None, tag: str, keys: str, properties: Mapping[str, str]
) -> tuple[FormField, ...]:
    lines = "\n".join(f"{name}={value}" for name, value in sorted(properties.items()))
    text = (
        FormField("body", "body", body, "lines")
        if body is not None
        else FormField("body_kept", "body", "sent as it is", "fixed")
    )
    return (
        text,
        FormField("tag", "tag", tag),
        FormField("keys", "keys", keys),
        FormField("properties", "Properties", lines, "lines", hint="NAME=VALUE"),
    )


def _own(message: MessageExt) -> dict[str, str]:
    """Return the properties that a user may set; a value of several lines is not shown."""
    own = {n: v for n, v in message.properties.items() if n not in RESERVED_PROPERTIES}
    return {n: v for n, v in own.items() if v.isprintable() and "=" not in n}


def _editable(body: bytes) -> str | None:
    try:
        text = body.decode() if len(body) <= EDITED_BYTES_MAX else "\0"
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\t\n" for c in text) else None


def _body_of(text: str) -> bytes:
    # Browsers send a form's line breaks as CR LF.
    return text.replace("\r\n", "\n").encode()


def _read_properties(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if line.strip() and not (name and equals):
            raise UsageError(f"{line!r} is not a property; write NAME=VALUE")
        if name:
            found[name] = value
    return found


async def _plan(site: Site, visit: Visit, values: Values) -> FormPlan:
    place = visit.request.path_params
    by = _sender(visit)
    properties = _read_properties(values["properties"])
    run, directory = site.watcher.driver.run, site.watcher.directory
    # The field of the form, whose ends are part of the body.
    body = _body_of(visit.form.get("body", ""))
    if "offset" not in place:
        message = Message(
            check_topic(place["topic"]),
            body,
            tags=values["tag"] or None,
            keys=tuple(values["keys"].split()),
            properties=properties,
        )
        await run(get_route(directory, message.topic))
        shown = [message.topic, values["tag"], values["keys"], values["properties"]]
        return FormPlan(
            preview(("topic", "tag", "keys", "Properties", "body"), [[*shown, preview_body(body)]]),
            lambda: run(send(site.publisher, message)),
            messages_href(message.topic),
        )
    found = await find_message(site.watcher, place)
    own = _own(found)
    edit = Edit(
        None if "body" not in visit.form or body == found.body else body,
        None if values["tag"] == (found.tags or "") else values["tag"],
        None if values["keys"].split() == list(found.keys) else tuple(values["keys"].split()),
        {n: properties.get(n, "") for n in {*own, *properties} if own.get(n) != properties.get(n)},
    )
    copy = edit.apply(found)
    row = (
        found.msg_id,
        (found.tags, copy.tags),
        (" ".join(found.keys), " ".join(copy.keys)),
        tuple(" ".join(f"{n}={v}" for n, v in sorted(_own(m).items())) for m in (found, copy)),
        (preview_body(found.body), preview_body(copy.body)),
    )
    table = preview(("id", "tag", "keys", "Properties", "body"), [row])
    group = found.topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX)
    if group != found.topic:
        return FormPlan(
            table,
            lambda: run(resend_dead_letter(directory, group, found, edit=edit, by=by)),
            letters_href(group, done=1),
            note="No other group receives the message, and the dead letter stays in its topic.",
        )
    return FormPlan(
        table,
        lambda: run(send(site.publisher, copy_message(copy, by=by, timestamp_ms=timestamp_ms()))),
        messages_href(found.topic),
        note="Every group of the topic receives the copy.",
    )


def _sender(visit: Visit) -> str:
    return f"live page, {visit.request.client.host if visit.request.client else '?'}"


async def _letters(site: Site, visit: Visit) -> list[FormField]:
    group = check_group(visit.query.get("group", ""))
    look = look_at_topic(site.watcher.directory, dlq_topic(group))
    try:
        status, _ = await site.watcher.driver.run(look)
        queues = status.queues
    except TopicRouteNotFound:
        queues = ()
    ends = {spell_queue(each.queue): each.max_offset for each in queues}
    return [
        FormField("group", "group", group, "fixed"),
        FormField("text", "with the text", visit.query.get("text", "")),
        FormField("again", "also those sent again before", "no", choices=("no", "yes")),
        # A letter that comes between the form and the change is not sent.
        FormField("ends", "", msgspec.json.encode(ends).decode(), "hidden"),
    ]


async def _plan_letters(site: Site, visit: Visit, values: Values) -> FormPlan:
    group, directory, run = values["group"], site.watcher.directory, site.watcher.driver.run
    try:
        ends = msgspec.json.decode(values["ends"], type=dict[str, int])
    except msgspec.DecodeError as error:
        raise UsageError("the form is not whole; load the page again") from error
    has_text = text_filter(values["text"])
    found = await run(read_dead_letters(directory, group, count_max=SEARCHED_MAX))
    resends = await run(find_resends(directory, group, found))
    letters = [
        letter
        for letter in found
        if letter.queue_offset < ends.get(spell_queue(letter.queue), 0)
        and has_text(letter)
        and (values["again"] == "yes" or place_of(letter) not in resends)
    ]
    if len(letters) > RESENT_MAX:
        raise UsageError(
            f"{len(letters)} dead letters would be sent again, and a form sends at most "
            f"{RESENT_MAX}; name a text, or run sparrowmq dlq resend {write_argument(group)}"
        )
    rows = [
        (each.msg_id, shorten(" ".join(each.keys)), preview_body(each.body)) for each in letters
    ]
    return FormPlan(
        preview(("id", "keys", "body"), rows),
        lambda: run(resend_dead_letters(directory, group, letters, by=_sender(visit))),
        letters_href(group, done=len(letters)),
        note="No other group receives the messages, and the dead letters stay in their topic.",
    )


SEND_FORMS: Mapping[str, ChangeForm] = {
    "/topics/{topic}/send": ChangeForm(
        title="Send a message", button="Send", fields=_fields, plan=_plan
    ),
    "/messages/{topic}/{broker}/{queue}/{offset}/send": ChangeForm(
        title="Send the message again", button="Send again", fields=_fields, plan=_plan
    ),
    "/dead-letters/resend": ChangeForm(
        title="Send the dead letters again",
        button="Send again",
        fields=_letters,
        plan=_plan_letters,
    ),
}
