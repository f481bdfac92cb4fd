"""Signatures of requests: RocketMQ's access control. Pure.

A client joins the *values* of its ext fields, `AccessKey` among them, in the order of their names
and without separators, and appends the body. The signature is the HMAC-SHA1 of this content under
the secret key, in base64. The server rebuilds the content from the request, without `Signature` and
`_UNIQUE_KEY_QUERY`.

SparrowMQ signs the content that a server rebuilds, as RocketMQ's clients do from 4.9.4 on. 4.9.3
signs the typed header alone, and its requests with further ext fields fail (golden `acl-*` with
`preExtFields`).

Source: RocketMQ 4.9.3 acl/common/AclUtils.java, AclSigner.java, AclClientRPCHook.java.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from sparrowmq.model.queue import java_order
from sparrowmq.protocol.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
# An ext field of QUERY_MESSAGE outside the typed header; servers leave it out of the content.
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"

_UNSIGNED = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})
_OF_THE_SIGNER = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The access key and secret key of an account; the secret never shows in a `repr`."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def sign_request(
    ext_fields: Mapping[str, str] | None, body: bytes | None, *, credentials: Credentials
) -> dict[str, str]:
    """Return the ext fields with access key, security token and signature added."""
    signed = dict(ext_fields or {})
    signed[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    signed[SIGNATURE] = compute_signature(
        signed_content(signed, body), secret_key=credentials.secret_key
    )
    return signed


def signed(request: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """Return a signed copy of a request; the caller may change the original and send it again."""
    fields = sign_request(request.ext_fields, request.body, credentials=credentials)
    return structs.replace(request, ext_fields=fields)


def without_signature(ext_fields: Mapping[str, str] | None) -> dict[str, str]:
    """Return the ext fields that may be passed on to another client.

    A signature covers neither the request's code nor the names of its fields. Whoever sees an
    account's signature of values that they chose can sign another request in the account's name.
    """
    fields = ext_fields or {}
    return {name: fields[name] for name in fields if name not in _OF_THE_SIGNER}


def is_signature_valid(
    ext_fields: Mapping[str, str], body: bytes | None, *, secret_key: str
) -> bool:
    """Return whether a request is signed with this secret key; compares in constant time."""
    expected = compute_signature(signed_content(ext_fields, body), secret_key=secret_key)
    claimed = ext_fields.get(SIGNATURE, "")
    return hmac.compare_digest(expected.encode(), claimed.encode("utf-8", "surrogatepass"))


def signed_content(ext_fields: Mapping[str, str], body: bytes | None) -> bytes:
    """Return the content that is signed."""
    names = sorted(ext_fields.keys() - _UNSIGNED)
    # To make a sort key of Java's order for each name would cost more than the signature.
    if not "".join(names).isascii():
        names.sort(key=java_order)
    return "".join([ext_fields[name] for name in names]).encode() + (body or b"")


def compute_signature(content: bytes, *, secret_key: str) -> str:
    """Return HMAC-SHA1 of the content in base64."""
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()
