"""The file of access control: read, watched, written."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparrowmq.errors import ConfigError
from sparrowmq.serving import access_file
from sparrowmq.serving.access_control import AccessFault, Document
from sparrowmq.serving.access_file import AccessFile, read_credentials

# As RocketMQ ships it, with a key whose zeros count.
TEXT = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*

accounts:
  - accessKey: RocketMQ
    secretKey: 0123456
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
"""


def file_of(tmp_path: Path, text: str) -> AccessFile:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    return AccessFile(path, own=None)


def test_the_file_of_rocketmq_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        table = file_of(tmp_path, TEXT).control.table

    assert table.accounts["RocketMQ"].secret_key == "0123456"
    assert [account.is_admin for account in table.accounts.values()] == [False, True]
    assert "2 accounts; white lists narrow who may come, and replace no signature" in caplog.text
    assert "0123456" not in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("- topicA=DENY", "- topicA=DENYED"), "line 12: 'topicA=DENYED' in topicPerms"),
        (("admin: true", "adnim: true"), "line 15: unknown key 'adnim'"),
        (("secretKey: 12345678", "secretKey: 1"), "line 14: secretKey must be given"),
        (("accounts:", "accounts"), "line 5: could not find expected"),
        (
            ("admin: true", "admin: true\n    admin: true"),
            "line 16: the key 'admin' is there twice",
        ),
        (("10.10.103.*", "&a [*a]"), "line "),
    ],
)
def test_a_wrong_file_is_one_error_with_its_line(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        file_of(tmp_path, TEXT.replace(*change))

    assert f"plain_acl.yml, {words}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_secret_that_looks_like_an_alias_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 6: an alias") as caught:
        file_of(tmp_path, TEXT.replace("12345678", "*12345678").replace("0123456", "*hush-4711"))

    assert "hush" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        AccessFile(tmp_path / "nothing.yml", own=None)


async def follow(file: AccessFile) -> None:
    """Look until a change that was made before is read."""
    for _ in range(2):
        await file.look()


async def test_changes_are_taken_and_a_wrong_one_leaves_the_old_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, TEXT)
    path = tmp_path / "plain_acl.yml"

    path.write_text(TEXT.replace("rocketmq2", "rocketmq3"))
    await follow(file)
    assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq3"]
    for wrong in ("accounts: [", TEXT.replace("DENY", "NO")):
        path.write_text(wrong)
        caplog.clear()
        await follow(file)
        await follow(file)
        assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq3"]
        assert len(caplog.records) == 1
        assert "stay as they were" in caplog.text
    path.unlink()
    await follow(file)
    assert "cannot be read: No such file" in caplog.text
    path.write_text(TEXT)
    await follow(file)
    assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq2"]


async def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    file = file_of(tmp_path, TEXT)
    before = file.control.table

    for cut in range(len(TEXT)):
        (tmp_path / "plain_acl.yml").write_text(TEXT[:cut])
        await file.look()

    assert file.control.table is before


async def test_a_file_that_is_written_while_it_is_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = file_of(tmp_path, TEXT), tmp_path / "plain_acl.yml"
    read = access_file._read_yaml

    def read_too_early(path: Path) -> Any:
        found = read(path)
        path.write_text(TEXT + "# rocketmq4")
        return found

    monkeypatch.setattr(access_file, "_read_yaml", read_too_early)
    path.write_text(TEXT.replace("rocketmq2", "rocketmq3") + "#")
    await follow(file)
    path.write_text(TEXT.replace("rocketmq2", "rocketmq3") + "#")
    with pytest.raises(AccessFault, match="others write the file"):
        file.control.change(lambda document: document)

    assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq2"]
    assert "rocketmq4" in path.read_text()


async def test_three_thousand_accounts_are_read_off_the_loop(tmp_path: Path) -> None:
    account = "  - accessKey: account-{0}\n    secretKey: secret-{0}\n    topicPerms: [T{0}=PUB]\n"
    text = "accounts:\n" + "".join(account.format(n) for n in range(3_000))
    file = file_of(tmp_path, TEXT)
    (tmp_path / "plain_acl.yml").write_text(text)

    begin_s = time.thread_time()
    await follow(file)
    taken_s = time.thread_time() - begin_s

    assert len(file.control.table.accounts) == 3_000
    assert taken_s < 0.05


