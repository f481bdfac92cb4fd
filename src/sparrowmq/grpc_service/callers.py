"""Who calls: the metadata of a call, and its signature.

The signature covers the time alone, not the request: the pair can be sent again. Clients format
their local time as UTC, so no window of time can be enforced. Source: the signatures of the
official clients, AuthenticationContext builders of 5.5.0.
 Tests: test_server.py.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from sparrowmq.grpc_service.messages import Code
from sparrowmq.grpc_service.statuses import Rejected
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.serving.access_control import AccessControl

CLIENT_ID_LENGTH_MAX = 512
_SCHEME = "MQv2-HMAC-SHA1"


class Caller(NamedTuple):
    """The client of a call.

    Args:
        address: its address as `ip:port`.
        language: the language that it names, OTHER for one without a code.
        credentials: its account, whose signature was checked; None without access control.
        version: the version of the client's library, as it names it.
    """

    client_id: str
    address: str
    language: LanguageCode
    credentials: Credentials | None
    version: str = ""


def identify(metadata: Mapping[str, str], peer: str, access: AccessControl | None) -> Caller:
    """Return the caller.

    Args:
        metadata: the call's metadata.
        peer: the peer as gRPC writes it.
        access: the access rules; None allows everything.

    Raises: Rejected.
    """
    client_id = metadata.get("x-mq-client-id", "").strip()
    if not client_id:
        raise Rejected(Code.CLIENT_ID_REQUIRED, "the metadata has no x-mq-client-id")
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        text = f"x-mq-client-id has {len(client_id)} characters, more than {CLIENT_ID_LENGTH_MAX}"
        raise Rejected(Code.BAD_REQUEST, text)
    address = _address_of(peer)
    credentials = None if access is None else _authenticate(metadata, address, access)
    language = _LANGUAGES.get(metadata.get("x-mq-language", "").upper(), LanguageCode.OTHER)
    version = metadata.get("x-mq-client-version", "").strip()
    return Caller(client_id, address, language, credentials, version)


_LANGUAGES = {language.name: language for language in LanguageCode} | {
    "GOLANG": LanguageCode.GO,
    "DOT_NET": LanguageCode.DOTNET,
}


def _authenticate(metadata: Mapping[str, str], address: str, access: AccessControl) -> Credentials:
    scheme, _, items = metadata.get("authorization", "").partition(" ")
    given: dict[str, str] = {}
    for item in items.split(","):
        name, _, text = item.strip().partition("=")
        given[name] = text
    access_key = given.get("Credential", "").partition("/")[0]
    if scheme != _SCHEME or not access_key:
        text = f"the call is not signed: give the client an access key ({_SCHEME})"
        raise Rejected(Code.UNAUTHORIZED, text)
    secret_key = access.find_secret(access_key)
    signed = metadata.get("x-mq-date-time", "")
    expected = hmac.new((secret_key or "").encode(), signed.encode(), "sha1").hexdigest()
    claimed = given.get("Signature", "").lower()
    is_valid = hmac.compare_digest(expected.encode(), claimed.encode())
    if secret_key is None or not is_valid:
        raise Rejected(Code.UNAUTHORIZED, f"wrong signature for access key {access_key[:64]}")
    # Routes, assignments and settings are answered without the broker, which would check this.
    stranger = access.find_stranger(access_key, address)
    if stranger is not None:
        raise Rejected(Code.UNAUTHORIZED, stranger)
    return Credentials(access_key=access_key, secret_key=secret_key)


def _address_of(peer: str) -> str:
    """Return the address in `ipv4:1.2.3.4:5` or `ipv6:[::1]:5`, whose brackets may be quoted."""
    kind, _, address = unquote(peer).partition(":")
    return address if kind in ("ipv4", "ipv6") else "127.0.0.1:0"
