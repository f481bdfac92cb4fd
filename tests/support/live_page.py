"""Somebody who has logged in to the live page of a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from sparrowmq.client.directory_setup import make_directory
from sparrowmq.dash.app import DashSettings, make_app, open_site
from sparrowmq.dash.lab import Lab
from sparrowmq.dash.login import Access
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import ShownCluster, Site

BASE = "http://127.0.0.1:8181"
PASSWORD, READER_PASSWORD = "abcd-efgh-jkmn-pqrs", "read-only2-only3-only4"


@dataclass(frozen=True)
class Reader:
    """Somebody who has logged in: a client, and what the page watches."""

    http: httpx.AsyncClient
    watcher: Watcher
    site: Site
    lab: Lab

    async def read(self, path: str, status: int = 200) -> str:
        """Get a page and return its text."""
        answer = await self.http.get(path)
        assert status == answer.status_code, answer.text
        return answer.text

    def token(self) -> str:
        """Return what a form of this session must carry."""
        session = self.site.access.find(self.http.cookies)
        assert session is not None
        return session.form_token


def make_access(*, allow_writes: bool = False) -> Access:
    return Access(
        PASSWORD,
        port=8181,
        allowed_hosts=["dash.example.com"],
        reader_password=READER_PASSWORD if allow_writes else None,
    )


@asynccontextmanager
async def reading(
    name_server: str, *more: ShownCluster, allow_writes: bool = False, **connecting: Any
) -> AsyncGenerator[Reader]:
    """Log in to the page of a cluster, whether it is there or not."""
    cluster = ShownCluster(
        name="first" if more else "",
        name_server=name_server,
        directory=make_directory(name_server, timeout_ms=5_000, **connecting),
    )
    settings = DashSettings(clusters=(cluster, *more), data=None)
    access = make_access(allow_writes=allow_writes)
    async with AsyncExitStack() as held:
        sites = [
            await held.enter_async_context(open_site(each, access, settings))
            for each in settings.clusters
        ]
        transport = httpx.ASGITransport(app=make_app(sites, access))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
            answer = await http.post("/login", data={"password": PASSWORD})
            assert answer.status_code == 303
            site, lab = sites[0]
            yield Reader(http, site.watcher, site, lab)
