"""Somebody who has logged in to the live page of a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from sparrowmq.client.assembly import make_directory, make_publisher
from sparrowmq.dash.app import DashSettings, make_app, watching
from sparrowmq.dash.lab import Lab
from sparrowmq.dash.login import Access
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import Site
from sparrowmq.model.names import COMMAND_PRODUCER_GROUP

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


def make_site(watcher: Watcher, name_server: str, *, allow_writes: bool = False) -> Site:
    access = Access(
        PASSWORD,
        port=8181,
        allowed_hosts=["dash.example.com"],
        reader_password=READER_PASSWORD if allow_writes else None,
    )
    publisher = make_publisher(COMMAND_PRODUCER_GROUP, name_server=name_server)
    return Site(watcher, access, cluster=name_server, publisher=publisher)


@asynccontextmanager
async def reading(
    name_server: str, *, allow_writes: bool = False, **connecting: Any
) -> AsyncGenerator[Reader]:
    """Log in to the page of a cluster, whether it is there or not."""
    directory = make_directory(name_server, timeout_ms=5_000, **connecting)
    settings = DashSettings(directory=directory, nameserver=name_server, data=None)
    async with watching(settings) as watcher:
        site = make_site(watcher, name_server, allow_writes=allow_writes)
        lab = Lab(watcher)
        transport = httpx.ASGITransport(app=make_app(site, lab))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
            answer = await http.post("/login", data={"password": PASSWORD})
            assert answer.status_code == 303
            try:
                yield Reader(http, watcher, site, lab)
            finally:
                await lab.stop()
