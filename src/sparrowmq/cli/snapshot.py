"""`sparrowmq snapshot`: look at every consumer group of a cluster and store the result.

Further snapshots add files to the same tables; `sparrowmq pipeline backlog` reads the history,
`sparrowmq pipeline balance` the newest one. Exit codes: 2, a wrong option; 3, the cluster cannot
be reached. Tests: pipeline/test_snapshot.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparrowmq.cli.connecting import CommandCluster, GroupsOption, SamplesInterval, on_cluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.output import print_json
from sparrowmq.errors import UsageError


@on_cluster
def snapshot(
    cluster: CommandCluster,
    out: Annotated[Path, typer.Option("--out", "-o", help="directory of the tables")],
    group: GroupsOption = None,
    every: Annotated[
        float, typer.Option("--every", min=0.0, help="seconds from one snapshot to the next")
    ] = 10.0,
    count: Annotated[
        int, typer.Option("--count", min=0, help="number of snapshots; 0 goes on until Ctrl-C")
    ] = 1,
    interval: SamplesInterval = 0.0,
) -> None:
    """Write every group's members, queue owners and lag as Parquet tables."""
    from sparrowmq.calling.clock import monotonic_ms, timestamp_ms
    from sparrowmq.calling.effects import sleep
    from sparrowmq.client.operations.groups import look_at_groups, take_snapshots
    from sparrowmq.model.names import check_group
    from sparrowmq.pipeline.snapshot_tables import claim_timestamp, tables_of, write_tables

    groups = group or []
    for name in groups:
        check_group(name)
    number = 0
    while not count or number < count:
        begun_ms = monotonic_ms()
        names = groups
        if not groups:
            names, silent = cluster.run(look_at_groups(cluster.directory))
            for broker, error in silent.items():
                say(f"{broker}: {error}; groups that only this broker knows are missing")
        at_ms = timestamp_ms()
        found, failures = cluster.run(
            take_snapshots(cluster.directory, names, interval_ms=round(interval * 1000))
        )
        if failures and not found:
            raise next(iter(failures.values()))
        for name, error in failures.items():
            say(f"group {name} was left out: {error}")
        try:
            at_ms = claim_timestamp(out, at_ms)
            tables = tables_of(found, timestamp_ms=at_ms)
            write_tables(tables, out, timestamp_ms=at_ms)
        except OSError as error:
            raise UsageError(f"cannot write to {out}: {error}") from None
        rows = {name: table.num_rows for name, table in tables.items()}
        _print_result(rows, groups=len(found), at_ms=at_ms, out=out, as_json=cluster.as_json)
        number += 1
        if not count or number < count:
            cluster.run(sleep(max(0, begun_ms + round(every * 1000) - monotonic_ms())))


def _print_result(
    rows: dict[str, int], *, groups: int, at_ms: int, out: Path, as_json: bool
) -> None:
    if as_json:
        print_json({"timestamp_ms": at_ms, "groups": groups, **rows}, is_one_line=True)
        return
    say(
        f"{groups} groups, {rows['members']} members and {rows['queues']} queues were added to "
        f"{out}"
    )