def bomb(levels: int) -> str:
    """Return a short text of YAML that stands for 9 ** levels texts."""
    lines = ["a0: &a0 x"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


ODD = {
    "lists in lists": "[" * 1_000_000,
    "mappings in mappings": "{a: " * 100_000,
    "a list in each line": "- " * 1_000_000,
    "an impossible character": 'accounts: "\\UFFFFFFFF"',
    "aliases": bomb(9),
    "a list as a key": "? [a]\n: b",
    "a mapping as a key": "? {a: b}\n: b",
    "two documents": "accounts: []\n---\naccounts: []",
    "a text": "accounts",
    "a list": "- accounts",
    "a number of accounts": "accounts: 3",
    "bytes": "\x00\x01",
    "half a character": "\udcff",
    "too many values": "accounts: [" + "a," * 600_000 + "]",
    "too large": "#" * (5 << 20),
    "a tag": "!!python/object/apply:os.system [true]",
}


@pytest.mark.parametrize("pure", [False, True], ids=["in C", "in Python"])
async def test_no_file_ends_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, pure: bool
) -> None:
    if pure:
        monkeypatch.delattr(yaml, "CSafeLoader")
        monkeypatch.delattr(yaml, "CSafeDumper")
    file = file_of(tmp_path, TEXT)
    path = tmp_path / "plain_acl.yml"
    logged: dict[str, int] = {}
    slow: dict[str, float] = {}
    for name, text in ODD.items():
        if pure and len(text) > 1_000_000:
            continue
        path.write_bytes(text.encode(errors="surrogateescape"))
        caplog.clear()
        begin_s = time.process_time()
        await follow(file)
        if (taken_s := time.process_time() - begin_s) > 5:
            slow[name] = taken_s
        logged[name] = len(caplog.records)
    path.write_text(TEXT.replace("rocketmq2", "rocketmq3"))
    await follow(file)

    assert logged == dict.fromkeys(logged, 1)
    assert slow == {}
    assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq3"]


async def test_a_change_by_a_request_is_not_undone_by_what_a_look_has_found(
    tmp_path: Path,
) -> None:
    file = file_of(tmp_path, TEXT)
    (tmp_path / "plain_acl.yml").write_text(TEXT.replace("rocketmq2", "rocketmq3"))
    await file.look()

    file.control.change(lambda document: {**document, "accounts": document["accounts"][:1]})
    await follow(file)

    assert list(file.control.table.accounts) == ["RocketMQ"]
    assert "rocketmq" not in (tmp_path / "plain_acl.yml").read_text()


def test_a_change_by_a_request_undoes_no_change_of_the_file(tmp_path: Path) -> None:
    file, other = file_of(tmp_path, TEXT), AccessFile(tmp_path / "plain_acl.yml", own=None)
    other.control.change(lambda document: {**document, "accounts": document["accounts"][:1]})

    def add_address(document: Document) -> Document:
        return {**document, "globalWhiteRemoteAddresses": ["10.0.0.1"]}

    file.control.change(add_address)

    assert list(file.control.table.accounts) == ["RocketMQ"]
    assert "rocketmq2" not in (tmp_path / "plain_acl.yml").read_text()


@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_change_by_a_request_overwrites_no_file_that_cannot_be_used(
    tmp_path: Path, is_seen: bool
) -> None:
    file = file_of(tmp_path, TEXT)
    path = tmp_path / "plain_acl.yml"
    for wrong, words in (("accounts: [", "line 2"), (TEXT.replace("DENY", "NO"), "is 'NO'")):
        path.write_text(wrong)
        if is_seen:
            await follow(file)
        with pytest.raises(AccessFault, match=words):
            file.control.change(lambda document: document)
        assert path.read_text() == wrong
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(AccessFault, match="not a regular file"):
        file.control.change(lambda document: document)

    assert list(file.control.table.accounts) == ["RocketMQ", "rocketmq2"]


def test_what_is_written_is_read_again_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = file_of(tmp_path, TEXT)

    file.control.change(
        lambda document: {**document, "dataVersion": [{"counter": "3", "timestamp": "17"}]}
    )

    path = tmp_path / "plain_acl.yml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "- counter: 3\n  timestamp: 17\n" in path.read_text()
    assert "admin: true" in path.read_text()
    again = AccessFile(path, own=None).control
    assert again.table == file.control.table
    assert os.listdir(tmp_path) == ["plain_acl.yml"]


def test_a_change_by_a_request_changes_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    other = file_of(tmp_path, TEXT)
    link = tmp_path / "links" / "acl.yml"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "plain_acl.yml")
    file = AccessFile(link, own=None)

    file.control.change(lambda document: {**document, "accounts": document["accounts"][:1]})
    other.control.change(lambda document: document)

    assert link.is_symlink()
    assert list(other.control.table.accounts) == ["RocketMQ"]
    assert os.listdir(link.parent) == ["acl.yml"]


def test_power_cut_does_not_bring_back_a_revoked_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path, TEXT)
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        steps.append("names" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        sync(descriptor)

    def note_replace(old: Path, new: Path) -> None:
        steps.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)

    file.control.change(lambda document: {**document, "accounts": document["accounts"][:1]})

    assert steps == ["content", "replace", "names"]


def test_credentials_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: RocketMQ\nsecretKey: 012345678\n")

    found = read_credentials(path)

    assert (found.access_key, found.secret_key) == ("RocketMQ", "012345678")
    path.write_text("accessKey: RocketMQ\n")
    with pytest.raises(ConfigError, match="must say accessKey and secretKey"):
        read_credentials(path)
