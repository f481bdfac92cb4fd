"""`sparrowmq acl`: the accounts of brokers with access control."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.confirmation import Yes, carry_out
from sparrowmq.cli.connecting import CommandCluster, on_cluster
from sparrowmq.cli.output import Json, OutputColumn, columns_of, print_json, print_rows
from sparrowmq.client.operations import accounts
from sparrowmq.errors import UsageError, did_you_mean
from sparrowmq.serving.access_control import check_account

acl = make_group("Accounts of access control: list, put, delete.")

AccessKey = Annotated[str, typer.Argument(metavar="ACCESS_KEY", help="access key of the account")]
_COLUMNS = [
    *columns_of("broker", "access_key", "admin"),
    OutputColumn("white_remote_address", "from addresses", optional=True),
    OutputColumn("default_topic_perm", "topics"),
    OutputColumn("default_group_perm", "groups"),
    OutputColumn("topic_perms", "topic permissions", optional=True),
    OutputColumn("group_perms", "group permissions", optional=True),
]


@acl.command("ls")
@on_cluster
def list_accounts(cluster: CommandCluster) -> None:
    """List the accounts of every broker; secrets are not shown."""
    rows = [_row(account) for account in cluster.run(accounts.list_accounts(cluster.directory))]
    if cluster.as_json:
        print_json(rows)
    else:
        print_rows(rows, _COLUMNS, empty="no broker has an account")


@acl.command("put")
@on_cluster
def put_account(
    cluster: CommandCluster,
    access_key: AccessKey,
    secret_key_file: Annotated[
        Path | None, typer.Option("--secret-key-file", help="a file with the secret")
    ] = None,
    admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="whether it may administer all")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--from", help="the addresses it may come from")
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", help="DENY, PUB, SUB or PUB|SUB, on all topics")
    ] = None,
    groups: Annotated[str | None, typer.Option("--groups", help="the same on all groups")] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="NAME=PUB|SUB; may be repeated")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="NAME=SUB; may be repeated")
    ] = None,
    yes: Yes = False,
) -> None:
    """Create an account at every broker, or change the given fields of one.

    \b
    Examples:
      sparrowmq acl put orders-service --secret-key-file secret --topic 'orders=PUB|SUB' --yes
    """
    known = cluster.run(accounts.list_accounts(cluster.directory))
    is_new = access_key not in {account.access_key for account in known}
    if is_new and secret_key_file is None:
        raise UsageError(f"{access_key} is a new account; give --secret-key-file")
    change = accounts.AccountChange(
        access_key=access_key,
        secret_key=None if secret_key_file is None else _read_secret(secret_key_file),
        admin=admin,
        white_remote_address=address,
        default_topic_perm=topics,
        default_group_perm=groups,
        topic_perms=None if topic is None else ",".join(topic),
        group_perms=None if group is None else ",".join(group),
    )
    check_account(change)
    if admin is False:
        accounts.check_administrators(known, access_key)
    row: Json = {
        "access_key": access_key,
        "is": "new" if is_new else "changed",
        "secret": None if change.secret_key is None else "given",
        "admin": admin,
        "white_remote_address": address,
        "default_topic_perm": topics,
        "default_group_perm": groups,
        "topic_perms": topic,
        "group_perms": group,
    }
    columns = [*columns_of("access_key", "is", "secret"), *_COLUMNS[2:]]
    carry_out(
        cluster,
        [row],
        columns,
        is_confirmed=yes,
        apply=lambda: cluster.run(accounts.put_account(cluster.directory, change)),
        done=f"account {access_key} is {'made' if is_new else 'changed'}",
    )


@acl.command("delete")
@on_cluster
def delete_account(cluster: CommandCluster, access_key: AccessKey, yes: Yes = False) -> None:
    """Delete an account at every broker."""
    known = cluster.run(accounts.list_accounts(cluster.directory))
    rows = [_row(account) for account in known if account.access_key == access_key]
    if not rows:
        hint = did_you_mean(access_key, {account.access_key for account in known})
        raise UsageError(f"there is no account {access_key!r}{hint}")
    accounts.check_administrators(known, access_key)
    carry_out(
        cluster,
        rows,
        _COLUMNS,
        is_confirmed=yes,
        apply=lambda: cluster.run(accounts.delete_account(cluster.directory, access_key)),
        done=f"account {access_key} is deleted",
    )


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the secret: {error}") from None
    if not secret:
        raise UsageError(f"{path} is empty; write the secret into the file")
    return secret


def _row(account: accounts.BrokerAccount) -> Json:
    return {
        "broker": account.broker_name,
        "access_key": account.access_key,
        "admin": account.is_admin,
        "white_remote_address": account.white_remote_address,
        "default_topic_perm": account.default_topic_perm,
        "default_group_perm": account.default_group_perm,
        "topic_perms": list(account.topic_perms),
        "group_perms": list(account.group_perms),
    }
