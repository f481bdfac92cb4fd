"""Show the rules of access control to administrators, and change the rules for them.

Differs from RocketMQ: secret keys are not shown, and the rules are in one file, which no request
can name.
Source: AdminBrokerProcessor.java, PlainPermissionManager.java, 4.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.bodies import AclConfigBody, DataVersion, PlainAccessConfig, encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.serving.access import AccessControl, AccessFault, Document
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, answer

# Too short to be accepted as a key, if a client sends it back.
_HIDDEN = "***"
_TEXTS = ("accessKey", "secretKey", "whiteRemoteAddress", "admin")
_TEXTS_OF_PERMISSIONS = ("defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")
_FILE_NAME = "plain_acl.yml"


def update_account(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make an account, or change the fields that the request gives."""
    fields = request.command.ext_fields or {}
    given: dict[str, Any] = {
        name: fields[name] for name in (*_TEXTS, *_TEXTS_OF_PERMISSIONS) if fields.get(name)
    }
    if "whiteRemoteAddress" in fields:
        given["whiteRemoteAddress"] = fields["whiteRemoteAddress"]
    for name in _LISTS:
        if name in fields:
            given[name] = _split(fields[name])
    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    access = _access(state, failed)
    accounts = list(access.document.get("accounts") or [])
    for number, account in enumerate(accounts):
        if account["accessKey"] == given.get("accessKey"):
            accounts[number] = {**account, **given}
            break
    else:
        accounts.append(given)
    _change(access, request, {"accounts": accounts}, failed)
    return answer(request)


def delete_account(state: BrokerState, request: Request) -> Sequence[Output]:
    """Remove an account."""
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    access = _access(state, failed)
    access_key = (request.command.ext_fields or {}).get("accessKey", "")
    accounts = list(access.document.get("accounts") or [])
    kept = [account for account in accounts if account["accessKey"] != access_key]
    if len(kept) == len(accounts):
        remark = (
            f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed."
        )
        raise Refusal(failed, remark)
    _change(access, request, {"accounts": kept}, failed)
    return answer(request)


def update_global_addresses(state: BrokerState, request: Request) -> Sequence[Output]:
    """Change the list of addresses that all accounts are restricted to."""
    failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    access = _access(state, failed)
    fields = request.command.ext_fields or {}
    if fields.get("aclFileFullPath"):
        raise Refusal(failed, "there is one file of access control, and no request names it")
    addresses = _split(fields.get("globalWhiteAddrs", ""))
    _change(access, request, {"globalWhiteRemoteAddresses": addresses}, failed)
    return answer(request)


def access_version(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the number of changes of the rules."""
    access = _access(state, ResponseCode.SYSTEM_ERROR)
    version = encode_body(_version(access.document)).decode()
    return answer(
        request,
        ext_fields={
            "version": version,
            "allAclFileVersion": f'{{"{_FILE_NAME}":{version}}}',
            "brokerName": state.config.broker_name,
            "brokerAddr": state.config.address,
            "clusterName": state.config.cluster_name,
        },
    )


def access_rules(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the rules, without secrets."""
    access = _access(state, ResponseCode.SYSTEM_ERROR)
    shown = [
        PlainAccessConfig(
            access_key=account["accessKey"],
            secret_key=_HIDDEN,
            white_remote_address=account.get("whiteRemoteAddress") or None,
            admin=access.table.accounts[account["accessKey"]].is_admin,
            default_topic_perm=account.get("defaultTopicPerm") or None,
            default_group_perm=account.get("defaultGroupPerm") or None,
            topic_perms=account.get("topicPerms") or None,
            group_perms=account.get("groupPerms") or None,
        )
        for account in access.document.get("accounts") or []
    ]
    body = AclConfigBody(
        global_white_addrs=access.document.get("globalWhiteRemoteAddresses") or [],
        plain_access_configs=shown,
    )
    return answer(request, body=encode_body(body))


def _access(state: BrokerState, code: int) -> AccessControl:
    if state.access is None:
        raise Refusal(code, "access control is off; the broker was started without --acl")
    return state.access


def _change(
    access: AccessControl, request: Request, changes: Document, failed: ResponseCode
) -> None:
    before = _version(access.document)
    version = {"counter": str(before.counter + 1), "timestamp": str(request.timestamp_ms)}
    try:
        access.change({**access.document, **changes, "dataVersion": [version]})
    except AccessFault as error:
        raise Refusal(failed, str(error)) from error
    except OSError as error:
        raise Refusal(failed, f"the file cannot be written: {error.strerror}") from error


def _version(document: Document) -> DataVersion:
    try:
        found = document["dataVersion"][0]
        return DataVersion(counter=int(found["counter"]), timestamp_ms=int(found["timestamp"]))
    except (KeyError, IndexError, TypeError, ValueError):
        return DataVersion()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
