"""Who this client is: its address, its instance, and what makes its message ids unique.

Everything is read anew for each client, so that a client made after a fork is another one.
"""

from __future__ import annotations

import os
import random
from ipaddress import ip_address

from sparrowmq.calling import clock
from sparrowmq.client.config import IdentityConfig
from sparrowmq.client.interfaces import list_interface_addresses
from sparrowmq.membership.client_id import (
    ClientIdRule,
    build_client_id,
    choose_instance_name,
    choose_local_address,
)
from sparrowmq.model import MessageModel
from sparrowmq.protocol.message_id import UniqIdGenerator


def make_client_id(identity: IdentityConfig, message_model: MessageModel | None = None) -> str:
    """Return the id of a new client.

    Args:
        identity: what the user gave of it. 4.9's rules keep ids apart, also in containers that
            share an address; 4.7's do not, and are there to show it.
        message_model: a consumer's; None for a producer.
    """
    rule = identity.client_id_rule
    instance = choose_instance_name(
        identity.instance_name,
        rule=rule,
        pid=os.getpid(),
        nano_time=clock.nano_time(),
        message_model=message_model,
    )
    ip = identity.client_ip or choose_local_address(list_interface_addresses(), rule=rule)
    return build_client_id(ip, instance, identity.unit_name)


def make_id_generator(client_ip: str | None = None) -> UniqIdGenerator:
    """Return a generator of message ids, with an address of this machine and a random number."""
    text = client_ip or choose_local_address(list_interface_addresses(), rule=ClientIdRule.V4_9)
    try:
        ip = ip_address(text.strip("[]").partition("%")[0]).packed
    except ValueError:
        # The user gave a name in the place of an address; any four bytes serve.
        ip = random.randbytes(4)
    return UniqIdGenerator(
        ip,
        os.getpid(),
        process_number=random.getrandbits(32),
        counter=random.getrandbits(16),
    )


def random_start() -> int:
    """Return where a round robin begins."""
    return random.randrange(1 << 20)
