"""The identity of a client: its address, its instance, and the unique part of its message ids.

Each client reads everything anew, so that a client made after a fork has its own identity.
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
        identity: the parts that the user gave. The rules of 4.9 keep ids unique, also in containers
            that share an address; those of 4.7 demonstrate equal ids.
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


def find_local_address() -> str:
    """Return this machine's address by RocketMQ's rule, a loopback address if it has no other."""
    return choose_local_address(list_interface_addresses(), rule=ClientIdRule.V4_9)


def make_id_generator(client_ip: str | None = None) -> UniqIdGenerator:
    """Return a generator of message ids, with an address of this machine and a random number."""
    text = client_ip or find_local_address()
    try:
        ip = ip_address(text.strip("[]").partition("%")[0]).packed
    except ValueError:
        # The user gave a name in place of an address; any four bytes serve.
        ip = random.randbytes(4)
    return UniqIdGenerator(
        ip,
        os.getpid(),
        process_number=random.getrandbits(32),
        counter=random.getrandbits(16),
    )


def random_start() -> int:
    """Return a random start of a round robin."""
    return random.randrange(1 << 20)
