"""The way out of one machine: clients of both kinds on Apache's masters, each with a slave.

Two masters replicate before they acknowledge (SYNC_MASTER); messages come without a break, to
members of both clients in one group. A master is killed and started again; meanwhile a new group
reads all from its slave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steady_traffic import TWICE_MAX, steady_traffic

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUEUES = [f"{name}:{number}" for name in ("broker-a", "broker-b") for number in range(4)]
GROUP = "GID_out"


@pytest.mark.parametrize("orderly", [False, True], ids=["", "orderly"])
@pytest.mark.parametrize("languages", [("python",) * 3, ("python", "python", "java")])
def test_no_message_is_lost_when_a_master_is_killed_and_comes_back(
    java: Any,
    masters_and_slaves: Any,
    start_member: Callable[..., Any],
    languages: tuple[str, ...],
    orderly: bool,
) -> None:
    brokers, topic = masters_and_slaves
    first = brokers["broker-b-0"]
    members = (java, first, start_member, languages)
    with steady_traffic(*members, topic=topic, group=GROUP, orderly=orderly) as traffic:
        traffic.wait_shared(QUEUES)
        traffic.send_more(300)
        brokers["broker-a-0"].kill_broker()
        traffic.send_more(500)
        # Slaves give no locks: in order, the killed master's queues stand still until it is back.
        if not orderly:
            # The other master goes on, and the slave of the killed one has what it acknowledged.
            traffic.wait_consumed("without the master")
            late = start_member("python", first, topic=topic, group=f"{GROUP}_late")
            traffic.wait_consumed("from the slave", [late])
        brokers["broker-a-0"].start_broker()
        traffic.send_more(500)
        told = traffic.stop()
        traffic.wait_shared(QUEUES)
        if orderly:
            traffic.assert_in_order()
    print(f"\n{java.version}, {languages}, {orderly=}, a master killed: {told}")
    # A send without an answer may have been stored, and is sent again. Java's members divide by the
    # short list of a master that has just come back, and take queues from others.
    assert "java" in languages or traffic.twice_count <= TWICE_MAX
