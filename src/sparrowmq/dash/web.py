"""The shell of all pages: the frame around them, table formats, errors, live news.

Tests: test_pages.py, test_login.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from sparrowmq.client.directory import Directory
from sparrowmq.client.publisher import Publisher
from sparrowmq.dash.login import Access, Session, check_form_token, read_form
from sparrowmq.dash.strips import draw_hatches
from sparrowmq.dash.tables import PageTable, arrange, with_problems, write_csv, write_json
from sparrowmq.dash.watcher import Watcher
from sparrowmq.errors import ConfigError, SparrowError, UsageError
from sparrowmq.words import format_number, format_rate
from sparrowmq.words.catalog import LANGUAGES, Words, choose_language

HERE = Path(__file__).parent
THEMES = ("auto", "light", "dark")
# The paths of the pages, in the order of the navigation, with their names in the catalogue.
PAGES = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/messages", "Messages"),
    ("/dead-letters", "Dead letters"),
    ("/brokers", "Brokers"),
    ("/doctor", "Doctor"),
    ("/simulator", "Simulator"),
    ("/lab", "Lab"),
)
# The page for administrators.
ACCOUNTS = ("/accounts", "Accounts")
_YEAR_S = 365 * 86_400
# The most open streams of news; a browser opens one for each visible tab.
STREAMS_MAX = 64
# A stream sends a sign of life so often; a page that receives none asks again.
STREAM_BEAT_S = 10.0
# A page that follows messages gets no news from the watcher, so it asks again so often.
FOLLOWED, FOLLOW_S = "messages", 2.0
# No page needs a longer query; browsers allow little more.
QUERY_LENGTH_MAX = 8_192


def group_href(name: str) -> str:
    """Return the URL of a group's page."""
    return f"/groups/{quote(name, safe='')}"


def topic_href(topic: str) -> str:
    """Return the URL of a topic's page."""
    return f"/topics/{quote(topic, safe='')}"


def letters_href(group: str, **query: object) -> str:
    """Return the URL of a group's dead letters."""
    return f"/dead-letters?{urlencode({'group': group, **query})}"


def messages_href(topic: str, **query: object) -> str:
    """Return the URL of a topic's messages."""
    return f"/messages?{urlencode({'topic': topic, **query})}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCluster:
    """A cluster: its name among several, its name servers, and its connections' settings."""

    name: str
    name_server: str
    directory: Directory

    @property
    def options(self) -> tuple[str, ...]:
        """The options of commands that look at the cluster."""
        return "--nameserver", self.name_server

    @property
    def root(self) -> str:
        """The beginning of the paths of the cluster's pages; "" if the page shows no other."""
        return f"/clusters/{self.name}" if self.name else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page: its template, its title in the catalogue's English and the template's values.

    Args:
        name: what the page shows, which is the title in each language.
        tables: the page's tables; the URL sorts and searches the first.
        group: the group that the page shows; the watcher looks at it more often meanwhile.
        news: the subject that the page follows if `group` is None: "" is the cluster; None follows
            nothing.
        problems: why parts of the tables are missing; files of the tables say so too.
    """

    template: str
    title: str = ""
    name: str = ""
    context: Mapping[str, object] = field(default_factory=dict)
    tables: Sequence[PageTable] = ()
    group: str | None = None
    news: str | None = ""
    problems: Sequence[str] = ()
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request within a session."""

    request: Request
    session: Session
    words: Words
    query: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Visit], Awaitable[View | Response]]


