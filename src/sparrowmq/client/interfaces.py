"""The addresses of this machine's network interfaces, for the rules of the client id.

On Linux they come from the kernel: SIOCGIFCONF lists the IPv4 addresses with their interfaces,
/proc/net/if_inet6 the IPv6 addresses. On other systems they come from the host name.

Tests: test_identity.py.
"""

from __future__ import annotations

import array
import socket
import struct
import sys
from ipaddress import IPv6Address
from pathlib import Path

from sparrowmq.membership.client_id import InterfaceAddress

if sys.platform == "linux":
    import fcntl

# linux/sockios.h and net/if.h.
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_IFF_POINTOPOINT = 0x10
# struct ifreq on 64 bit: the name, then a union of 24 bytes.
_IFREQ_BYTES = 40
_NAME_BYTES = 16
_INTERFACES_MAX = 256
_IF_INET6 = Path("/proc/net/if_inet6")
_NET_CLASS = Path("/sys/class/net")


def list_interface_addresses() -> list[InterfaceAddress]:
    """Return every address of every interface, or those of the host name if none is listed."""
    if sys.platform != "linux":
        return _host_name_addresses()
    try:
        return _ipv4_addresses() + _ipv6_addresses()
    except OSError:
        return _host_name_addresses()


def _ipv4_addresses() -> list[InterfaceAddress]:
    buffer = bytearray(_INTERFACES_MAX * _IFREQ_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        count = _fill(sock, buffer)
        found: list[InterfaceAddress] = []
        for at in range(0, count, _IFREQ_BYTES):
            name = bytes(buffer[at : at + _NAME_BYTES]).partition(b"\0")[0].decode()
            address = socket.inet_ntoa(bytes(buffer[at + 20 : at + 24]))
            found.append(_describe(sock, name, address))
    return found


def _fill(sock: socket.socket, buffer: bytearray) -> int:
    """Have the kernel write one ifreq per address; return how many bytes it wrote."""
    names = array.array("B", buffer)
    where, _ = names.buffer_info()
    answer = fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, struct.pack("iL", len(buffer), where))
    count: int = struct.unpack("iL", answer)[0]
    buffer[:count] = names.tobytes()[:count]
    return count


def _ipv6_addresses() -> list[InterfaceAddress]:
    if not _IF_INET6.exists():
        return []
    found: list[InterfaceAddress] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for line in _IF_INET6.read_text().splitlines():
            digits, *_, name = line.split()
            found.append(_describe(sock, name, str(IPv6Address(bytes.fromhex(digits)))))
    return found


def _describe(sock: socket.socket, name: str, address: str) -> InterfaceAddress:
    device = name.partition(":")[0]
    request = struct.pack("16sH14x", name.encode()[: _NAME_BYTES - 1], 0) + bytes(8)
    flags: int = struct.unpack("16sH", fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)[:18])[1]
    return InterfaceAddress(
        address=address,
        is_bridge=(_NET_CLASS / device / "bridge").exists(),
        is_virtual=":" in name,
        is_point_to_point=bool(flags & _IFF_POINTOPOINT),
        is_up=bool(flags & _IFF_UP),
    )


def _host_name_addresses() -> list[InterfaceAddress]:
    try:
        answers = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [InterfaceAddress(str(answer[4][0])) for answer in answers]
