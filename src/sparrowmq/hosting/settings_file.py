"""Settings of servers from a file and from the environment.

A file has lines `name = value`, like the `broker.conf` of Apache's broker. A name is that of a
command-line option, or RocketMQ's name if the table of settings has one. Empty lines and lines that
begin with `#` are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sparrowmq.config import Setting
from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.hosting.settings import ENVIRONMENT_PREFIX, SETTINGS, environment_name

FILE_BYTES_MAX = 64 << 10
# The pattern of RocketMQ's names in a row's `source`; other sources are not in a broker.conf.
_ROCKETMQ_NAME = re.compile(r"(?:NettyServerConfig|BrokerConfig|MessageStoreConfig)\.(\w+)")
# Settings that are usual in a broker.conf, with the only value that is accepted here.
_FIXED = {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
_ELSEWHERE = {
    "storePathRootDir": "write data; `sparrowmq up` keeps the broker's store in DATA/store",
    "storePathCommitLog": "write data; the log is in the store's commitlog",
    "aclEnable": "write acl, the path of plain_acl.yml",
}
_FLUSH_MODES = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
_BOOLS = ("true", "false")
_WHOLE_NUMBER = r"-?\d{1,18}"
# Other programs' variables may have our prefix. A variable this similar to a setting's is taken for
# a mistyped one.
_SIMILARITY = 0.9


def read_settings(path: Path, rows: Mapping[str, Setting]) -> dict[str, str]:
    """Return a file's checked values, by the rows' names.

    Args:
        rows: the settings that the caller accepts.

    Raises: ConfigError that names the line.
    """
    ours = {row.option: row for row in rows.values()}
    # A caller with both ports takes listenPort for the broker's, which comes later in the table.
    theirs = {found[1]: row for row in rows.values() if (found := _ROCKETMQ_NAME.match(row.source))}
    given: dict[str, str] = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"{path}:{number}"
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            # The line may be a secret, of a file of keys that was given by mistake.
            raise ConfigError(f"{where}: this line is not a setting; write name = value")
        if name in _FIXED:
            _check_fixed(where, name, value)
            continue
        row = ours.get(name) or theirs.get(name)
        if row is None:
            raise ConfigError(f"{where}: {_unknown(name, [*ours, *theirs])}")
        if row.name in given:
            raise ConfigError(f"{where}: {row.option} is given twice; leave one of the lines")
        if name not in ours:
            value = _to_ours(where, row, value)
        given[row.name] = _check(where, name, row, value)
    return given


def read_environment(environ: Mapping[str, str], rows: Mapping[str, Setting]) -> dict[str, str]:
    """Return the checked values of variables, by the rows' names; empty values are ignored.

    Args:
        rows: the settings that the caller accepts; variables of other settings are ignored.

    Raises: ConfigError that names the variable; also for a name that nearly is a setting's.
    """
    known = [environment_name(name) for name in (*SETTINGS, "config")]
    for name in environ:
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        if hint := did_you_mean(name, known, cutoff=_SIMILARITY):
            raise ConfigError(f"the variable {name} is not a setting{hint}")
    return {
        name: _check("the environment", environment_name(name), row, value)
        for name, row in rows.items()
        if (value := environ.get(environment_name(name), ""))
    }


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(
                f"{path} has more than {FILE_BYTES_MAX} bytes; it is not a settings file"
            )
        return data.decode()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; check the path of --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}") from error


def _check_fixed(where: str, name: str, value: str) -> None:
    if value != _FIXED[name]:
        raise ConfigError(
            f"{where}: {name} is {value!r}; it can only be {_FIXED[name]}: brokers do not "
            "replicate here"
        )


def _unknown(name: str, known: list[str]) -> str:
    if name in _ELSEWHERE:
        return f"{name} is not taken; {_ELSEWHERE[name]}"
    hint = did_you_mean(name, known) or f"; there are {', '.join(sorted(known))}"
    return f"there is no setting {name!r}{hint}"


def _to_ours(where: str, row: Setting, value: str) -> str:
    """Return a value of RocketMQ in SparrowMQ's spelling."""
    if row.name == "flush":
        return _FLUSH_MODES.get(value, value)
    if row.name == "log_file_mib" and re.fullmatch(_WHOLE_NUMBER, value):
        size, rest = divmod(int(value), 1 << 20)
        if rest:
            raise ConfigError(f"{where}: {value} bytes are not a whole number of MiB; write one")
        return str(size)
    return value


def _check(where: str, name: str, row: Setting, value: str) -> str:
    if row.kind is bool:
        if value not in _BOOLS:
            raise ConfigError(f"{where}: {name} is {value!r}; write true or false")
    elif row.kind is int:
        if not re.fullmatch(_WHOLE_NUMBER, value):
            raise ConfigError(f"{where}: {name} is {value!r}; write a whole number")
        if row.low is not None and row.high is not None and not row.low <= int(value) <= row.high:
            raise ConfigError(f"{where}: {name} is {value}; it must be {row.low} to {row.high}")
    elif row.kind is Path and not value:
        # Python would take it for the current directory.
        raise ConfigError(f"{where}: {name} is empty; write {row.help}, or leave the line out")
    elif row.choices and value not in row.choices:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be {' or '.join(row.choices)}")
    return value