class Site:
    """The pages' shell.

    Args:
        watcher: looks at the cluster.
        access: the password and the sessions.
        cluster: the cluster that the pages show; among several, one without a name stands for all.
        clusters: the clusters to choose from; empty if there is only one.
        publisher: sends the messages of forms.
    """

    def __init__(
        self,
        watcher: Watcher,
        access: Access,
        *,
        cluster: ShownCluster,
        clusters: Sequence[ShownCluster] = (),
        publisher: Publisher,
    ) -> None:
        self.watcher = watcher
        self.access = access
        self.cluster = cluster
        self.publisher = publisher
        self._is_of_all = bool(clusters) and not cluster.name
        self._streams = 0
        self._pages = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._pages.filters |= {
            "number": format_number,
            "rate": format_rate,
            "path": _quote_part,
            "code": _mark_code,
        }
        names: dict[str, Any] = self._pages.globals
        names |= {
            "version": version("sparrowmq"),
            "hatches": draw_hatches(),
            "root": cluster.root,
            "cluster": cluster,
            "clusters": clusters,
            "watcher": watcher,
            "letters_href": letters_href,
            "messages_href": messages_href,
        }

    def check_writes(self, session: Session) -> None:
        """Raise a UsageError unless the session may change the cluster."""
        if not session.may_write:
            raise UsageError(
                "this page only reads; start it with --allow-writes, and log in with the "
                "administrator's password, to change things"
            )

    def page(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a page's handler: require a login, and show an error as one clear line."""

        async def serve(request: Request) -> Response:
            session = self.access.find(request.cookies)
            if session is None:
                return self._send_to_login(request)
            words = self._words(request)
            query = {key: value[:QUERY_LENGTH_MAX] for key, value in request.query_params.items()}
            visit = Visit(request=request, session=session, words=words, query=query)
            try:
                if request.method == "POST":
                    form = await read_form(request)
                    check_form_token(form, session)
                    visit = Visit(
                        request=request, session=session, words=words, query=query, form=form
                    )
                found = await handler(visit)
            except SparrowError as error:
                found = _error_view(error, is_live=request.method != "POST")
            if isinstance(found, RedirectResponse):
                found.headers["location"] = self.cluster.root + found.headers["location"]
            if isinstance(found, Response):
                return found
            return self._respond(visit, found)

        return serve

    def _respond(self, visit: Visit, view: View) -> Response:
        kind = visit.query.get("format", "")
        if kind in ("csv", "json") and view.tables:
            wanted = visit.query.get("table", view.tables[0].name)
            table = next((t for t in view.tables if t.name == wanted), view.tables[0])
            table = arrange(table, visit.query, turns=False)
            return _file(with_problems(table, view.problems), kind)
        tables = [arrange(table, visit.query) for table in view.tables[:1]]
        tables += view.tables[1:]
        html = self.render(
            visit.request,
            view.template,
            title=view.name or visit.words(view.title),
            session=visit.session,
            tables={table.name: table for table in tables},
            watched=view.group,
            news=view.news,
            problems=view.problems,
            **view.context,
        )
        response = HTMLResponse(html, status_code=view.status)
        return self._keep_choices(visit.request, response)

    def render(
        self, request: Request, template: str, *, session: Session | None, **context: object
    ) -> str:
        """Render a template with the values that all pages share."""
        words = self._words(request)
        theme = request.query_params.get("theme", request.cookies.get("sparrowmq_theme", "auto"))

        may_write = session is not None and session.may_write
        pages = () if self._is_of_all else (*PAGES, ACCOUNTS) if may_write else PAGES

        def link(**changes: object) -> str:
            """Return this page's URL with changed parameters; None removes a parameter."""
            query = dict(request.query_params)
            for transient in ("lang", "theme", "format", "table"):
                query.pop(transient, None)
            for key, value in changes.items():
                if value is None:
                    query.pop(key, None)
                else:
                    query[key] = str(value)
            text = urlencode(query)
            return quote(request.url.path) + (f"?{text}" if text else "")

        return self._pages.get_template(template).render(
            _=words,
            words=words,
            count_of=words.count,
            languages=LANGUAGES,
            themes=THEMES,
            pages=pages,
            session=session,
            theme=theme if theme in THEMES else "auto",
            link=link,
            path=request.url.path.removeprefix(self.cluster.root),
            query=request.query_params,
            allow_writes=may_write,
            **context,
        )

    def _words(self, request: Request) -> Words:
        return Words(
            choose_language(
                request.query_params.get("lang"),
                request.cookies.get("sparrowmq_lang"),
                request.headers.get("accept-language", ""),
            )
        )

    def _keep_choices(self, request: Request, response: Response) -> Response:
        """Keep the URL's language and colours; another window may have chosen others since."""
        if "x-live" in request.headers:
            return response
        for name, allowed in (("lang", LANGUAGES), ("theme", THEMES)):
            chosen = request.query_params.get(name)
            if chosen is not None and chosen in allowed:
                response.set_cookie(
                    f"sparrowmq_{name}", chosen, max_age=_YEAR_S, httponly=True, samesite="lax"
                )
        return response

    def _send_to_login(self, request: Request) -> Response:
        if "x-live" in request.headers:
            return Response(status_code=401)
        here = quote(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
        if request.url.path.endswith("/logout"):
            # The session has ended already.
            here = f"{self.cluster.root}/"
        login = f"{self.cluster.root}/login?{urlencode({'next': here})}"
        return self._keep_choices(request, RedirectResponse(login, status_code=303))

    async def log_in(self, request: Request) -> Response:
        """Show the password's form, or check a password."""
        problem, status = "", 200
        target = request.query_params.get("next", f"{self.cluster.root}/")
        if request.method == "POST":
            try:
                form = await read_form(request)
                token = self.access.log_in(form.get("password", ""))
                target = form.get("next", target)
            except UsageError:
                token = None
            if token is not None:
                response = RedirectResponse(_safe_target(target), status_code=303)
                response.set_cookie(
                    self.access.cookie,
                    token,
                    httponly=True,
                    samesite="lax",
                    secure=request.url.scheme == "https",
                )
                return response
            problem, status = "This is not the password.", 403
        words = self._words(request)
        html = self.render(
            request,
            "login.html",
            title=words("Log in"),
            session=None,
            problem=words(problem) if problem else "",
            target=_safe_target(target),
            news=None,
            watched=None,
        )
        return self._keep_choices(request, HTMLResponse(html, status_code=status))

    async def log_out(self, visit: Visit) -> Response:
        """End the session."""
        self.access.log_out(visit.request.cookies)
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(self.access.cookie)
        return response

    async def stream(self, visit: Visit) -> Response:
        """Stream news: notify a page of each newer version, which the page then requests."""
        if self._streams >= STREAMS_MAX:
            return Response("too many open pages\n", status_code=503, headers={"retry-after": "5"})
        group = visit.query.get("group") or None
        if group is not None:
            await self.watcher.find(group)

        subject = group or visit.query.get("of", "")
        follows = visit.query.get("of") == FOLLOWED
        beat_s = FOLLOW_S if follows else STREAM_BEAT_S

        async def events() -> AsyncIterator[str]:
            self._streams += 1
            try:
                with self.watcher.showing(group):
                    seen = self.watcher.version(subject)
                    yield "retry: 1000\n\n"
                    while self.access.find(visit.request.cookies) and not self.watcher.is_over:
                        now = await self.watcher.wait(subject, seen, timeout_s=beat_s)
                        if now == seen and not follows:
                            # An event, since scripts do not hear of comments.
                            yield "event: beat\ndata: {}\n\n"
                        else:
                            seen = now
                            yield f"event: news\ndata: {json.dumps({'version': now})}\n\n"
                    yield "event: over\ndata: {}\n\n"
            finally:
                self._streams -= 1

        return StreamingResponse(events(), media_type="text/event-stream")


def _error_view(error: SparrowError, *, is_live: bool) -> View:
    """Return the page of an error; a page that is live asks for its URL again."""
    status = 400 if isinstance(error, ConfigError | UsageError) else 503
    return View(
        template="error.html",
        title="This cannot be shown",
        context={"problem": str(error)},
        news="" if is_live else None,
        status=status,
    )


def _file(table: PageTable, kind: str) -> Response:
    text, media = (
        (write_csv(table), "text/csv") if kind == "csv" else (write_json(table), "application/json")
    )
    return Response(
        text,
        media_type=media,
        headers={"content-disposition": f'attachment; filename="{table.name}.{kind}"'},
    )


def _safe_target(target: str) -> str:
    """Return the target if it is a path on this server, otherwise `/`: no login leads elsewhere."""
    is_here = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_here and target.isprintable() else "/"


def _quote_part(text: object) -> str:
    return quote(str(text), safe="")


def _mark_code(text: str) -> Markup:
    """Show as code what stands in backquotes."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
