from __future__ import annotations

import pytest

from sparrowmq.membership.client_id import (
    ClientIdRule,
    InterfaceAddress,
    build_client_id,
    choose_instance_name,
    choose_local_address,
    instance_name_47,
    instance_name_49,
)
from sparrowmq.model import MessageModel


def addresses(*texts: str) -> list[InterfaceAddress]:
    return [InterfaceAddress(text) for text in texts]


class TestClientId:
    def test_without_a_unit(self) -> None:
        assert build_client_id("10.0.0.1", instance_name_47(77)) == "10.0.0.1@77"

    def test_of_49_holds_the_time(self) -> None:
        assert (
            build_client_id("10.0.0.1", instance_name_49(77, 123456789)) == "10.0.0.1@77#123456789"
        )

    def test_with_a_unit(self) -> None:
        assert build_client_id("10.0.0.1", "a", "u") == "10.0.0.1@a@u"

    @pytest.mark.parametrize("unit", [None, "", "  "])
    def test_a_blank_unit_does_not_count(self, unit: str | None) -> None:
        assert build_client_id("10.0.0.1", "a", unit) == "10.0.0.1@a"

    def test_two_containers_of_one_host_address_had_one_id_in_47(self) -> None:
        def client_id(rule: ClientIdRule, nano_time: int) -> str:
            instance = choose_instance_name(None, rule=rule, pid=9, nano_time=nano_time)
            return build_client_id("172.17.0.1", instance)

        assert client_id(ClientIdRule.V4_7, 1) == client_id(ClientIdRule.V4_7, 2)
        assert client_id(ClientIdRule.V4_9, 1) != client_id(ClientIdRule.V4_9, 2)


class TestInstanceName:
    @pytest.mark.parametrize(
        ("rule", "expected"),
        [(ClientIdRule.V4_7, "5"), (ClientIdRule.V4_9, "5#6"), (ClientIdRule.V5, "5#6")],
    )
    @pytest.mark.parametrize("model", [None, MessageModel.CLUSTERING])
    @pytest.mark.parametrize("given", [None, "DEFAULT"])
    def test_default_is_replaced(
        self, rule: ClientIdRule, expected: str, model: MessageModel | None, given: str | None
    ) -> None:
        assert (
            choose_instance_name(given, rule=rule, pid=5, nano_time=6, message_model=model)
            == expected
        )

    def test_a_broadcasting_consumer_keeps_default(self) -> None:
        assert (
            choose_instance_name(
                None,
                rule=ClientIdRule.V4_9,
                pid=5,
                nano_time=6,
                message_model=MessageModel.BROADCASTING,
            )
            == "DEFAULT"
        )

    def test_what_the_user_set_stays(self) -> None:
        assert choose_instance_name("mine", rule=ClientIdRule.V4_7, pid=5, nano_time=6) == "mine"


class TestLocalAddress:
    @pytest.mark.parametrize("rule", [ClientIdRule.V4_7, ClientIdRule.V4_9])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["127.0.0.1", "192.168.1.5", "10.1.2.3", "8.8.8.8"], "10.1.2.3"),
            (["192.168.1.5", "172.17.0.1"], "172.17.0.1"),
            (["192.168.1.5", "192.168.1.6"], "192.168.1.6"),
            (["fe80::1%eth0", "10.0.0.1"], "10.0.0.1"),
            (["::1", "fe80::1%eth0", "2001:db8::1"], "[fe80::1%eth0]"),
            (["127.0.0.1", "::1"], "127.0.0.1"),
            ([], "127.0.0.1"),
        ],
    )
    def test_of_4x(self, rule: ClientIdRule, given: list[str], expected: str) -> None:
        assert choose_local_address(addresses(*given), rule=rule) == expected

    def test_of_47_takes_a_bridge_and_49_does_not(self) -> None:
        docker = InterfaceAddress("172.17.0.1", is_bridge=True)
        lan = InterfaceAddress("192.168.1.5")

        assert choose_local_address([docker, lan], rule=ClientIdRule.V4_7) == "172.17.0.1"
        assert choose_local_address([docker, lan], rule=ClientIdRule.V4_9) == "192.168.1.5"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["10.1.2.3", "8.8.8.8"], "8.8.8.8"),
            (["10.1.2.3", "172.31.0.1", "192.168.0.1"], "192.168.0.1"),
            (["192.168.0.1", "172.32.0.1"], "172.32.0.1"),
            (["fe80::1%eth0", "2001:db8::1"], "[2001:db8::1]"),
            (["fe80::1%eth0", "fec0::1"], "[fe80::1%eth0]"),
            (["127.0.0.1"], "127.0.0.1"),
        ],
    )
    def test_of_5x(self, given: list[str], expected: str) -> None:
        assert choose_local_address(addresses(*given), rule=ClientIdRule.V5) == expected

    @pytest.mark.parametrize("flag", ["is_bridge", "is_virtual", "is_point_to_point"])
    def test_of_5x_skips_interfaces_that_lead_nowhere(self, flag: str) -> None:
        skipped = InterfaceAddress("8.8.8.8", **{flag: True})
        down = InterfaceAddress("8.8.4.4", is_up=False)

        assert (
            choose_local_address(
                [skipped, down, InterfaceAddress("10.0.0.1")], rule=ClientIdRule.V5
            )
            == "10.0.0.1"
        )
