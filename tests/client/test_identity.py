"""The client ids that clients come with."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sparrowmq import (
    AsyncPollConsumer,
    AsyncProducer,
    AsyncPushConsumer,
    ClientIdRule,
    PollConsumer,
    Producer,
    PushConsumer,
)

FACES = [Producer, PushConsumer, PollConsumer]
ASYNC_FACES = [AsyncProducer, AsyncPushConsumer, AsyncPollConsumer]


def make(face: Any, **settings: Any) -> Any:
    if face in (PushConsumer, AsyncPushConsumer):
        settings["listener"] = lambda messages, context: None
    return face("GID_ids", name_server="127.0.0.1:1", client_ip="172.17.0.1", **settings)


@pytest.mark.parametrize("face", FACES)
def test_rule_of_4_7_gives_what_repeats_in_containers(face: Any) -> None:
    for _ in range(2):
        with make(face, client_id_rule=ClientIdRule.V4_7) as client:
            assert client.client_id == f"172.17.0.1@{os.getpid()}"


@pytest.mark.parametrize("face", ASYNC_FACES)
async def test_so_it_does_with_asyncio(face: Any) -> None:
    async with make(face, client_id_rule=ClientIdRule.V4_7) as client:
        assert client.client_id == f"172.17.0.1@{os.getpid()}"


@pytest.mark.parametrize("face", FACES)
def test_ids_are_distinct_unless_told_otherwise(face: Any) -> None:
    with make(face) as one, make(face) as other:
        assert one.client_id != other.client_id
