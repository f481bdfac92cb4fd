"""Options that reads and writes share: account, namespace and TLS of their connections. Pure.

The TLS options name files and contain no secrets, so plans and checkpoints may show them. Every
machine that reads or writes must have the files. Tests: test_options.py, test_tls.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparrowmq.errors import ConfigError
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace, check_namespace
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.spark.option_table import Option, parse_bool, parse_text


class TlsFiles(NamedTuple):
    """The arguments of `calling.tls.client_context`."""

    ca_file: str | None
    certificate_file: str | None
    key_file: str | None
    check_hostname: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of a read or a write that name the cluster and the account."""

    name_servers: tuple[str, ...]
    request_timeout_ms: int
    credentials: Credentials | None = None
    tls: TlsFiles | None = None
    namespace: Namespace = NO_NAMESPACE


USE_TLS = "useTLS"

TLS_OPTIONS: tuple[Option, ...] = (
    Option(
        USE_TLS,
        "false",
        parse_bool,
        "connect to name servers and brokers by TLS and check their certificates",
    ),
    Option(
        "tlsCaFile",
        None,
        parse_text,
        "the PEM file of the trusted authorities, on every machine; without the option, the "
        "system's authorities are trusted",
    ),
    Option(
        "tlsCertificateFile",
        None,
        parse_text,
        "the PEM file of the client's certificate, for brokers that require one",
    ),
    Option(
        "tlsKeyFile",
        None,
        parse_text,
        "the PEM file of the certificate's key, unless tlsCertificateFile contains the key",
    ),
    Option(
        "tlsCheckHostname",
        "true",
        parse_bool,
        "whether a server's certificate must name the address that the client connects to; "
        "brokers mostly register IP addresses",
    ),
)


CONNECTION_OPTIONS: tuple[Option, ...] = (
    Option(
        "accessKey",
        None,
        parse_text,
        "the access key of the account at brokers with access control",
    ),
    Option(
        "secretKey",
        None,
        parse_text,
        "the secret of accessKey, which signs every request",
        is_secret=True,
    ),
    Option(
        "securityToken", None, parse_text, "the security token of temporary keys", is_secret=True
    ),
    Option(
        "namespace",
        None,
        check_namespace,
        "the namespace of topics and groups: a prefix of their names on the wire, as in "
        "ns%orders; names in options, offsets and rows have no prefix",
    ),
    *TLS_OPTIONS,
)


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return options, whose names have any case, with *** in place of secrets."""
    secret = {option.name.lower() for option in CONNECTION_OPTIONS if option.is_secret}
    return {name: "***" if name.lower() in secret else text for name, text in options.items()}


def take_connection(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ClusterOptions` but the time-out; remove their options from `values`.

    Raises: ConfigError for an access key without its secret, a token without both, or a TLS option
    without `useTLS`.
    """
    access_key, secret_key, security_token = (
        values.pop(name) for name in ("access_key", "secret_key", "security_token")
    )
    if (access_key is None) != (secret_key is None):
        raise ConfigError("give both options 'accessKey' and 'secretKey', or neither")
    if security_token is not None and access_key is None:
        raise ConfigError("option 'securityToken' needs options 'accessKey' and 'secretKey'")
    credentials = None
    if access_key is not None:
        credentials = Credentials(
            access_key=access_key, secret_key=secret_key, security_token=security_token
        )
    return {
        "name_servers": values.pop("name_server") or (),
        "credentials": credentials,
        "tls": _take_tls(values, given),
        "namespace": values.pop("namespace") or NO_NAMESPACE,
    }


def _take_tls(values: dict[str, Any], given: Mapping[str, Any]) -> TlsFiles | None:
    """Return the TLS options' values and remove them from `values`; None for no TLS."""
    is_used = values.pop("use_t_l_s")
    files = TlsFiles(
        values.pop("tls_ca_file"),
        values.pop("tls_certificate_file"),
        values.pop("tls_key_file"),
        values.pop("tls_check_hostname"),
    )
    if is_used:
        return files
    useless = [option.name for option in TLS_OPTIONS if option.name in given]
    if useless and useless != [USE_TLS]:
        raise ConfigError(
            f"option {useless[-1]!r} needs option {USE_TLS!r}; "
            f'write .option("{USE_TLS}", "true"), or leave both out'
        )
    return None
