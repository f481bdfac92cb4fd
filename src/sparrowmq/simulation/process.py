"""A process on a simulated host: it runs, stands still, or is gone.

Whatever happens to a process (bytes, timers, ends of calls) comes in through `enter`. A frozen
process (SIGSTOP) takes it all in one after the other when it is thawed, and finds that time has
passed; a killed one takes nothing in any more.
"""

from __future__ import annotations

from sparrowmq.simulation.timeline import Action, Timeline, Timer


class Process:
    """One process.

    Args:
        name: for traces.
        host: the machine it runs on, by its address.
        timeline: the world's.
        timestamp_ms: the host's wall clock at the timeline's zero.
    """

    def __init__(self, name: str, host: str, timeline: Timeline, *, timestamp_ms: int) -> None:
        self.name = name
        self.host = host
        self.timeline = timeline
        self.is_alive = True
        self.is_frozen = False
        self._wall_ms = timestamp_ms
        self._waiting: list[Action] = []

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        return self.timeline.now_ms

    def timestamp_ms(self) -> int:
        """Read the host's wall clock."""
        return self._wall_ms + self.timeline.now_ms

    def enter(self, action: Action) -> None:
        """Have something happen to the process, now or when it is thawed."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._waiting.append(action)
        else:
            action()

    def call_in(self, delay_ms: int, action: Action) -> Timer:
        """Have something happen to the process a little later."""
        return self.timeline.call_in(delay_ms, lambda: self.enter(action))

    def freeze(self) -> None:
        """Stand still."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on, with what has come meanwhile first."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for index, action in enumerate(waiting):
            if self.is_frozen:
                self._waiting = waiting[index:] + self._waiting
                return
            self.enter(action)

    def kill(self) -> None:
        """End it without a further word."""
        self.is_alive = False
        self._waiting = []
