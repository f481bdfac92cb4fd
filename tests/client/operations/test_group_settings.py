"""Changes of a group's settings at a broker of RocketMQ 5.x: what they send."""

from __future__ import annotations

import json
from collections.abc import Callable

from play import Handler, Play
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import groups
from sparrowmq.protocol.bodies import BrokerData, ClusterInfo, encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

SETTINGS = {
    "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}},
    "consumeTimeoutMinute": 30,
}


def test_settings_of_5_stay_and_attributes_are_left_to_the_broker(
    play: Callable[[Handler], Play],
) -> None:
    known = {"groupName": "G", "retryMaxTimes": 16, **SETTINGS, "attributes": {"a": "1"}}
    info = ClusterInfo(
        broker_addr_table={"b": BrokerData(cluster="C", broker_name="b", broker_addrs={0: "b:1"})},
        cluster_addr_table={"C": ["b"]},
    )
    sent: list[dict[str, object]] = []

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return response_to(request, body=encode_body(info))
        if request.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            body = json.dumps({"subscriptionGroupTable": {"G": known}}).encode()
            return response_to(request, body=body)
        assert request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        sent.append(json.loads(request.body or b""))
        return response_to(request)

    directory, run = make_directory("ns:1"), play(answer)
    changes = run(groups.plan_group_update(directory, "G", max_reconsume_times=3))
    run(groups.update_group(directory, changes))
    run(groups.update_group(directory, run(groups.plan_group_update(directory, "G"))))

    (body,) = sent
    assert body["retryMaxTimes"] == 3
    assert {name: body.get(name) for name in SETTINGS} == SETTINGS
    # In a request they would be changes, with a sign before each name.
    assert "attributes" not in body
