"""The row of a table of settings, and the table of the servers' settings.

The command line takes its help from the servers' rows. The clients' rows stand at the fields of
`client/config.py`. The page docs/reference/settings.md is made of both.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.errors import ConfigError

_INT_MAX = 0x7FFFFFFF


class Setting(NamedTuple):
    """One row.

    Args:
        name: the name that users write.
        kind: the type of the values; `object` for values that another check examines.
        default: the value without the setting; if the default is None, users may give None too.
        unit: "" for none.
        source: RocketMQ's setting of the same meaning, "" for none.
        help: the meaning, without a full stop.
        low: the least allowed number; None for no range.
        high: the greatest allowed number.
        only: the one client with the setting; "" for all clients that have the table.
        is_secret: whether errors must not show the value.
        choices: the allowed values; () for any value.
    """

    name: str
    kind: type
    default: object
    unit: str
    source: str
    help: str
    low: int | None = None
    high: int | None = None
    only: str = ""
    is_secret: bool = False
    choices: tuple[str, ...] = ()


SETTINGS: tuple[Setting, ...] = (
    Setting("host", str, "127.0.0.1", "", "", "the address to listen on"),
    Setting(
        "nameserver-port",
        int,
        9876,
        "",
        "NettyServerConfig.listenPort of the name server",
        "the name server's port; 0 takes any free port",
        0,
        65_535,
    ),
    Setting(
        "broker-port",
        int,
        10911,
        "",
        "NettyServerConfig.listenPort of the broker",
        "the broker's port; 0 takes any free port",
        0,
        65_535,
    ),
    Setting("data", str, "sparrowmq-data", "", "storePathRootDir", "the directory for all data"),
    Setting(
        "flush",
        str,
        "sync",
        "",
        "MessageStoreConfig.flushDiskType",
        "sync acknowledges a message once it is on the disk; async acknowledges at once, and a "
        "power cut may lose the last half second of messages",
        choices=("sync", "async"),
    ),
    Setting(
        "retention-hours",
        int,
        None,
        "h",
        "MessageStoreConfig.fileReservedTime",
        "the shortest time for which messages are kept; 0 keeps all; the default is 72, but a "
        "store made before messages expired keeps all until this option is given",
        0,
        876_000,
    ),
    Setting(
        "delete-when",
        str,
        "04",
        "h",
        "MessageStoreConfig.deleteWhen",
        "the hours of the day, in local time, at which expired messages are removed, such as 04;16",
    ),
    Setting(
        "disk-expire-percent",
        int,
        75,
        "%",
        "MessageStoreConfig.diskMaxUsedSpaceRatio",
        "the use of the disk above which expired messages are removed at any hour",
        0,
        100,
    ),
    Setting(
        "disk-force-percent",
        int,
        85,
        "%",
        "rocketmq.broker.diskSpaceCleanForciblyRatio",
        "the use of the disk above which the oldest messages are removed before they expire; "
        "100 never removes them",
        0,
        100,
    ),
    Setting(
        "disk-full-percent",
        int,
        90,
        "%",
        "rocketmq.broker.diskSpaceWarningLevelRatio",
        "the use of the disk above which the broker refuses messages; 100 lets the disk fill up",
        0,
        100,
    ),
    Setting(
        "log-file-mib",
        int,
        1024,
        "MiB",
        "MessageStoreConfig.mappedFileSizeCommitLog",
        "the size of each file of the commit log; a file expires as a whole; a store keeps the "
        "size of its first start",
        1,
        1_024,
    ),
    Setting(
        "brokers",
        int,
        1,
        "",
        "",
        "the number of brokers, each in a process of its own, as one broker uses one core; the "
        "second has the name broker-a-2, the directory store-2, and the port ten above the "
        "first one's",
        1,
        16,
    ),
    Setting("broker-name", str, "broker-a", "", "BrokerConfig.brokerName", "the broker's name"),
    Setting(
        "cluster-name",
        str,
        "DefaultCluster",
        "",
        "BrokerConfig.brokerClusterName",
        "the broker's cluster",
    ),
    Setting(
        "auto-create-topics",
        bool,
        True,
        "",
        "BrokerConfig.autoCreateTopicEnable",
        "create a missing topic when a message is sent to it",
    ),
    Setting(
        "duplicate-client-id",
        str,
        "warn",
        "",
        "",
        "the answer to a consumer whose client id another connection of its group uses: warn "
        "accepts the consumer, as RocketMQ does, and logs a warning; reject refuses the "
        "consumer while the other is connected",
        choices=("warn", "reject"),
    ),
    Setting(
        "transaction-timeout-ms",
        int,
        6_000,
        "ms",
        "BrokerConfig.transactionTimeOut",
        "how long a half message waits before its producer is asked for the outcome",
        1,
        _INT_MAX,
    ),
    Setting(
        "transaction-check-interval-ms",
        int,
        60_000,
        "ms",
        "BrokerConfig.transactionCheckInterval",
        "the time between two rounds of asking producers for outcomes",
        100,
        _INT_MAX,
    ),
    Setting(
        "transaction-check-max",
        int,
        15,
        "",
        "BrokerConfig.transactionCheckMax",
        "how often producers are asked for one outcome before the broker moves the message to "
        "TRANS_CHECK_MAX_TIME_TOPIC",
        1,
        _INT_MAX,
    ),
    Setting(
        "nameserver",
        str,
        "127.0.0.1:9876",
        "",
        "BrokerConfig.namesrvAddr",
        "the addresses of the name servers to register at, separated by ';'",
    ),
    Setting(
        "advertise",
        str,
        "",
        "",
        "BrokerConfig.brokerIP1",
        "the IP address at which clients reach the broker, if it differs from --host",
    ),
    Setting(
        "health-port",
        int,
        None,
        "",
        "",
        "the port that answers /health and /ready over HTTP, on --host; 0 takes any free port",
        0,
        65_535,
    ),
    Setting(
        "acl",
        str,
        "",
        "",
        "aclEnable and conf/plain_acl.yml",
        "the access control file, in the format of plain_acl.yml; only its accounts may use the "
        "servers; running servers load a changed file",
    ),
    Setting(
        "acl-credentials",
        str,
        "",
        "",
        "conf/tools.yml",
        "a file with the accessKey and secretKey by which a broker registers at name servers "
        "with access control",
    ),
    Setting(
        "insecure",
        bool,
        False,
        "",
        "",
        "allow a --host that other machines can reach, though nothing checks who connects",
    ),
    Setting(
        "tls-cert",
        str,
        "",
        "",
        "tls.server.certPath",
        "a PEM file with the servers' certificate (and chain); servers with a certificate speak "
        "TLS; running servers load a renewed file",
    ),
    Setting(
        "tls-key",
        str,
        "",
        "",
        "tls.server.keyPath",
        "a PEM file with the certificate's key, without a pass phrase; not needed if --tls-cert "
        "contains the key",
    ),
    Setting(
        "tls-client-ca",
        str,
        "",
        "",
        "tls.server.trustCertPath",
        "a PEM file with authorities; clients must show a certificate that one of them signed; "
        "brokers show theirs to name servers",
    ),
    Setting(
        "tls-mode",
        str,
        "enforcing",
        "",
        "tls.server.mode",
        "for servers with a certificate: enforcing serves only peers that speak TLS, permissive "
        "serves all peers, disabled ignores the certificate",
        choices=("disabled", "permissive", "enforcing"),
    ),
    Setting(
        "tls-ca",
        str,
        "",
        "",
        "tls.client.trustCertPath",
        "connect by TLS, and trust the authorities in this PEM file",
    ),
    Setting(
        "salvage",
        bool,
        False,
        "",
        "",
        "if the commit log is damaged in its middle, cut it there, lose all later messages, and "
        "start; without this option the broker refuses to start",
    ),
    Setting("verbose", bool, False, "", "", "log every connection"),
)
# The prefix of the servers' variables; a setting's name follows in capitals, with `_` for `-`.
ENVIRONMENT_PREFIX = "SPARROWMQ_"
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting:
    """Return the row of a setting.

    Raises: ConfigError for an unknown setting.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ConfigError(f"there is no setting {name!r}; there are {sorted(_BY_NAME)}") from None


def has_setting(name: str) -> bool:
    """Return whether servers have this setting."""
    return name in _BY_NAME


def environment_name(name: str) -> str:
    """Return the environment variable of a server's setting."""
    return f"{ENVIRONMENT_PREFIX}{name.upper().replace('-', '_')}"
