"""Access control, as in RocketMQ 4.x: accepted addresses, accounts and their permissions. Pure.

The rules come from a document in the form of plain_acl.yml: accounts with keys, permissions on
topics and groups, and lists of addresses. Every request must be signed by an account
(`protocol/signatures.py`), and the account must have the permission that the request's code needs:

- A code about a topic or a group needs a permission for it, SUB for groups. If the request points
  at a message, the account also needs a permission for the message's topic (`find_denial`).
- A code that only shows a state needs no further permission.
- All other codes change the state of other clients or register brokers; they need an administrator.

Differs from RocketMQ: its lists of addresses accept every request from these addresses, without a
signature. Here the lists only restrict the addresses. More codes need an administrator or a
permission than in RocketMQ, and name servers check requests as well. Source:
PlainPermissionManager, PlainAccessValidator, Permission, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Flag
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from sparrowmq.errors import ProtocolError, SparrowError, UsageError
from sparrowmq.model.names import (
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)
from sparrowmq.protocol.bodies import (
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentBody,
    decode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.header_codec import encode_header
from sparrowmq.protocol.headers import UpdateAccessConfigRequestHeader
from sparrowmq.protocol.pop_handle import BatchAckBody
from sparrowmq.protocol.signatures import ACCESS_KEY, Credentials, is_signature_valid
from sparrowmq.serving.addresses import AddressFault, AddressPattern, parse_addresses

# AclConstants.ACCESS_KEY_MIN_LENGTH, SECRET_KEY_MIN_LENGTH: keys must be longer than 6.
KEY_LENGTH_MIN = 7
ACCOUNTS_MAX = 10_000
# Messages of all topics wait in these topics, so no default permission covers them.
_WAITING_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC}
)
_ACCOUNTS, _GLOBAL_ADDRESSES = "accounts", "globalWhiteRemoteAddresses"
_TOP_KEYS = {_ACCOUNTS, _GLOBAL_ADDRESSES, "dataVersion"}
_TEXTS = ("accessKey", "secretKey", "admin", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")
_ACCOUNT_KEYS = {*_TEXTS, "whiteRemoteAddress", *_LISTS}

# The content of a file: texts, lists and mappings of them.
Document: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str | int, ...]


class AccessFault(SparrowError):
    """Invalid rules; `path` is the place of the fault in the document."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.path = path


class _Denied(Exception):
    """A request that may not be served."""


class Permission(Flag):
    """The permissions of an account on a topic or group; DENY is the empty flag."""

    DENY = 0
    PUB = 1
    SUB = 2
    ANY = 3


