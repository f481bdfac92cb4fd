from __future__ import annotations

from typing import Any

from golden import each_case
from sparrowmq.protocol.bodies import PlainAccessConfig
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import UpdateAccessConfigRequestHeader
from sparrowmq.protocol.signatures import (
    Credentials,
    compute_signature,
    is_signature_valid,
    sign_request,
    signed_content,
)


def body_of(case: dict[str, Any]) -> bytes | None:
    return None if case["bodyHex"] is None else bytes.fromhex(case["bodyHex"])


def credentials_of(case: dict[str, Any]) -> Credentials:
    return Credentials(
        access_key=case["accessKey"],
        secret_key=case["secretKey"],
        security_token=case["securityToken"],
    )


@each_case("acl.jsonl", "acl-")
def test_signature_over_a_header_is_that_of_java(case: dict[str, Any]) -> None:
    signed = sign_request(case["headerFields"], body_of(case), credentials=credentials_of(case))

    assert case["signature"] == signed["Signature"]
    assert bytes.fromhex(case["signedContentHex"]) == signed_content(signed, body_of(case))


@each_case("acl.jsonl", "acl-")
def test_server_recomputes_what_a_java_server_recomputes(case: dict[str, Any]) -> None:
    received = case["allExtFieldsOnWire"]

    content = signed_content(received, body_of(case))

    recomputed = compute_signature(content, secret_key=case["secretKey"])
    assert case["serverSideSignature"] == recomputed
    is_valid = is_signature_valid(received, body_of(case), secret_key=case["secretKey"])
    assert (case["serverSideSignature"] == case["signature"]) == is_valid


@each_case("acl.jsonl", "acl-")
def test_server_accepts_what_we_sign_whatever_the_ext_fields(case: dict[str, Any]) -> None:
    ext_fields = {**(case["headerFields"] or {}), **(case["preExtFields"] or {})}
    body = body_of(case)

    signed = sign_request(ext_fields, body, credentials=credentials_of(case))

    assert is_signature_valid(signed, body, secret_key=case["secretKey"])
    assert not is_signature_valid(signed, body, secret_key=case["secretKey"] + "x")
    assert not is_signature_valid(signed, (body or b"") + b"x", secret_key=case["secretKey"])


@each_case("acl.jsonl", "hmac-")
def test_hmac_is_that_of_java(case: dict[str, Any]) -> None:
    signature = compute_signature(bytes.fromhex(case["dataHex"]), secret_key=case["secretKey"])

    assert case["signature"] == signature


def test_request_without_a_signature_is_not_valid() -> None:
    assert not is_signature_valid({"AccessKey": "a"}, None, secret_key="s")


def test_repr_of_credentials_keeps_the_secrets() -> None:
    credentials = Credentials(access_key="me", secret_key="hush", security_token="mum")

    assert repr(credentials) == "Credentials(access_key='me')"


def test_repr_of_an_account_and_of_its_request_keeps_the_secrets() -> None:
    header = UpdateAccessConfigRequestHeader(access_key="me", secret_key="hush")
    account = PlainAccessConfig(access_key="me", secret_key="hush")
    fields = {"accessKey": "me", "secretKey": "hush", "SecurityToken": "mum"}
    requests = [
        RemotingCommand(code=50, ext_fields=fields),
        RemotingCommand(code=50, header=header),
    ]

    for shown in map(repr, (header, account, *requests)):
        assert ("me" in shown, "***" in shown) == (True, True)
        assert ("hush" in shown, "mum" in shown) == (False, False)
    assert requests[0].ext_fields == fields
    assert (header.secret_key, account.secret_key) == ("hush", "hush")
