"""A process on a simulated host: running, frozen or killed.

All events of a process (bytes, timers, ends of calls) pass through `enter`. A frozen process
(SIGSTOP) handles the events that came meanwhile one after another when it is thawed, and finds that
time has passed. A killed process handles no events. Tests: test_network.py.
"""

from __future__ import annotations

from sparrowmq.simulation.virtual_time import Action, Timeline, Timer


class Process:
    """One process.

    Args:
        name: the process's name in traces.
        host: the address of its machine.
        timeline: the world's timeline.
        timestamp_ms: the host's wall clock at the timeline's zero.
    """

    def __init__(self, name: str, host: str, timeline: Timeline, *, timestamp_ms: int) -> None:
        self.name = name
        self.host = host
        self.timeline = timeline
        self.is_alive = True
        self.is_frozen = False
        # When the process last went on, and how long it had stood still.
        self.woken_ms = self.still_ms = 0
        self._frozen_ms = 0
        self._wall_ms = timestamp_ms
        self._waiting: list[Action] = []

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        return self.timeline.now_ms

    def timestamp_ms(self) -> int:
        """Read the host's wall clock."""
        return self._wall_ms + self.timeline.now_ms

    def jump_clock(self, ms: int) -> None:
        """Set the host's wall clock forward, or back."""
        self._wall_ms += ms

    def enter(self, action: Action) -> None:
        """Run an action in the process, now or when it is thawed."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._waiting.append(action)
        else:
            action()

    def call_in(self, delay_ms: int, action: Action) -> Timer:
        """Run an action in the process after a delay."""
        return self.timeline.call_in(delay_ms, lambda: self.enter(action))

    def freeze(self) -> None:
        """Stand still."""
        self.is_frozen, self._frozen_ms = True, self.timeline.now_ms

    def thaw(self) -> None:
        """Go on, first with the actions that came meanwhile."""
        self.is_frozen = False
        self.woken_ms = self.timeline.now_ms
        self.still_ms = self.woken_ms - self._frozen_ms
        waiting, self._waiting = self._waiting, []
        for index, action in enumerate(waiting):
            if self.is_frozen:
                self._waiting = waiting[index:] + self._waiting
                return
            self.enter(action)

    def kill(self) -> None:
        """End the process at once, without its waiting actions."""
        self.is_alive = False
        self._waiting = []
