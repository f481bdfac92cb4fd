"""Python as other systems have it: what they lack is taken away, before the package is imported.

`python -m other_platform windows CODE` runs code so. This shows that nothing reaches for what is
not there; it does not show how the system itself behaves.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import selectors
import shutil
import signal
import socket
import sys
from importlib import import_module
from typing import Any

# In CPython's documentation "Availability: Unix", or Linux.
_WINDOWS_LACKS: dict[Any, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "register_at_fork", "wait3", "wait4", "waitid", "killpg", "getpgid"),
        *("setsid", "getsid", "setpgid", "getuid", "geteuid", "getgid", "getegid", "getgroups"),
        *("pread", "preadv", "pwrite", "pwritev", "readv", "writev", "sendfile", "fdatasync"),
        *("posix_fallocate", "posix_fadvise", "posix_spawn", "lockf", "sync", "uname", "fchown"),
        *("chown", "lchown", "mkfifo", "mknod", "openpty", "ttyname", "nice", "getpriority"),
        *("sched_getaffinity", "sched_setaffinity", "getloadavg", "statvfs", "fstatvfs", "sysconf"),
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_DSYNC"),
        *("SEEK_DATA", "SEEK_HOLE", "memfd_create", "copy_file_range", "eventfd", "getrandom"),
        *("pidfd_open", "splice", "getxattr", "setxattr", "fchdir", "chroot", "fpathconf"),
    ),
    socket: (
        *("AF_UNIX", "AF_NETLINK", "AF_PACKET", "SO_REUSEPORT", "MSG_DONTWAIT", "MSG_NOSIGNAL"),
        *("send_fds", "recv_fds", "sethostname", "CMSG_LEN", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    ),
    signal: (
        *("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGPIPE"),
        *("SIGSTOP", "SIGCONT", "SIGTSTP", "alarm", "setitimer", "siginterrupt", "pause"),
        *("pthread_sigmask", "pthread_kill", "sigwait", "sigtimedwait", "sigpending"),
    ),
    select: ("epoll", "poll"),
    selectors: ("EpollSelector", "PollSelector"),
}
_WINDOWS_MODULES = (
    *("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline"),
    *("uvloop", "_posixshmem", "_posixsubprocess", "spwd", "curses", "_curses"),
)
_MACOS_LACKS: dict[Any, tuple[str, ...]] = {
    os: (
        *("fdatasync", "SEEK_DATA", "SEEK_HOLE", "posix_fallocate", "posix_fadvise", "sendfile"),
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "copy_file_range", "eventfd"),
        *("pidfd_open", "splice", "getxattr", "setxattr", "getrandom", "waitid"),
    ),
    socket: ("AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_USER_TIMEOUT"),
    signal: ("sigtimedwait", "sigwaitinfo"),
    # It has kqueue, which Linux has not: poll stands in.
    select: ("epoll",),
    selectors: ("EpollSelector",),
}


def become(system: str) -> None:
    """Take away what a system lacks."""
    if system == "windows":
        _take(_WINDOWS_LACKS)
        sys.modules.update(dict.fromkeys(_WINDOWS_MODULES))  # type: ignore[arg-type]
        selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[assignment, misc]
        for name in ("add_reader", "remove_reader", "add_writer", "add_signal_handler"):
            setattr(asyncio.SelectorEventLoop, name, _not_implemented)
        socket.socketpair = _socketpair  # type: ignore[assignment]
        # `rmtree` chose Linux's way, by directories' descriptors, when it was imported.
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        if hasattr(shutil, "_rmtree_impl"):
            shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined]
        sys.platform = "win32"
    else:
        _take(_MACOS_LACKS)
        selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment, misc]
        sys.modules["uvloop"] = None  # type: ignore[assignment]
        # Linux answers it with an error, as some of macOS's file systems do.
        fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined]
        sys.platform = "darwin"


def _take(lacking: dict[Any, tuple[str, ...]]) -> None:
    for module, names in lacking.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def _socketpair(*_: int) -> tuple[socket.socket, socket.socket]:
    """Connect over the loopback interface, as Python does there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        return near, listening.accept()[0]


def _not_implemented(*_: object) -> None:
    raise NotImplementedError


if __name__ == "__main__":
    # What the standard library itself loads by the platform it runs on comes before.
    for name in ("concurrent.futures", "ctypes", "multiprocessing", "ssl", "tempfile", "uuid"):
        import_module(name)
    asyncio.new_event_loop().close()
    become(sys.argv[1])
    # A class's inherited method cannot be taken away.
    from sparrowmq.calling import sockets

    sockets.HAS_SENDMSG = sys.argv[1] != "windows"
    exec(compile(sys.argv[2], "<code>", "exec"), {"__name__": "__main__"})
