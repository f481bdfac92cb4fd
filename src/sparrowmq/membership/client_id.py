"""The client id: how RocketMQ distinguishes the members of a group.

`ip@instance`, then `@unit` if a unit is set; pull consumers in Java add `@STREAM` from 4.9.4 on.
Every member divides the queues by the sorted list of these ids. Two members with one id therefore
consume the same queues twice and leave other queues unowned. Up to 4.7 the instance was the process
number alone, and containers that share an address and a process number had one id:

| version | instance, where it was left `DEFAULT`                          | local address   |
|---------|----------------------------------------------------------------|-----------------|
| 4.7     | process number                                                 | 4.x, no bridges |
| 4.9     | process number `#` nanoseconds (`System.nanoTime`)             | 4.x             |
| 5.x     | the same                                                       | 5.x             |

The instance is replaced for producers and for CLUSTERING consumers only; a BROADCASTING consumer
keeps `DEFAULT`, because its local offset file is found by the client id after a restart.

Every function here depends on its arguments alone. The caller reads process number, time and
interfaces, and reads them again after a fork.

Source: ClientConfig.java, RemotingUtil.java (4.x), NetworkUtil.java (5.x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

from sparrowmq.model import MessageModel

DEFAULT_INSTANCE_NAME = "DEFAULT"
_LOCALHOST = "127.0.0.1"

_PRIVATE_NETWORKS_5X = tuple(
    IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)


class ClientIdRule(Enum):
    """The RocketMQ version whose rules build the client id."""

    V4_7 = "4.7"
    V4_9 = "4.9"
    V5 = "5.x"


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of one network interface.

    Args:
        address: IPv4 or IPv6 in text; a zone (`%eth0`) may follow.
        is_bridge: whether the interface is a Linux bridge (`/sys/class/net/<name>/bridge` exists).
        is_virtual: whether the interface is a sub-interface, such as `eth0:1`.
        is_point_to_point: whether the interface leads to one peer only.
        is_up: whether the interface is up.
    """

    address: str
    is_bridge: bool = False
    is_virtual: bool = False
    is_point_to_point: bool = False
    is_up: bool = True

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        """The address as a number, without its zone."""
        return ip_address(self.address.partition("%")[0])


def build_client_id(ip: str, instance_name: str, unit_name: str | None = None) -> str:
    """Return the client id.

    Args:
        ip: the local address, or the text that the user set in its place.
        unit_name: appended unless it is blank.
    """
    client_id = f"{ip}@{instance_name}"
    if unit_name is not None and unit_name.strip():
        client_id += f"@{unit_name}"
    return client_id


def instance_name_47(pid: int) -> str:
    """Return the instance by 4.7's rule: the process number."""
    return str(pid)


def instance_name_49(pid: int, nano_time: int) -> str:
    """Return the instance by the rule of 4.9 and 5.x: process number and nanoseconds."""
    return f"{pid}#{nano_time}"


def choose_instance_name(
    instance_name: str | None,
    *,
    rule: ClientIdRule,
    pid: int,
    nano_time: int,
    message_model: MessageModel | None = None,
) -> str:
    """Return the instance that a client starts with.

    Args:
        instance_name: the user's setting; None means `DEFAULT`.
        rule: the version whose rule replaces `DEFAULT`.
        pid: the process number.
        nano_time: a monotonic time in nanoseconds.
        message_model: the consumer's message model; None for a producer.
    """
    if instance_name is not None and instance_name != DEFAULT_INSTANCE_NAME:
        return instance_name
    if message_model is MessageModel.BROADCASTING:
        return DEFAULT_INSTANCE_NAME
    if rule is ClientIdRule.V4_7:
        return instance_name_47(pid)
    return instance_name_49(pid, nano_time)


def choose_local_address(addresses: Sequence[InterfaceAddress], *, rule: ClientIdRule) -> str:
    """Return the local address; an IPv6 address stands in brackets.

    Args:
        addresses: every address of every interface, in the system's order.
        rule: the version whose rule chooses.
    """
    if rule is ClientIdRule.V5:
        return _choose_local_address_5x(addresses)
    return _choose_local_address_4x(addresses, skip_bridges=rule is ClientIdRule.V4_9)


def _choose_local_address_4x(addresses: Sequence[InterfaceAddress], *, skip_bridges: bool) -> str:
    usable = [
        address
        for address in addresses
        if not (skip_bridges and address.is_bridge) and not address.ip.is_loopback
    ]
    version_4 = [address.address for address in usable if address.ip.version == 4]
    for text in version_4:
        # Java compares the text as well: addresses in networks 10 and 172.16 are preferred too.
        if not text.startswith(("127.0", "192.168")):
            return text
    if version_4:
        return version_4[-1]
    return _bracketed(usable[0]) if usable else _LOCALHOST


def _choose_local_address_5x(addresses: Sequence[InterfaceAddress]) -> str:
    usable = [
        address
        for address in addresses
        if address.is_up
        and not (address.is_bridge or address.is_virtual or address.is_point_to_point)
        and not address.ip.is_loopback
    ]
    version_4 = [address for address in usable if address.ip.version == 4]
    for address in version_4:
        if not any(address.ip in network for network in _PRIVATE_NETWORKS_5X):
            return address.address
    if version_4:
        return version_4[-1].address
    for address in usable:
        if not (address.ip.is_link_local or _is_site_local(address)):
            return _bracketed(address)
    return _bracketed(usable[0]) if usable else _LOCALHOST


def _is_site_local(address: InterfaceAddress) -> bool:
    ip = address.ip
    return isinstance(ip, IPv6Address) and ip.is_site_local


def _bracketed(address: InterfaceAddress) -> str:
    return f"[{address.address}]"
