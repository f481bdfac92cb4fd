"""The members' questions that wait for a topic's route, which the name servers have.

One request to the name servers serves all questions about a topic that come before its answer.
Tests: test_assignments.py.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.protocol.bodies import QueryAssignmentBody
from sparrowmq.serving.requests import Request

QUESTIONS_MAX = 4_096
# The topics whose routes are asked at the same time.
TOPICS_MAX = 256


class RouteQuestion(NamedTuple):
    """A member's question."""

    request: Request
    body: QueryAssignmentBody


class RouteQuestions:
    """The questions by topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[RouteQuestion]] = {}
        self._asked: list[str] = []
        self._count = 0

    def add(self, question: RouteQuestion) -> bool:
        """Let a question wait; return False if too many do."""
        topic = question.body.topic
        waiting = self._waiting.get(topic)
        if self._count >= QUESTIONS_MAX or (waiting is None and len(self._waiting) >= TOPICS_MAX):
            return False
        if waiting is None:
            waiting = self._waiting[topic] = []
            self._asked.append(topic)
        waiting.append(question)
        self._count += 1
        return True

    @property
    def is_asked(self) -> bool:
        """Whether there are topics for `begin`."""
        return bool(self._asked)

    def begin(self) -> list[str]:
        """Return the topics whose routes are to be asked now."""
        topics, self._asked = self._asked, []
        return topics

    def end(self, topic: str) -> list[RouteQuestion]:
        """Return the questions that waited for a topic's route."""
        found = self._waiting.pop(topic)
        self._count -= len(found)
        return found
