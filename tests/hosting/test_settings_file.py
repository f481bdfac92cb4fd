"""Servers' settings from a file and from variables: what is taken, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrowmq.errors import ConfigError
from sparrowmq.hosting.settings import BROKER, NAME_SERVER, SETTINGS, UP, settings_of
from sparrowmq.hosting.settings_file import FILE_BYTES_MAX, read_environment, read_settings

# As Apache's distribution has it in conf/2m-noslave/broker-a.properties, with what users add.
BROKER_CONF = """
# Licensed to the Apache Software Foundation (ASF) under one or more

brokerClusterName=DefaultCluster
brokerName = broker-b
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
listenPort=10921
brokerIP1=192.168.0.7
autoCreateTopicEnable=false
mappedFileSizeCommitLog=67108864
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "broker.conf"


def test_apaches_broker_conf_is_taken(written: Path) -> None:
    written.write_text(BROKER_CONF)

    assert read_settings(written, SETTINGS) == {
        "cluster_name": "DefaultCluster",
        "broker_name": "broker-b",
        "delete_when": "04",
        "retention_hours": "48",
        "flush": "async",
        "broker_port": "10921",
        "advertise": "192.168.0.7",
        "auto_create_topics": "false",
        "log_file_mib": "64",
        "nameserver": "10.0.0.1:9876;10.0.0.2:9876",
    }


def test_our_names_are_taken_and_values_are_kept_whole(written: Path) -> None:
    lines = "delete-when = 04;16\n\n# x = y\n data=/var/lib/a = b \nhost=\nlog-file-mib = 64\n"
    written.write_text(lines)

    given = read_settings(written, SETTINGS)

    expected = {"delete_when": "04;16", "data": "/var/lib/a = b", "host": "", "log_file_mib": "64"}
    assert given == expected


@pytest.mark.parametrize("port", ["0", "65535"])
def test_bounds_of_a_number_are_taken(written: Path, port: str) -> None:
    written.write_text(f"broker-port = {port}")

    assert read_settings(written, SETTINGS) == {"broker_port": port}


def test_listen_port_is_that_of_the_server_that_asks(written: Path) -> None:
    written.write_text("listenPort=1234")

    assert read_settings(written, settings_of(NAME_SERVER)) == {"nameserver_port": "1234"}
    assert read_settings(written, settings_of(BROKER)) == {"broker_port": "1234"}
    assert read_settings(written, settings_of(UP)) == {"broker_port": "1234"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("retention-hour = 4", "did you mean retention-hours"),
        ("filereservedtime = 4", "did you mean fileReservedTime"),
        ("qqq = 4", "there are acl"),
        ("flush", "write name = value"),
        ("= sync", "write name = value"),
        ("flush = later", "flush is 'later'; it must be sync or async"),
        ("flushDiskType = LATER", "it must be sync or async"),
        ("broker-port = 70000", "broker-port is 70000; it must be 0 to 65535"),
        ("broker-port = -1", "broker-port is -1; it must be 0 to 65535"),
        ("broker-port = port", "write a whole number"),
        ("insecure = yes", "write true or false"),
        ("mappedFileSizeCommitLog = 1000", "not a whole number of MiB"),
        pytest.param(f"fileReservedTime = {'9' * 5_000}", "write a whole number", id="long"),
        pytest.param(f"mappedFileSizeCommitLog = {'9' * 5_000}", "write a whole number", id="size"),
        ("brokerId = 1", "it can only be 0"),
        ("brokerRole = SLAVE", "brokers do not replicate here"),
        ("storePathRootDir = /data", "write data"),
        ("aclEnable = true", "write acl"),
        ("flush = sync\nflushDiskType = SYNC_FLUSH", ":3: flush is given twice"),
        ("data =", "data is empty; write the directory for all data"),
    ],
)
def test_wrong_line_is_named_with_what_to_write(written: Path, line: str, words: str) -> None:
    written.write_text(f"# A comment.\n{line}\n")

    with pytest.raises(ConfigError) as caught:
        read_settings(written, SETTINGS)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{written}:")


def test_line_of_a_file_of_keys_is_not_shown(written: Path) -> None:
    written.write_text("secretKey: hush\n")

    with pytest.raises(ConfigError, match=":1: this line is not a setting") as caught:
        read_settings(written, SETTINGS)
    assert "hush" not in str(caught.value)


def test_what_is_no_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("#" * (FILE_BYTES_MAX + 1))
    (tmp_path / "image").write_bytes(b"\xff\xd8")

    for name, words in {"long": "more than", "image": "UTF-8", "none": "cannot be read"}.items():
        with pytest.raises(ConfigError, match=f"{name}.*{words}"):
            read_settings(tmp_path / name, SETTINGS)


def test_variables_are_taken_and_checked() -> None:
    environ = {
        "SPARROWMQ_RETENTION_HOURS": "5",
        "SPARROWMQ_TLS_MODE": "permissive",
        "SPARROWMQ_FLUSH": "",
        "SPARROWMQ_SALVAGE": "true",
        "SPARROWMQ_CONFIG": "/etc/sparrowmq.conf",
        "SPARROWMQ_NAMESERVER": "of another command",
        # Kubernetes makes such of a service; others are of contexts.
        "SPARROWMQ_SERVICE_HOST": "10.0.0.1",
        "SPARROWMQ_PORT": "tcp://10.0.0.1:9876",
        "SPARROWMQ_PORT_9876_TCP_ADDR": "10.0.0.1",
        "SPARROWMQ_SECRET_KEY": "s",
        "SPARROWMQ_CONTEXT": "dev",
    }

    given = read_environment(environ, settings_of(UP))

    assert given == {"retention_hours": "5", "tls_mode": "permissive", "salvage": "true"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SPARROWMQ_RETENTION_HOUR", "4", "did you mean SPARROWMQ_RETENTION_HOURS"),
        ("SPARROWMQ_CONFIGS", "4", "did you mean SPARROWMQ_CONFIG"),
        ("SPARROWMQ_BROKER_PORT", "tcp://10.0.0.1", "SPARROWMQ_BROKER_PORT is 'tcp://10.0.0.1'"),
        ("SPARROWMQ_TLS_MODE", "on", "disabled or permissive or enforcing"),
    ],
)
def test_wrong_variable_is_named_with_what_to_write(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({name: value}, SETTINGS)
    assert words in str(caught.value)
