"""A network of TCP connections that delay bytes, break, fall silent, or are open on one side only.

The bytes of one direction arrive in order. A cut concerns one direction between two hosts: written
bytes wait, as TCP would send them again, and arrive after the cut. In a *half open* connection only
one side knows of the break. The other side learns of it by the reset that answers its next write,
once the first side's host is back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sparrowmq.calling.channel import CONNECT_TIMEOUT_MS
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import Timeline

# The longest delay of one direction, without a fault.
DELAY_MS_MAX = 3
# TCP repeats an unanswered connection request after about this time.
SYN_RETRY_MS = 1_000


class End:
    """One side of a connection.

    Attributes:
        on_data: called with received bytes.
        on_closed: called once, with the reason, when the connection breaks; not after `close`.
    """

    __slots__ = (
        "_network",
        "arrival_ms",
        "held",
        "is_closed",
        "is_dialling",
        "mute_until_ms",
        "on_closed",
        "on_data",
        "peer",
        "process",
    )

    def __init__(self, network: Network, process: Process, *, is_dialling: bool = False) -> None:
        self._network = network
        self.process = process
        self.is_dialling = is_dialling
        self.peer: End = self
        self.is_closed = False
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_closed: Callable[[str], None] = lambda _: None
        # The arrival of the last written bytes at the peer; later bytes do not overtake them.
        self.arrival_ms = 0
        # The bytes, or the reason of a close, that wait for the end of a cut.
        self.held: list[bytes | str] = []
        # The closed end sends no reset before this instant: bytes written to it vanish.
        self.mute_until_ms = 0

    @property
    def address(self) -> str:
        """The host of this side."""
        return self.process.host

    def send(self, data: bytes) -> None:
        """Write bytes, which may be lost with the connection."""
        if not self.is_closed and data:
            self._network.transmit(self, data)

    def close(self, reason: str = "closed by the peer") -> None:
        """Close this side; the other side learns of the close after all bytes written before."""
        if not self.is_closed:
            self.is_closed = True
            self._network.transmit(self, reason)


class _Listener(NamedTuple):
    process: Process
    accept: Callable[[End], None]


class Network:
    """All hosts and connections.

    Args:
        timeline: the world's timeline.
        dice: the source of delays.
    """

    def __init__(self, timeline: Timeline, dice: Dice) -> None:
        self._timeline = timeline
        self._dice = dice
        self._listeners: dict[str, _Listener] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._refusals: dict[tuple[str, str], int] = {}
        self._hosts_down: dict[str, None] = {}
        # Both ends of every connection that is open on at least one side.
        self._ends: dict[End, None] = {}
        # The share of late chunks, and their longest delay.
        self.late_share = 0.0
        self.late_ms_max = 0
        self.chunk_count = 0

    # --- what processes do ------------------------------------------------------------------

    def listen(self, address: str, process: Process, accept: Callable[[End], None]) -> None:
        """Accept connections at an address `host:port` from now on."""
        self._listeners[address] = _Listener(process, accept)

    def dial(
        self,
        process: Process,
        address: str,
        *,
        opened: Callable[[End], None],
        failed: Callable[[str], None],
    ) -> None:
        """Connect; later one of `opened` and `failed` is called."""
        deadline_ms = self._timeline.now_ms + CONNECT_TIMEOUT_MS
        self._try_dial(process, address, opened, failed, deadline_ms)

    def _try_dial(
        self,
        process: Process,
        address: str,
        opened: Callable[[End], None],
        failed: Callable[[str], None],
        deadline_ms: int,
    ) -> None:
        def fail(reason: str) -> None:
            process.enter(partial(failed, reason))

        host = address.rpartition(":")[0]
        round_trip_ms = self._delay_ms() + self._delay_ms()
        timeline = self._timeline
        is_silent = (
            host in self._hosts_down
            or self.is_cut(process.host, host)
            or self.is_cut(host, process.host)
        )
        if is_silent or timeline.now_ms + round_trip_ms > deadline_ms:
            again_ms = timeline.now_ms + SYN_RETRY_MS
            if again_ms >= deadline_ms:
                timeline.call_at(deadline_ms, partial(fail, "no answer"))
            else:
                retry = partial(self._try_dial, process, address, opened, failed, deadline_ms)
                timeline.call_at(again_ms, retry)
            return
        refused_until_ms = self._refusals.get((process.host, host), 0)
        if address not in self._listeners or timeline.now_ms < refused_until_ms:
            timeline.call_in(round_trip_ms, partial(fail, "Connection refused"))
            return
        timeline.call_in(round_trip_ms, partial(self._connect, process, address, opened, fail))

    def _connect(
        self,
        process: Process,
        address: str,
        opened: Callable[[End], None],
        fail: Callable[[str], None],
    ) -> None:
        listener = self._listeners.get(address)
        if listener is None or not listener.process.is_alive:
            fail("Connection refused")
            return
        if not process.is_alive:
            return
        near, far = End(self, process, is_dialling=True), End(self, listener.process)
        near.peer, far.peer = far, near
        self._ends[near] = self._ends[far] = None
        listener.process.enter(partial(listener.accept, far))
        process.enter(partial(opened, near))

    # --- bytes on their way -----------------------------------------------------------------

    def transmit(self, end: End, item: bytes | str) -> None:
        """Carry bytes, or the reason of a close, from one end to the other. For `End`."""
        if end.held or self.is_cut(end.process.host, end.peer.process.host):
            end.held.append(item)
            return
        self.chunk_count += 1
        end.arrival_ms = max(self._timeline.now_ms + self._delay_ms(), end.arrival_ms)
        self._timeline.call_at(end.arrival_ms, partial(self._arrive, end.peer, item))

    def _arrive(self, end: End, item: bytes | str) -> None:
        if end.process.host in self._hosts_down:
            return
        if end.is_closed:
            self._answer_closed(end, item)
        elif isinstance(item, str):
            self._end_at(end, item)
        else:
            end.process.enter(partial(_take, end, item))

    def _answer_closed(self, end: End, item: bytes | str) -> None:
        """Answer bytes for a broken connection with a reset, unless the host is mute."""
        if isinstance(item, bytes) and self._timeline.now_ms >= end.mute_until_ms:
            self.transmit(end, "Connection reset by peer")
        if end.peer.is_closed:
            self._ends.pop(end, None)
            self._ends.pop(end.peer, None)

    def _end_at(self, end: End, reason: str) -> None:
        end.is_closed = True
        end.held.clear()
        if end.peer.is_closed:
            self._ends.pop(end, None)
            self._ends.pop(end.peer, None)
        end.process.enter(partial(_announce_closed, end, reason))

    def _delay_ms(self) -> int:
        if self.late_share and self._dice.random() < self.late_share:
            return self._dice.randrange(0, self.late_ms_max)
        return self._dice.randrange(0, DELAY_MS_MAX)

    # --- faults -----------------------------------------------------------------------------

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether the direction from one host to another is cut."""
        return self._cuts.get((source, target), 0) > self._timeline.now_ms

    def cut(self, source: str, target: str, *, duration_ms: int) -> None:
        """Cut the direction from one host to another for a while; the other one stays open."""
        self._cuts[source, target] = self._timeline.now_ms + duration_ms
        self._timeline.call_in(duration_ms, self._send_held)

    def refuse(self, source: str, target: str, *, duration_ms: int) -> None:
        """Refuse new connections from one host to another for a while."""
        self._refusals[source, target] = self._timeline.now_ms + duration_ms

    def open_links(self) -> list[End]:
        """Return the dialling ends of connections that are open on both sides."""
        return [
            end
            for end in self._ends
            if end.is_dialling and not end.is_closed and not end.peer.is_closed
        ]

    def reset(self, end: End) -> None:
        """Break a connection; both sides notice."""
        for side in (end, end.peer):
            if not side.is_closed:
                self._end_at(side, "Connection reset by peer")

    def half_open(self, end: End, *, noticed_by: End | None, mute_ms: int) -> None:
        """Break a connection so that at most one side notices.

        Args:
            end: either side.
            noticed_by: the side that notices, None for neither.
            mute_ms: how long writes vanish before a reset answers one.
        """
        until_ms = self._timeline.now_ms + mute_ms
        for side in (end, end.peer):
            side.mute_until_ms = until_ms
        noticing = end if noticed_by is None else noticed_by
        if noticed_by is not None:
            self._end_at(noticing, "Connection reset by peer")
            return
        # Each side gets a closed peer of its own, which no process reads.
        for side in (end, end.peer):
            hole = End(self, side.peer.process)
            hole.is_closed = True
            hole.mute_until_ms = until_ms
            hole.peer = side
            side.peer = hole
            self._ends[hole] = None

    def drop_process(self, process: Process) -> None:
        """Close the connections of an ended process: its host's kernel resets the peers."""
        self._forget_listeners(process)
        for end in self._ends_of(process):
            end.close("Connection reset by peer")

    def power_off(self, process: Process) -> None:
        """Remove a process with its host: no peer is notified, and nothing answers."""
        self._forget_listeners(process)
        self._hosts_down[process.host] = None
        for end in self._ends_of(process):
            end.is_closed = True
            end.held.clear()

    def power_on(self, host: str) -> None:
        """Let a host answer again."""
        self._hosts_down.pop(host, None)

    def heal(self) -> None:
        """End all cuts, refusals, silences and delays; broken connections stay broken."""
        self._cuts.clear()
        self._refusals.clear()
        self._hosts_down.clear()
        self.late_share = 0.0
        for end in list(self._ends):
            end.mute_until_ms = end.peer.mute_until_ms = 0
        self._send_held()

    def _forget_listeners(self, process: Process) -> None:
        gone = [a for a, listener in self._listeners.items() if listener.process is process]
        for address in gone:
            del self._listeners[address]

    def _ends_of(self, process: Process) -> list[End]:
        return [end for end in self._ends if end.process is process and not end.is_closed]

    def _send_held(self) -> None:
        for end in list(self._ends):
            if end.held and not self.is_cut(end.process.host, end.peer.process.host):
                held, end.held = end.held, []
                for item in held:
                    self.transmit(end, item)


def _take(end: End, data: bytes) -> None:
    if not end.is_closed:
        end.on_data(data)


def _announce_closed(end: End, reason: str) -> None:
    # Looked up at the call: a frozen process may not have opened its side before.
    end.on_closed(reason)
