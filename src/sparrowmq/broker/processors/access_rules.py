"""Show the rules of access control to administrators, and change the rules for them.

Differs from RocketMQ: secret keys are not shown, and the rules are in one file, which no request
can name.
Source: AdminBrokerProcessor.java, PlainPermissionManager.java, 4.9. Tests: broker/test_access.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.bodies import AclConfigBody, DataVersion, PlainAccessConfig, encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.serving.access_control import (
    AccessControl,
    AccessFault,
    AccessTable,
    Document,
    read_account,
    split_list,
)
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, answer, serve_aside

# Too short to be accepted as a key, if a client sends it back.
_HIDDEN = "***"
_FILE_NAME = "plain_acl.yml"


def update_account(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make an account, or change the fields that the request gives."""
    given = read_account(request.command.ext_fields or {})

    def edit(document: Document) -> Document:
        accounts = list(document.get("accounts") or [])
        for number, account in enumerate(accounts):
            if account["accessKey"] == given.get("accessKey"):
                accounts[number] = {**account, **given}
                break
        else:
            accounts.append(given)
        return {"accounts": accounts}

    return _change(state, request, edit, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)


def delete_account(state: BrokerState, request: Request) -> Sequence[Output]:
    """Remove an account."""
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    access_key = (request.command.ext_fields or {}).get("accessKey", "")

    def edit(document: Document) -> Document:
        accounts = document.get("accounts") or []
        kept = [account for account in accounts if account["accessKey"] != access_key]
        if len(kept) == len(accounts):
            raise Refusal(
                failed,
                f"The accesskey[{access_key}] corresponding to accessConfig has been deleted "
                "failed.",
            )
        return {"accounts": kept}

    return _change(state, request, edit, failed)


def update_global_addresses(state: BrokerState, request: Request) -> Sequence[Output]:
    """Change the list of addresses that all accounts are restricted to."""
    failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    fields = request.command.ext_fields or {}
    _access(state, failed)
    if fields.get("aclFileFullPath"):
        raise Refusal(failed, "there is one file of access control, and no request names it")
    addresses = split_list(fields.get("globalWhiteAddrs", ""))
    return _change(state, request, lambda _: {"globalWhiteRemoteAddresses": addresses}, failed)


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
    # The loop may take other rules while the thread encodes these.
    encode = partial(_encode_rules, access.document, access.table)
    return serve_aside(request, lambda: answer(request, body=encode()))


def _encode_rules(document: Document, table: AccessTable) -> bytes:
    shown = [
        PlainAccessConfig(
            access_key=account["accessKey"],
            secret_key=_HIDDEN,
            white_remote_address=account.get("whiteRemoteAddress") or None,
            admin=table.accounts[account["accessKey"]].is_admin,
            default_topic_perm=account.get("defaultTopicPerm") or None,
            default_group_perm=account.get("defaultGroupPerm") or None,
            topic_perms=account.get("topicPerms") or None,
            group_perms=account.get("groupPerms") or None,
        )
        for account in document.get("accounts") or []
    ]
    return encode_body(
        AclConfigBody(
            global_white_addrs=document.get("globalWhiteRemoteAddresses") or [],
            plain_access_configs=shown,
        )
    )


def _access(state: BrokerState, code: int) -> AccessControl:
    if state.access is None:
        raise Refusal(code, "access control is off; the broker was started without --acl")
    return state.access


def _change(
    state: BrokerState,
    request: Request,
    edit: Callable[[Document], Document],
    failed: ResponseCode,
) -> Sequence[Output]:
    """Change the rules and write them to their file, in a thread.

    Args:
        edit: returns the changed parts of a document.
    """
    access = _access(state, failed)

    def edit_whole(document: Document) -> Document:
        counter = str(_version(document).counter + 1)
        version = {"counter": counter, "timestamp": str(request.timestamp_ms)}
        return {**document, **edit(document), "dataVersion": [version]}

    def serve() -> Sequence[Output]:
        try:
            access.change(edit_whole)
        except AccessFault as error:
            raise Refusal(failed, str(error)) from error
        except OSError as error:
            raise Refusal(failed, f"the file cannot be written: {error.strerror}") from error
        return answer(request)

    return serve_aside(request, serve)


def _version(document: Document) -> DataVersion:
    try:
        found = document["dataVersion"][0]
        return DataVersion(counter=int(found["counter"]), timestamp_ms=int(found["timestamp"]))
    except (KeyError, IndexError, TypeError, ValueError):
        return DataVersion()