_PERMISSIONS: Mapping[str, Permission] = MappingProxyType(
    {
        "DENY": Permission.DENY,
        "PUB": Permission.PUB,
        "SUB": Permission.SUB,
        "PUB|SUB": Permission.ANY,
        "SUB|PUB": Permission.ANY,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account. A `repr` never shows the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    addresses: tuple[AddressPattern, ...] = ()
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)

    def may(self, need: Need) -> bool:
        """Return whether the account has a permission."""
        if self.is_admin and not self.topics and not self.groups:
            return True
        if need.is_group:
            owned = self.groups.get(need.name, self.default_group)
        else:
            default = Permission.DENY if need.name in _WAITING_TOPICS else self.default_topic
            owned = self.topics.get(need.name, default)
        return bool(owned & need.permission)

    def check(self, need: Need) -> None:
        """Raise `_Denied` unless the account has a permission."""
        if not self.may(need):
            kind = "group" if need.is_group else "topic"
            raise _Denied(f"No default permission for {kind}: {need.name}")


class Need(NamedTuple):
    """A permission that a request needs on a topic or a group: any one in the flag."""

    name: str
    is_group: bool
    permission: Permission


class AccessTable(NamedTuple):
    """The rules of a document."""

    accounts: Mapping[str, Account]
    addresses: tuple[AddressPattern, ...]


def parse_access(document: object) -> AccessTable:
    """Parse a document into rules.

    Raises: AccessFault.
    """
    top = _mapping({} if document in ("", None) else document, _TOP_KEYS, ())
    addresses: list[AddressPattern] = []
    for number, text in enumerate(_list(top.get(_GLOBAL_ADDRESSES), (_GLOBAL_ADDRESSES,))):
        addresses += _addresses(text, (_GLOBAL_ADDRESSES, number))
    accounts: dict[str, Account] = {}
    for number, given in enumerate(_list(top.get(_ACCOUNTS), (_ACCOUNTS,))):
        if number >= ACCOUNTS_MAX:
            raise AccessFault(f"there are more than {ACCOUNTS_MAX} accounts", (_ACCOUNTS, number))
        account = _parse_account(given, (_ACCOUNTS, number))
        if account.access_key in accounts:
            text = f"accessKey {account.access_key!r} is there twice"
            raise AccessFault(text, (_ACCOUNTS, number, "accessKey"))
        accounts[account.access_key] = account
    return AccessTable(accounts, tuple(addresses))


def read_account(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what the fields of a request, which makes or changes an account, give of it."""
    given: dict[str, Any] = {name: fields[name] for name in _TEXTS if fields.get(name)}
    if "whiteRemoteAddress" in fields:
        given["whiteRemoteAddress"] = fields["whiteRemoteAddress"]
    for name in _LISTS:
        if name in fields:
            given[name] = split_list(fields[name])
    return given


def check_account(change: UpdateAccessConfigRequestHeader) -> None:
    """Raise a UsageError for what brokers would refuse; an old account may keep its secret."""
    given = read_account(encode_header(change))
    try:
        parse_access({_ACCOUNTS: [{"secretKey": "*" * KEY_LENGTH_MIN, **given}]})
    except AccessFault as error:
        raise UsageError(str(error)) from None


def split_list(text: str) -> list[str]:
    """Return the texts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_account(given: object, path: Path) -> Account:
    fields = _mapping(given, _ACCOUNT_KEYS, path)
    for name in ("accessKey", "secretKey"):
        if len(_text(fields.get(name), (*path, name))) < KEY_LENGTH_MIN:
            raise AccessFault(
                f"{name} must be given and have {KEY_LENGTH_MIN} characters or more", (*path, name)
            )
    admin = _text(fields.get("admin"), (*path, "admin")).lower()
    if admin not in ("", "true", "false"):
        raise AccessFault(f"admin is {admin!r}; give true or false", (*path, "admin"))
    address = _text(fields.get("whiteRemoteAddress"), (*path, "whiteRemoteAddress"))
    return Account(
        access_key=fields["accessKey"],
        secret_key=fields["secretKey"],
        is_admin=admin == "true",
        addresses=_addresses(address, (*path, "whiteRemoteAddress")),
        default_topic=_permission(fields, "defaultTopicPerm", path),
        default_group=_permission(fields, "defaultGroupPerm", path),
        topics=_permissions(fields, "topicPerms", path),
        groups=_permissions(fields, "groupPerms", path),
    )


def _mapping(given: object, allowed: set[str], path: Path) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise AccessFault(f"here must be a mapping with {', '.join(sorted(allowed))}", path)
    for name in given:
        if name not in allowed:
            # Of `secretKey:secret`, without a space, the rest is a secret.
            word, colon, _ = str(name).partition(":")
            hint = (
                "write a space behind ':'" if colon else f"there are {', '.join(sorted(allowed))}"
            )
            raise AccessFault(f"unknown key {word!r}; {hint}", (*path, name))
    return given


def _list(given: object, path: Path) -> Sequence[object]:
    if given in (None, ""):
        return ()
    if not isinstance(given, list):
        raise AccessFault(f"{path[-1]} is not a list", path)
    return given


def _text(given: object, path: Path) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise AccessFault(f"{path[-1]} is not a text", path)
    return given.strip()


def _addresses(given: object, path: Path) -> tuple[AddressPattern, ...]:
    try:
        return parse_addresses(_text(given, path))
    except AddressFault as error:
        raise AccessFault(str(error), path) from error


def _permission(fields: Mapping[str, Any], name: str, path: Path) -> Permission:
    text = _text(fields.get(name), (*path, name)) or "DENY"
    found = _PERMISSIONS.get(text)
    if found is None:
        raise AccessFault(f"{name} is {text!r}; give DENY, PUB, SUB or PUB|SUB", (*path, name))
    return found


def _permissions(fields: Mapping[str, Any], name: str, path: Path) -> dict[str, Permission]:
    found: dict[str, Permission] = {}
    for number, given in enumerate(_list(fields.get(name), (*path, name))):
        at = (*path, name, number)
        resource, equals, text = _text(given, at).partition("=")
        permission = _PERMISSIONS.get(text.strip())
        if not equals or not resource.strip() or permission is None:
            raise AccessFault(
                f"{given!r} in {name} is not a NAME=PERMISSION with DENY, PUB, SUB or PUB|SUB", at
            )
        found[resource.strip()] = permission
    return found


class AccessControl:
    """The rules in force.

    `replace` and `change` may be called by any thread. A table and its document are never changed:
    new ones take their place, so the loop that reads them needs no lock.

    Args:
        document: the content of the file.
        save: writes a changed document to the file.
        load: returns the file's content if it differs from the document in force, None if not.
        own: the credentials of this process's own broker, which no rule restricts; None for none.
        lock: held while the rules are changed.

    Raises: AccessFault if the document is invalid.
    """

    def __init__(
        self,
        document: Document,
        save: Callable[[Document], None],
        *,
        load: Callable[[], Document | None] = lambda: None,
        own: Credentials | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._save, self._load = save, load
        self._lock = nullcontext() if lock is None else lock
        self._own: Account | None = None
        if own is not None:
            self._own = Account(access_key=own.access_key, secret_key=own.secret_key, is_admin=True)
        self.document = document
        self.table = parse_access(document)

    def replace(self, document: Document) -> None:
        """Replace the rules; the caller holds `lock`.

        Raises: AccessFault; the old rules then stay in force.
        """
        self.table = parse_access(document)
        self.document = document

    def change(self, edit: Callable[[Document], Document]) -> None:
        """Replace the rules and write them to the file.

        Args:
            edit: returns the new document, given the one of the file.

        Raises: AccessFault, OSError; the old rules then stay in force.
        """
        with self._lock:
            newest = self._load()
            if newest is None:
                newest = self.document
            else:
                parse_access(newest)
            document = edit(newest or {})
            table = parse_access(document)
            self._save(document)
            self.table, self.document = table, document

    def find_refusal(self, command: RemotingCommand, address: str) -> str | None:
        """Return why a request may not be served, None if it may.

        Args:
            address: the address that the request came from, as `ip:port`.
        """
        try:
            self._check(command, address)
        except (_Denied, ProtocolError) as error:
            return str(error)
        return None

    def find_denial(self, access_key: str, topic: str, permission: Permission) -> str | None:
        """Return why an account has no permission for a topic, None if it has the permission.

        Args:
            access_key: the access key of an account whose signature was checked.
            topic: a topic that no field of the request names.
            permission: the permission that the request needs.
        """
        try:
            account = self._find_account(access_key)
            for need in _topic(topic, permission):
                account.check(need)
        except _Denied as error:
            return str(error)
        return None

    def find_stranger(self, access_key: str, address: str) -> str | None:
        """Return why an account may not come from an address (`ip:port`), None if it may."""
        try:
            self._check_address(self._find_account(access_key), address)
        except _Denied as error:
            return str(error)
        return None

    def find_secret(self, access_key: str) -> str | None:
        """Return an account's secret key; None if there is no such account."""
        account = self.table.accounts.get(access_key)
        return None if account is None else account.secret_key

    def _check(self, command: RemotingCommand, address: str) -> None:
        fields = command.ext_fields or {}
        account = self._authenticate(fields, command.body, address)
        if account is self._own:
            return
        code = command.code
        if code in ADMIN_CODES and not account.is_admin:
            raise _Denied(
                f"Need admin permission for request code={code}, but "
                f"accessKey={account.access_key} is not"
            )
        find_needs = _NEEDS.get(code)
        needs = () if find_needs is None else find_needs(fields, command.body)
        if any(need == _TRACE for need in needs):
            return
        for need in needs:
            account.check(need)

    def _authenticate(self, fields: Mapping[str, str], body: bytes | None, address: str) -> Account:
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise _Denied("No accessKey is configured")
        account = self._find_account(access_key)
        if account is not self._own:
            self._check_address(account, address)
        if not is_signature_valid(fields, body, secret_key=account.secret_key):
            raise _Denied(f"Check signature failed for accessKey={access_key[:64]}")
        return account

    def _check_address(self, account: Account, address: str) -> None:
        ip = address.rpartition(":")[0].strip("[]")
        for patterns in (self.table.addresses, account.addresses):
            if patterns and not any(pattern.matches(ip) for pattern in patterns):
                raise _Denied(f"accessKey={account.access_key} may not come from {ip}")

    def _find_account(self, access_key: str) -> Account:
        own = self._own
        if own is not None and access_key == own.access_key:
            return own
        found = self.table.accounts.get(access_key)
        if found is None:
            raise _Denied(f"No acl config for {access_key[:64]}")
        return found


# --- what codes need ----------------------------------------------------------------------------

Fields: TypeAlias = Mapping[str, str]
_FindNeeds: TypeAlias = Callable[[Fields, bytes | None], Sequence[Need]]
_TRACE = Need(TRACE_TOPIC, is_group=False, permission=Permission.PUB)


def _group(name: str | None) -> list[Need]:
    return [Need(name, is_group=True, permission=Permission.SUB)] if name else []


def _topic(name: str | None, permission: Permission) -> list[Need]:
    if not name:
        return []
    if name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return _group(name[len(RETRY_GROUP_TOPIC_PREFIX) :])
    return [Need(name, is_group=False, permission=permission)]


def _of_topic(
    permission: Permission, *, topic: str = "topic", group: str | None = None
) -> _FindNeeds:
    def find(fields: Fields, body: bytes | None) -> Sequence[Need]:
        del body
        found = _topic(fields.get(topic), permission)
        return found if group is None else found + _group(fields.get(group))

    return find


def _of_group(name: str) -> _FindNeeds:
    return lambda fields, body: _group(fields.get(name))


def _of_locks(fields: Fields, body: bytes | None) -> Sequence[Need]:
    del fields
    return _group(decode_body(LockBatchRequestBody, body).consumer_group)


def _of_heartbeat(fields: Fields, body: bytes | None) -> Sequence[Need]:
    del fields
    needs: list[Need] = []
    for consumer in decode_body(HeartbeatData, body).consumer_data_set:
        needs += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            needs += _topic(subscription.topic, Permission.SUB)
    return needs


def _of_batch_ack(fields: Fields, body: bytes | None) -> Sequence[Need]:
    del fields
    needs: dict[Need, None] = {}
    for each in decode_body(BatchAckBody, body).acks:
        for need in _topic(each.topic, Permission.SUB) + _group(each.consumer_group):
            needs[need] = None
    return list(needs)


def _of_assignment(fields: Fields, body: bytes | None) -> Sequence[Need]:
    del fields
    asked = decode_body(QueryAssignmentBody, body)
    return _topic(asked.topic, Permission.SUB) + _group(asked.consumer_group)


_PULL = _of_topic(Permission.SUB, group="consumerGroup")
_LOOK = _of_topic(Permission.ANY)
_OF_CONSUMER_GROUP = _of_group("consumerGroup")
_NEEDS: Mapping[int, _FindNeeds] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: _of_topic(Permission.PUB),
        RequestCode.SEND_MESSAGE_V2: _of_topic(Permission.PUB, topic="b"),
        RequestCode.SEND_BATCH_MESSAGE: _of_topic(Permission.PUB, topic="b"),
        RequestCode.RECALL_MESSAGE: _of_topic(Permission.PUB),
        RequestCode.SEND_REPLY_MESSAGE: _of_topic(Permission.PUB),
        RequestCode.SEND_REPLY_MESSAGE_V2: _of_topic(Permission.PUB, topic="b"),
        RequestCode.CONSUMER_SEND_MSG_BACK: _of_group("group"),
        RequestCode.PULL_MESSAGE: _PULL,
        RequestCode.LITE_PULL_MESSAGE: _PULL,
        RequestCode.POP_MESSAGE: _PULL,
        RequestCode.ACK_MESSAGE: _PULL,
        RequestCode.BATCH_ACK_MESSAGE: _of_batch_ack,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _PULL,
        RequestCode.PEEK_MESSAGE: _PULL,
        RequestCode.NOTIFICATION: _PULL,
        RequestCode.POLLING_INFO: _PULL,
        RequestCode.QUERY_MESSAGE: _of_topic(Permission.SUB),
        RequestCode.QUERY_CONSUMER_OFFSET: _PULL,
        RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _LOOK,
        RequestCode.GET_MAX_OFFSET: _LOOK,
        RequestCode.GET_MIN_OFFSET: _LOOK,
        RequestCode.GET_EARLIEST_MSG_STORETIME: _LOOK,
        RequestCode.GET_TOPIC_STATS_INFO: _LOOK,
        RequestCode.GET_TOPIC_CONFIG: _LOOK,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: _of_group("group"),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _of_group("group"),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of_group("group"),
        RequestCode.QUERY_CONSUME_QUEUE: _of_topic(Permission.SUB),
        RequestCode.QUERY_CORRECTION_OFFSET: _LOOK,
        RequestCode.QUERY_CONSUME_TIME_SPAN: _of_topic(Permission.ANY, group="group"),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of_group("group"),
        RequestCode.HEART_BEAT: _of_heartbeat,
        RequestCode.UNREGISTER_CLIENT: _OF_CONSUMER_GROUP,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _OF_CONSUMER_GROUP,
        RequestCode.GET_GROUP_PLAN: _OF_CONSUMER_GROUP,
        RequestCode.QUERY_ASSIGNMENT: _of_assignment,
        RequestCode.OFFER_GROUP_PLAN: _OF_CONSUMER_GROUP,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _OF_CONSUMER_GROUP,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: _OF_CONSUMER_GROUP,
        RequestCode.GET_CONSUME_STATS: _OF_CONSUMER_GROUP,
        RequestCode.LOCK_BATCH_MQ: _of_locks,
        RequestCode.UNLOCK_BATCH_MQ: _of_locks,
    }
)
# These requests point at a message; the broker finds the message's topic and checks it.
_OF_MESSAGE = frozenset({RequestCode.END_TRANSACTION, RequestCode.VIEW_MESSAGE_BY_ID})
# Open to every account: codes that show a state, and clients' requests about themselves.
_OPEN = frozenset(
    {
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)
assert _OPEN.isdisjoint(_NEEDS)
assert _OF_MESSAGE.isdisjoint(_NEEDS.keys() | _OPEN)
# All other codes, also future ones: a new code needs an administrator until it is listed above.
ADMIN_CODES = frozenset(RequestCode) - _NEEDS.keys() - _OPEN - _OF_MESSAGE
