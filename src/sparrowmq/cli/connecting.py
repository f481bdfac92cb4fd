"""How subcommands connect that look at a cluster: the options, and what becomes of them."""

from __future__ import annotations

import ssl
from typing import Annotated

import typer

from sparrowmq.calling.tls import client_context
from sparrowmq.config import find_setting

TlsCa = Annotated[str, typer.Option("--tls-ca", help=find_setting("tls-ca").help)]


def client_tls(tls_ca: str) -> ssl.SSLContext | None:
    """Return what clients take as `tls`. Raises: ConfigError that names the file."""
    return client_context(ca_file=tls_ca) if tls_ca else None
