"""The file of access control, plain_acl.yml: read, watched, and written. An edge.

All scalars are read as texts, exactly as in the file: a secret key of digits keeps its leading
zeros. PyYAML, of the extra `server`, only finds the marks of the text and constructs no object
from it. Aliases are refused: with them a small file stands for a large tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any

from sparrowmq.calling.durable_files import sync_names, write_synced
from sparrowmq.errors import ConfigError, install_command
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.serving.access_control import AccessControl, AccessFault, Document, Path
from sparrowmq.serving.watched_files import Stamps, WatchedFiles

LOG = logging.getLogger("sparrowmq.access")

_FILE_BYTES_MAX = 4 << 20
_NODES_MAX = 500_000
_DEPTH_MAX = 8
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class AccessFile:
    """The file, and the rules from it that are in force.

    Args:
        own: the credentials of this process's own broker, as in `AccessControl`.

    Raises: ConfigError if the file cannot be read or is invalid.
    """

    def __init__(self, path: FilePath, *, own: Credentials | None) -> None:
        self._path = path
        self._files = WatchedFiles([path], what="the rules of access control", log=LOG)
        # Only one thread reads or writes the file.
        self._lock = threading.Lock()
        document, lines = _read_yaml(self._path)
        try:
            self.control = AccessControl(
                document, self._write, load=self._find_newest, own=own, lock=self._lock
            )
        except AccessFault as error:
            raise self._located(error, lines) from error
        LOG.info(
            "access control by %s: %d accounts; white lists narrow who may come, and replace no "
            "signature",
            path,
            len(self.control.table.accounts),
        )

    async def look(self) -> None:
        """Read the file if it has changed, in a thread; invalid rules change nothing."""
        stamps = self._files.find_change()
        if stamps is not None:
            await asyncio.to_thread(self._reload, stamps)

    def _reload(self, stamps: Stamps) -> None:
        try:
            with self._lock:
                document, lines = _read_yaml(self._path)
                # Whoever writes meanwhile is noticed by the next looks.
                if not self._files.are_still(stamps):
                    return
                try:
                    self.control.replace(document)
                except AccessFault as error:
                    raise self._located(error, lines) from error
        except ConfigError as error:
            self._files.note_failure(stamps, error)
        else:
            self._files.note_used(stamps)
            count = len(self.control.table.accounts)
            LOG.info("access control by %s was changed: %d accounts", self._path, count)

    def _find_newest(self) -> Document | None:
        """Return the content of a file that others have changed. Raises: AccessFault."""
        try:
            stamps = self._files.find_unused()
            if stamps is None:
                return None
            document: Document = _read_yaml(self._path)[0]
        except ConfigError as error:
            raise AccessFault(f"the file was changed, and {error}") from error
        if not self._files.are_still(stamps):
            raise AccessFault("others write the file; try again")
        return document

    def _located(self, error: AccessFault, lines: dict[Path, int]) -> ConfigError:
        path = error.path
        while path and path not in lines:
            path = path[:-1]
        return ConfigError(f"{self._path}, line {lines.get(path, 1)}: {error}")

    def _write(self, document: Document) -> None:
        yaml = _import_yaml()
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(_typed(document), Dumper=dumper, sort_keys=False, allow_unicode=True)
        # A link to the file stays: others may read the file itself. Brokers of several processes
        # may share the file.
        file_path = self._path.resolve()
        temporary = file_path.with_name(f"{file_path.name}.{os.getpid()}.tmp")
        try:
            write_synced(temporary, text.encode(), mode=0o600)
            os.replace(temporary, file_path)
            # A power cut must not bring back a revoked account.
            sync_names(file_path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._files.note_used()


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
            f"access control needs PyYAML, which is not installed; {install_command('server')}"
        ) from error
    return yaml


class _Tree:
    """The texts, lists and mappings of a YAML document, built from its events.

    Attributes:
        lines: the line of each, by its path.
    """

    def __init__(self) -> None:
        self.document: Any = {}
        self.lines: dict[Path, int] = {}
        # The open lists and mappings, the outermost first, each with its path.
        self._open: list[tuple[list[Any] | dict[str, Any], Path]] = []
        # The key whose value comes next, of each open mapping.
        self._keys: list[str | None] = []

    def build(self, events: Iterable[Any], yaml: Any) -> None:
        """Build the document. Raises: AccessFault; YAMLError."""
        documents = 0
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent):
                is_null = not event.style and event.implicit[0] and event.value in _NULLS
                self._add_text("" if is_null else event.value, line)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._open.pop()
                self._keys.pop()
            elif isinstance(event, yaml.AliasEvent):
                # Its name may be a secret that begins with a star, without quotes.
                raise self._fault("an alias (*name) is not taken; repeat its text, or quote", line)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._fault("a second document begins here; one is taken", line)

    def _fault(self, text: str, line: int) -> AccessFault:
        path = self._open[-1][1] if self._open else ()
        self.lines[path] = line
        return AccessFault(text, path)

    def _add_text(self, text: str, line: int) -> None:
        if self._open and isinstance(self._open[-1][0], dict) and self._keys[-1] is None:
            if text in self._open[-1][0]:
                raise self._fault(f"the key {text!r} is there twice", line)
            self._keys[-1] = text
            self.lines[*self._open[-1][1], text] = line
        else:
            self._place(text, line)

    def _begin(self, collection: list[Any] | dict[str, Any], line: int) -> None:
        path = self._place(collection, line)
        if len(path) > _DEPTH_MAX:
            raise AccessFault(f"more than {_DEPTH_MAX} lists or mappings are in each other", path)
        self._open.append((collection, path))
        self._keys.append(None)

    def _place(self, value: Any, line: int) -> Path:
        """Put a value where it belongs; return its path."""
        path: Path
        if not self._open:
            self.document, path = value, ()
        else:
            parent, parent_path = self._open[-1]
            if isinstance(parent, list):
                path = (*parent_path, len(parent))
                parent.append(value)
            elif (key := self._keys[-1]) is None:
                raise self._fault("a key must be a text", line)
            else:
                path = (*parent_path, key)
                parent[key] = value
                self._keys[-1] = None
        if path not in self.lines:
            self.lines[path] = line
        if len(self.lines) > _NODES_MAX:
            raise AccessFault(f"there are more than {_NODES_MAX} values", path)
        return path


def _read_yaml(path: FilePath) -> tuple[Any, dict[Path, int]]:
    """Return the texts, lists and mappings of a file, and the line of each by its path.

    Depth and count are checked event by event, before anything is built of the rest.

    Raises: ConfigError.
    """
    yaml = _import_yaml()
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; check the path that --acl or "
            "--acl-credentials gives, and the file's permissions"
        ) from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
    tree = _Tree()
    # The one in C takes a twentieth of the time, and is in most builds of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree.build(yaml.parse(data, Loader=loader), yaml)
    except AccessFault as error:
        raise ConfigError(f"{path}, line {tree.lines.get(error.path, 1)}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{path}{line}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    return tree.document, tree.lines


def read_credentials(path: FilePath) -> Credentials:
    """Return the keys of a file in the form of RocketMQ's tools.yml (accessKey and secretKey).

    Raises: ConfigError.
    """
    found, _ = _read_yaml(path)
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) and found[name] for name in ("accessKey", "secretKey")
    ):
        raise ConfigError(f"{path} must say accessKey and secretKey")
    return Credentials(access_key=found["accessKey"], secret_key=found["secretKey"])
