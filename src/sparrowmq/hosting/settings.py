"""The settings of one process's servers: a row at each field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.config import Setting, check_settings, nested, rows_of, setting
from sparrowmq.store.retention import RetentionConfig

# The prefix of the servers' variables; a setting's name follows in capitals.
ENVIRONMENT_PREFIX = "SPARROWMQ_"
PORT_MAX = 65_535
# The commands that have settings.
UP, NAME_SERVER, BROKER = "up", "nameserver", "broker"
_BROKERS = (UP, BROKER)


class TlsMode(StrEnum):
    """The peers that servers with a certificate serve. Source: TlsMode.java."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The settings of one process's servers.

    `stop_with_stdin` stops the servers when standard input closes.
    """

    host: str = setting("127.0.0.1", "the address to listen on")
    nameserver_port: int = setting(
        9876,
        "the name server's port; 0 takes any free port",
        low=0,
        high=PORT_MAX,
        only=(UP, NAME_SERVER),
        source="NettyServerConfig.listenPort of the name server",
    )
    broker_port: int = setting(
        10911,
        "the broker's port; 0 takes any free port",
        low=0,
        high=PORT_MAX,
        only=_BROKERS,
        source="NettyServerConfig.listenPort of the broker",
    )
    grpc_port: int | None = setting(
        None,
        "the port of the gRPC service, for clients of RocketMQ 5; 0 takes any free port, -1 serves "
        "none; by default 8081, if the extra grpc is installed and the port is free; one broker "
        "alone serves it",
        low=-1,
        high=PORT_MAX,
        kind=int,
        only=(UP,),
        source="ProxyConfig.grpcServerPort",
    )
    brokers: int = setting(
        1,
        "the number of brokers, each in a process of its own, as one broker uses one core; the "
        "second has the name broker-a-2, the directory store-2, and the port ten above the "
        "first one's",
        low=1,
        high=16,
        only=(UP,),
    )
    nameserver: str = setting(
        "127.0.0.1:9876",
        "the addresses of the name servers to register at, separated by ';'",
        only=(BROKER,),
        source="BrokerConfig.namesrvAddr",
    )
    data: Path = setting(
        Path("sparrowmq-data"), "the directory for all data", source="storePathRootDir", kind=Path
    )
    log_file_mib: int = setting(
        1024,
        "the size of each file of the commit log; a file expires as a whole; a store keeps the "
        "size of its first start",
        low=1,
        high=1_024,
        unit="MiB",
        only=_BROKERS,
        source="MessageStoreConfig.mappedFileSizeCommitLog",
    )
    retention: RetentionConfig = nested(RetentionConfig(), only=_BROKERS)
    broker: BrokerConfig = nested(BrokerConfig(), only=_BROKERS)
    advertise: str = setting(
        "",
        "the IP address at which clients reach the broker, if it differs from --host",
        only=_BROKERS,
        source="BrokerConfig.brokerIP1",
    )
    health_port: int | None = setting(
        None,
        "the port that answers /health and /ready over HTTP, on --host; 0 takes any free port",
        low=0,
        high=PORT_MAX,
        kind=int,
    )
    tls_cert: str = setting(
        "",
        "a PEM file with the servers' certificate (and chain); servers with a certificate speak "
        "TLS; running servers load a renewed file",
        source="tls.server.certPath",
    )
    tls_key: str = setting(
        "",
        "a PEM file with the certificate's key, without a pass phrase; not needed if --tls-cert "
        "contains the key",
        source="tls.server.keyPath",
    )
    tls_client_ca: str = setting(
        "",
        "a PEM file with authorities; clients must show a certificate that one of them signed; "
        "brokers show theirs to name servers",
        source="tls.server.trustCertPath",
    )
    tls_mode: TlsMode = setting(
        TlsMode.ENFORCING,
        "for servers with a certificate: enforcing serves only peers that speak TLS, permissive "
        "serves all peers, disabled ignores the certificate",
        source="tls.server.mode",
    )
    tls_ca: str = setting(
        "",
        "connect by TLS, and trust the authorities in this PEM file",
        only=(BROKER,),
        source="tls.client.trustCertPath",
    )
    acl: str = setting(
        "",
        "the access control file, in the format of plain_acl.yml; only its accounts may use the "
        "servers; running servers load a changed file",
        source="aclEnable and conf/plain_acl.yml",
    )
    acl_credentials: str = setting(
        "",
        "a file with the accessKey and secretKey by which a broker registers at name servers "
        "with access control",
        only=(BROKER,),
        source="conf/tools.yml",
    )
    insecure: bool = setting(
        False, "allow a --host that other machines can reach, though nothing checks who connects"
    )
    salvage: bool = setting(
        False,
        "if the commit log is damaged in its middle, cut it there, lose all later messages, and "
        "start; without this option the broker refuses to start",
        only=_BROKERS,
    )
    verbose: bool = setting(False, "log every connection")
    stop_with_stdin: bool = False

    def __post_init__(self) -> None:
        check_settings(self)


SETTINGS = rows_of(HostSettings)


def settings_of(command: str) -> dict[str, Setting]:
    """Return the rows of a command's settings, by name."""
    return {name: row for name, row in SETTINGS.items() if not row.only or command in row.only}


def environment_name(name: str) -> str:
    """Return the environment variable of a server's setting."""
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"
