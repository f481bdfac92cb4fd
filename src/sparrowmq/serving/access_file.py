"""The file of access control, plain_acl.yml: read, watched, and written. An edge.

All scalars are read as texts, exactly as in the file: a secret key of digits keeps its leading
zeros. PyYAML, of the extra `server`, only builds the tree of nodes and constructs no object from
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path as FilePath
from typing import Any

from sparrowmq.errors import ConfigError
from sparrowmq.protocol.acl import Credentials
from sparrowmq.serving.access import AccessControl, AccessFault, Document, Path

LOG = logging.getLogger("sparrowmq.access")

_FILE_BYTES_MAX = 4 << 20
_NODES_MAX = 500_000
_DEPTH_MAX = 8


class AccessFile:
    """The file, and the rules from it that are in force.

    Args:
        path: the file.
        own: the credentials of this process's own broker, as in `AccessControl`.

    Raises: ConfigError if the file cannot be read or is invalid.
    """

    def __init__(self, path: FilePath, *, own: Credentials | None) -> None:
        self._path = path
        self._stamp = self._look()
        document = self._read()
        self.control = self._make(document, own)
        LOG.info(
            "access control by %s: %d accounts; white lists narrow who may come, and replace no "
            "signature",
            path,
            len(self.control.table.accounts),
        )

    def _make(
        self, document: tuple[Document, dict[Path, int]], own: Credentials | None
    ) -> AccessControl:
        try:
            return AccessControl(document[0], self._write, own=own)
        except AccessFault as error:
            raise self._located(error, document[1]) from error

    def reload(self) -> None:
        """Load the file's rules if the file has changed; invalid rules change nothing."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            document, lines = self._read()
            try:
                self.control.replace(document)
            except AccessFault as error:
                raise self._located(error, lines) from error
        except ConfigError as error:
            LOG.error("the rules of access control stay as they were: %s", error)
        else:
            count = len(self.control.table.accounts)
            LOG.info("access control by %s was changed: %d accounts", self._path, count)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Document, dict[Path, int]]:
        yaml = _import_yaml()
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{self._path} has more than {_FILE_BYTES_MAX} bytes")
        try:
            node = yaml.compose(data, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = "" if mark is None else f", line {mark.line + 1}"
            raise ConfigError(f"{self._path}{line}: {error.problem}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{self._path} is no YAML: {error}") from error
        lines: dict[Path, int] = {}
        try:
            document = {} if node is None else _plain(yaml, node, (), lines)
        except AccessFault as error:
            raise self._located(error, lines) from error
        return document, lines

    def _located(self, error: AccessFault, lines: dict[Path, int]) -> ConfigError:
        path = error.path
        while path and path not in lines:
            path = path[:-1]
        return ConfigError(f"{self._path}, line {lines.get(path, 1)}: {error}")

    def _write(self, document: Document) -> None:
        yaml = _import_yaml()
        text = yaml.safe_dump(_typed(document), sort_keys=False, allow_unicode=True)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._stamp = self._look()


def _typed(document: Document) -> Document:
    """Return the document with the types that RocketMQ writes and demands."""
    typed = dict(document)
    if "accounts" in typed:
        typed["accounts"] = [
            {**account, "admin": account.get("admin", "").lower() == "true"}
            for account in typed["accounts"] or []
        ]
    if "dataVersion" in typed:
        typed["dataVersion"] = [
            {name: int(value) for name, value in version.items()}
            for version in typed["dataVersion"]
        ]
    return typed


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "access control needs PyYAML; install it by pip install 'sparrowmq[server]'"
        ) from error
    return yaml


def _plain(yaml: Any, node: Any, path: Path, lines: dict[Path, int]) -> Any:
    """Return the texts, lists and mappings of a node, and note the line of each."""
    lines[path] = node.start_mark.line + 1
    if len(lines) > _NODES_MAX or len(path) > _DEPTH_MAX:
        raise AccessFault("the file is nested too deep, or too large", path)
    if isinstance(node, yaml.ScalarNode):
        return "" if node.value == "~" or node.tag.endswith(":null") else node.value
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(yaml, each, (*path, number), lines) for number, each in enumerate(node.value)
        ]
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in found:
            lines[path] = key.start_mark.line + 1
            raise AccessFault(f"the key {getattr(key, 'value', '?')!r} is there twice", path)
        found[key.value] = _plain(yaml, value, (*path, key.value), lines)
        lines[(*path, key.value)] = key.start_mark.line + 1
    return found


def read_credentials(path: FilePath) -> Credentials:
    """Return the keys of a file in the form of RocketMQ's tools.yml (accessKey and secretKey).

    Raises: ConfigError.
    """
    yaml = _import_yaml()
    try:
        node = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
        found = {} if node is None else _plain(yaml, node, (), {})
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, AccessFault, ValueError) as error:
        raise ConfigError(f"{path} is no file of keys: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) and found[name] for name in ("accessKey", "secretKey")
    ):
        raise ConfigError(f"{path} must say accessKey and secretKey")
    return Credentials(access_key=found["accessKey"], secret_key=found["secretKey"])
