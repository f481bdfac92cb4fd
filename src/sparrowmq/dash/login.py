"""Access to the page: a password for each run, sessions, and checks of every request.

The server makes the password at its start and shows it once. A session is a random cookie that
scripts cannot read. Three checks keep out other sites in the same browser: the Host must be an
address, `localhost` or an allowed name, which a name rebound to this machine is not; a form must
carry its session's token; and the browser must not report that another site sent the form. The
policy of every answer lets a page load only this server's files and run no inline script.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.errors import ConfigError, UsageError

LOG = logging.getLogger("sparrowmq.dash")
# A password has 16 of these 31 signs, which cannot be mistaken for one another: 79 bits.
_SIGNS = "23456789abcdefghjkmnpqrstuvwxyz"
_PASSWORD_GROUPS, _GROUP_LENGTH = 4, 4
SESSION_MS = 12 * 3_600_000
# One session more ends the oldest.
SESSIONS_MAX = 64
# Secrets of forms in a session; one more ends the oldest.
HELD_MAX = 4
_HANDLE_START = "held:"
# A form of the page is far smaller.
FORM_BYTES_MAX = 65_536
FORM_TIMEOUT_S = 10

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def make_password() -> str:
    """Make a password that can be read aloud: four groups of four signs."""
    groups = (
        "".join(secrets.choice(_SIGNS) for _ in range(_GROUP_LENGTH))
        for _ in range(_PASSWORD_GROUPS)
    )
    return "-".join(groups)


@dataclass(frozen=True, slots=True)
class Session:
    """A login; every form of the session carries `form_token`.

    `is_reader` is True after the password for those who may only read.
    """

    form_token: str
    until_ms: int
    may_write: bool
    is_reader: bool
    # Secrets of forms that were previewed, by what stands for them on the page.
    held: dict[str, str] = field(default_factory=dict, repr=False)

    def hold(self, secret: str) -> str:
        """Keep a secret until its form is confirmed; return what stands for it on the page."""
        while len(self.held) >= HELD_MAX:
            del self.held[next(iter(self.held))]
        handle = _HANDLE_START + secrets.token_urlsafe(32)
        self.held[handle] = secret
        return handle

    def find_held(self, text: str) -> str:
        """Return the secret that a form's text stands for, or the text itself.

        Raises: UsageError if the secret is no longer kept.
        """
        if not text.startswith(_HANDLE_START):
            return text
        secret = self.held.get(text)
        if secret is None:
            raise UsageError("other forms were previewed since; fill in the form again")
        return secret


class Access:
    """The password and the sessions.

    Args:
        password: the password of this run.
        reader_password: the password for those who may only read; None lets nobody write.
        port: the page's port, which the cookie's name contains: the ports of a host share cookies.
        allowed_hosts: allowed names in the Host header, besides addresses and `localhost`.
    """

    def __init__(
        self,
        password: str,
        *,
        port: int,
        allowed_hosts: Iterable[str] = (),
        reader_password: str | None = None,
    ) -> None:
        self._password = password.encode()
        self._reader_password = None if reader_password is None else reader_password.encode()
        self.cookie = f"sparrowmq_{port}"
        self._hosts = frozenset(name.lower() for name in allowed_hosts) | {"localhost"}
        self._sessions: dict[str, Session] = {}

    def log_in(self, password: str) -> str | None:
        """Return the token of a new session; None if the password is wrong."""
        given = password.strip().encode()
        is_first = hmac.compare_digest(given, self._password)
        if not is_first and not hmac.compare_digest(given, self._reader_password or self._password):
            return None
        may_write = is_first and self._reader_password is not None
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = Session(
            secrets.token_urlsafe(32),
            monotonic_ms() + SESSION_MS,
            may_write=may_write,
            is_reader=not is_first,
        )
        return token

    def log_out(self, cookies: Mapping[str, str]) -> None:
        """End the session of a request."""
        self._sessions.pop(cookies.get(self.cookie, ""), None)

    def find(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the session of a request; None without one, or after the session's end."""
        token = cookies.get(self.cookie, "")
        session = self._sessions.get(token)
        if session is not None and session.until_ms < monotonic_ms():
            del self._sessions[token]
            return None
        return session

    def allows_host(self, host: str) -> bool:
        """Return whether a request's Host is an address, `localhost` or an allowed name."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _UnsentError(Exception):
    """The connection takes no answer any more."""


class Guard:
    """Refuses requests that this server's pages never send, and adds the policy to answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._log = BoundedLog(LOG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            try:
                await send(message)
            except Exception as error:
                raise _UnsentError from error

        problem = self._find_problem(scope["method"], Headers(scope=scope))
        app = self._app
        if problem is not None:
            status, text = problem
            app = PlainTextResponse(f"{text}\n", status_code=status)
        try:
            await app(scope, receive, send_guarded)
        except _UnsentError:
            # A peer that broke its request in the middle: nobody has done anything wrong here.
            pass
        except Exception as error:
            # The answer is sent. uvicorn would write the traceback of each request.
            kind = ("page", type(error))
            self._log.log(logging.ERROR, kind, "a page cannot be made", error=error)

    def _find_problem(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._access.allows_host(host):
            return 421, f"this page is not at {host[:100]!r}; use its address, or --allow-host"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "only GET, HEAD and POST are served"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_foreign = origin is not None and origin.partition("://")[2] != host
        if is_foreign or site not in ("same-origin", "none"):
            return 403, "another site sent this form"
        return None


async def read_form(request: Request) -> dict[str, str]:
    """Read a form of at most `FORM_BYTES_MAX`.

    Raises: UsageError if it is not a form, or too large or late, or ends early.
    """
    body = b""
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > FORM_BYTES_MAX:
                    raise UsageError(f"the form is larger than {FORM_BYTES_MAX} bytes")
    except ClientDisconnect:
        raise UsageError("the connection ended before the form") from None
    except TimeoutError:
        raise UsageError(f"the form did not come within {FORM_TIMEOUT_S} s") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=64))
    except ValueError:
        raise UsageError("the form cannot be read") from None


def check_form_token(form: Mapping[str, str], session: Session) -> None:
    """Raise a UsageError unless the form carries this session's token."""
    if not hmac.compare_digest(form.get("token", "").encode(), session.form_token.encode()):
        raise UsageError("the form is of an old session; load the page again")


def check_host_name(name: str) -> str:
    """Return a host name. Raises: ConfigError if it is none."""
    if not name or any(sign in name for sign in "/:@ "):
        raise ConfigError(
            f"--allow-host {name!r} is not a name of a host, such as dash.example.com"
        )
    return name
