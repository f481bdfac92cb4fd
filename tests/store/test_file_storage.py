from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from small_stores import flush, open_store
from sparrowmq.errors import StoreError
from sparrowmq.protocol.record import Record
from sparrowmq.store import MessageStore, StoreConfig, file_storage
from sparrowmq.store.file_series import DamagedSeries, FileSeries
from sparrowmq.store.file_storage import FileStorage, FileStorageFile, ReadOnlyStorage, sync_names


def test_created_file_is_sparse_zero_and_private(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "store")
    file = storage.create("a/b/c", size=1 << 30)

    assert file.size == 1 << 30
    assert bytes(9) == file.read((1 << 30) - 9, 9)
    status = (tmp_path / "store/a/b/c").stat()
    assert status.st_blocks * 512 < 1 << 16
    assert status.st_mode & 0o777 == 0o600
    assert (tmp_path / "store/a").stat().st_mode & 0o777 == 0o700
    file.write(0, b"x")
    assert storage.create("a/b/c", size=9).read(0, 9) == bytes(9)


def test_reads_end_with_the_file_and_writes_do_not_pass_it(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).create("f", size=10)
    file.write(5, b"abcde")

    assert file.read(8, 5) == b"de"
    assert file.read(10, 5) == b""
    with pytest.raises(OSError, match="fixed size"):
        file.write(6, b"abcde")
    os.truncate(tmp_path / "f", 7)
    with pytest.raises(OSError, match="shorter than it was"):
        file.read(5, 5)


def test_bytes_that_the_disk_takes_and_gives_in_parts_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    file = FileStorage(tmp_path).create("a/0", size=12)

    file.write(1, b"0123456789")

    for opened in (file, ReadOnlyStorage(tmp_path).open("a/0")):
        assert opened.read(0, 12) == b"\x000123456789\0"
        assert opened.read(4, 99) == b"3456789\0"


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("pwrite", lambda file: file.write(0, b"x")),
        ("pread", lambda file: file.read(0, 1)),
        ("pread", lambda file: file.next_data(0)),
        ("ftruncate", lambda file: file.resize(4)),
        ("ftruncate", lambda file: file.zero_from(4)),
        ("fdatasync", lambda file: file.sync()),
    ],
)
@pytest.mark.parametrize("pinned", [False, True])
def test_an_error_of_the_disk_names_its_file(
    call: str,
    use: Callable[[FileStorageFile], object],
    pinned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = FileStorage(tmp_path).create("a/0", size=8, pinned=pinned)
    file.write(0, b"x")
    monkeypatch.setattr(os, call, Mock(side_effect=OSError(errno.EIO, "broken")))

    with pytest.raises(OSError, match=f"broken: '{tmp_path}/a/0'"):
        use(file)


def test_an_error_of_a_new_file_a_directory_and_a_file_only_read_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileStorage(tmp_path).create("a/0", size=8)
    broken = Mock(side_effect=OSError(errno.EIO, "broken"))
    monkeypatch.setattr(os, "pread", broken)
    monkeypatch.setattr(os, "fsync", broken)
    monkeypatch.setattr(os, "ftruncate", broken)

    with pytest.raises(OSError, match=f"broken: '{tmp_path}/b'"):
        FileStorage(tmp_path).create("b", size=8)
    with pytest.raises(OSError, match=f"broken: '{tmp_path}/a'"):
        sync_names(tmp_path / "a")
    with pytest.raises(OSError, match=f"broken: '{tmp_path}/a/0'"):
        ReadOnlyStorage(tmp_path).open("a/0").read(0, 1)


def test_a_file_is_written_and_read_as_far_as_it_was_extended(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).create("f", size=4)

    file.resize(10)
    file.write(6, b"abcd")
    assert (file.size, file.read(0, 99)) == (10, b"\0\0\0\0\0\0abcd")
    file.resize(8)
    assert (file.size, file.read(5, 99)) == (8, b"\0ab")


def test_room_that_only_the_super_user_may_use_is_neither_used_nor_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = SimpleNamespace(f_frsize=512, f_bsize=4096, f_blocks=200, f_bfree=50, f_bavail=30)
    monkeypatch.setattr(os, "statvfs", lambda path: counts)

    space = FileStorage(tmp_path).disk_space()

    assert space == (200 * 512, 150 * 512, 30 * 512)
    # 150 of 180.
    assert space.used_percent == 84


def test_next_data_skips_holes_and_zeros(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).create("f", size=64 << 20)
    assert file.next_data(0) is None
    file.write(50 << 20, b"\0\0x")
    file.write(60 << 20, bytes(1000))

    assert file.next_data(0) == (50 << 20) + 2
    assert file.next_data((50 << 20) + 2) == (50 << 20) + 2
    assert file.next_data((50 << 20) + 3) is None
    file.zero_from((50 << 20) + 1)
    assert file.next_data(0) is None
    assert 64 << 20 == file.size == (tmp_path / "f").stat().st_size


def test_few_descriptors_serve_many_files(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, open_files_max=4)
    before = len(os.listdir("/proc/self/fd"))
    files = [storage.create(f"q/{n}", size=20) for n in range(50)]
    for n, file in enumerate(files):
        file.write(0, b"%020d" % n)

    assert [b"%020d" % n for n in range(50)] == [file.read(0, 20) for file in files]
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    for file in files:
        file.sync()
        file.close()
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_closed_store_has_no_file_open(tmp_path: Path, new_record: Callable[..., Record]) -> None:
    before = open_descriptors()
    for number in range(3):
        store = open_store(FileStorage(tmp_path))
        for _ in range(40):
            store.put(new_record(b"x"), timestamp_ms=number)
        flush(store)
        store.close()

        assert open_descriptors() == before


def test_cut_and_discarded_files_are_not_open(tmp_path: Path) -> None:
    before = open_descriptors()
    series = FileSeries(FileStorage(tmp_path), "s", file_size=10, pinned=True)
    for base in range(0, 50, 10):
        series.add_file(base)
    series.cut(15)
    assert open_descriptors() == before + 2
    series.remove_first()
    assert open_descriptors() == before + 1
    series.discard()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("os.ftruncate", lambda root: FileStorage(root).create("new", size=8)),
        ("os.fdatasync", lambda root: sync_file(root)),
        ("os.fsync", sync_names),
        ("os.pread", lambda root: ReadOnlyStorage(root).open("a").read(0, 1)),
        ("fcntl.flock", lambda root: FileStorage(root).lock()),
        ("fcntl.lockf", lambda root: FileStorage(root).lock()),
        ("fcntl.flock", lambda root: ReadOnlyStorage(root).lock()),
        ("fcntl.lockf", lambda root: ReadOnlyStorage(root).lock()),
    ],
)
def test_what_fails_leaves_no_further_file_open(
    call: str,
    use: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "lock"):
        (tmp_path / name).write_bytes(b"x")
    before = open_descriptors()
    monkeypatch.setattr(call, Mock(side_effect=OSError(errno.EIO, "broken")))

    with pytest.raises((OSError, StoreError)):
        use(tmp_path)
    assert open_descriptors() == before


def sync_file(root: Path) -> None:
    file = FileStorage(root).open("a")
    try:
        file.sync()
    finally:
        file.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("at", [4096, 2 << 20])
def test_file_is_synced_and_searched_where_the_system_lacks_the_calls_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    # macOS has no fdatasync.
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "SEEK_DATA")
    storage = FileStorage(tmp_path)
    for pinned in (True, False):
        file = storage.create(f"{pinned}", size=3 << 20, pinned=pinned)
        file.write(at, b"x")
        file.sync()

        assert at == file.next_data(0)
        assert file.next_data(at + 1) is None


def test_storage_leaves_most_of_few_descriptors_to_others(tmp_path: Path) -> None:
    code = (
        "import os, resource, sys\n"
        "from sparrowmq.store.file_storage import FileStorage\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "storage = FileStorage(sys.argv[1])\n"
        "files = [storage.create(f'{n}', size=1) for n in range(99)]\n"
        "print(len(os.listdir('/proc/self/fd')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True
    )

    assert int(run.stdout) <= 64 // 4 + 8


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd"])
def test_paths_do_not_leave_the_root(path: str, tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "store")

    with pytest.raises(StoreError, match="leaves"):
        storage.create(path, size=1)
    with pytest.raises(StoreError, match="leaves"):
        storage.has(path)


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "store")
    (tmp_path / "target").write_bytes(b"secret")
    os.symlink(tmp_path / "target", tmp_path / "store" / "link")

    with pytest.raises(OSError, match="link"):
        storage.open("link")
    with pytest.raises(OSError, match="link"):
        storage.create("link", size=1)


def test_directory_is_held_once_in_a_process(tmp_path: Path) -> None:
    first, second = FileStorage(tmp_path), FileStorage(tmp_path)
    first.lock()

    with pytest.raises(StoreError, match="in use"):
        second.lock()
    # Reading the file here would give this process's record lock away.
    assert (tmp_path / "lock").stat().st_size == 4
    code = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB, 1)"
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lock")], capture_output=True, check=False
    )
    assert run.returncode != 0, "the second attempt has given the record lock away"
    first.unlock()
    second.lock()
    second.unlock()


@pytest.mark.parametrize("storage_type", [FileStorage, ReadOnlyStorage])
@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_directory_that_cannot_be_locked_is_not_called_in_use(
    storage_type: type[FileStorage | ReadOnlyStorage],
    call: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lock").touch()
    storage = storage_type(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    # So do file systems of other machines, such as NFS.
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, call, fail)
        with pytest.raises(StoreError, match="cannot be locked: No locks available; choose"):
            storage.lock()

    storage.lock()
    storage.unlock()


def test_directory_is_held_for_reading_without_the_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FileStorage(tmp_path)
    first.lock()
    first.unlock()
    storage, real_open = ReadOnlyStorage(tmp_path), os.open

    def open_on_a_mount_for_reading(path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real_open(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_on_a_mount_for_reading)
        storage.lock()
    code = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB, 1)"
    java = [sys.executable, "-c", code, str(tmp_path / "lock")]
    held = subprocess.run(java, capture_output=True, check=False)
    storage.unlock()
    free = subprocess.run(java, capture_output=True, check=False)

    assert (held.returncode != 0, free.returncode) == (True, 0)


def test_directory_whose_lock_cannot_be_made_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    storage = FileStorage(tmp_path)
    with pytest.raises(IsADirectoryError):
        storage.lock()
    (tmp_path / "lock").rmdir()

    storage.lock()
    storage.unlock()


def test_lock_that_a_full_disk_does_not_take_is_named(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            storage.lock()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert caught.value.filename == str(tmp_path / "lock")


def test_directory_held_as_java_holds_it_is_refused(tmp_path: Path) -> None:
    code = (
        "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        storage = FileStorage(tmp_path)
        with pytest.raises(StoreError, match="in use"):
            storage.lock()
        holder.stdin.close()
    storage.lock()
    storage.unlock()


def test_store_makes_files_of_apaches_sizes(
    tmp_path: Path, new_record: Callable[..., Record]
) -> None:
    store = MessageStore(FileStorage(tmp_path), StoreConfig())
    store.load(timestamp_ms=1)
    store.put(new_record(b"x"), timestamp_ms=1)
    assert (tmp_path / "abort").stat().st_size == 0
    store.close()

    zero = "0" * 20
    assert (tmp_path / "commitlog" / zero).stat().st_size == 1 << 30
    assert (tmp_path / "consumequeue/T/0" / zero).stat().st_size == 6_000_000
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    assert [path.stat().st_size for path in (tmp_path / "index").iterdir()] == [420_000_040]
    names = ["checkpoint", "commitlog", "consumequeue", "expiring", "index", "lock", "stopped"]
    assert names == sorted(os.listdir(tmp_path))


def test_failed_load_gives_the_directory_back(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").write_bytes(b"")

    for _ in range(2):
        with pytest.raises(DamagedSeries, match=r"notes\.txt"):
            MessageStore(FileStorage(tmp_path), StoreConfig()).load(timestamp_ms=1)


def test_a_gap_of_many_files_is_not_filled(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    for directory, last in (("few", 65), ("many", 66)):
        for number in (0, last):
            storage.create(f"{directory}/{10 * number:020d}", size=10)

    FileSeries(storage, "few", file_size=10).load(repair=True)
    with pytest.raises(StoreError, match="a file is missing, or the configured size is wrong"):
        FileSeries(storage, "many", file_size=10).load(repair=True)
    with pytest.raises(DamagedSeries, match="a file is missing"):
        FileSeries(storage, "many", file_size=10).load()
    assert [len(storage.list_names(each)) for each in ("few", "many")] == [66, 2]


def test_cut_file_is_damaged_if_data_follows_and_is_extended_if_not(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    *_, last = [
        storage.create(f"s/{10 * number:020d}", size=size)
        for number, size in enumerate((10, 7, 10))
    ]
    last.write(9, b"x")

    with pytest.raises(DamagedSeries, match="7 bytes; 10 are configured"):
        FileSeries(storage, "s", file_size=10).load()
    last.write(9, b"\0")
    FileSeries(storage, "s", file_size=10).load()
    assert (tmp_path / "s" / f"{10:020d}").stat().st_size == 10


def test_file_that_is_larger_than_the_others_is_refused_and_not_cut(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    for number, size in enumerate((10, 12)):
        storage.create(f"s/{10 * number:020d}", size=size)

    with pytest.raises(StoreError, match="12 bytes; 10 are configured"):
        FileSeries(storage, "s", file_size=10).load(repair=True)
    assert (tmp_path / "s" / f"{10:020d}").stat().st_size == 12


@pytest.mark.parametrize(("size", "kept"), [(8192, 8192), (9000, 16384)])
def test_only_file_of_a_log_shows_its_size_in_whole_pages(
    tmp_path: Path, size: int, kept: int
) -> None:
    storage = FileStorage(tmp_path)
    storage.create(f"s/{0:020d}", size=size)
    series = FileSeries(storage, "s", file_size=16384)
    series.load(repair=True, keeps_size=True)

    assert (series.file_size, (tmp_path / "s" / f"{0:020d}").stat().st_size) == (kept, kept)


def test_series_reads_and_writes_across_files(tmp_path: Path) -> None:
    series = FileSeries(FileStorage(tmp_path), "s", file_size=10)
    data = bytes(range(35))
    series.add_file(20)
    written = series.write(20, data)

    assert series.bases == [20, 30, 40, 50]
    assert len(written) == 4
    assert data == series.read(20, 35)
    assert data[8:25] == series.read(28, 17)
    assert series.read(60, 1) == b""
    assert (series.base_of(29), series.base_of(19), series.base_of(60)) == (20, None, None)
    assert series.next_data(0) == 21
    series.cut(33)
    assert ([20, 30], bytes(7)) == (series.bases, series.read(33, 99))
    series.cut(30)
    assert series.bases == [20, 30]
    loaded = FileSeries(FileStorage(tmp_path), "s", file_size=10)
    loaded.load()
    assert data[:10] + bytes(10) == loaded.read(20, 99)


def test_names_of_a_new_root_and_of_the_directories_around_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        file_storage, "sync_names", lambda path: synced.append(os.path.relpath(path, tmp_path))
    )

    FileStorage(tmp_path / "data" / "store")
    FileStorage(tmp_path / "data" / "nameserver")
    FileStorage(tmp_path / "data" / "store")

    assert synced == ["data", ".", "data"]


def test_a_name_is_durable_with_the_names_of_the_directories_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/b/c", size=1)
    synced: list[str] = []
    monkeypatch.setattr(
        file_storage, "sync_names", lambda path: synced.append(os.path.relpath(path, tmp_path))
    )

    storage.sync_directory("a/b")

    assert sorted(synced) == [".", "a", "a/b"]


def test_a_directory_is_removed_only_once_it_is_empty(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/b", size=1)

    storage.remove_directory("a")
    storage.remove_directory("none")
    assert storage.list_names("a") == ["b"]
    storage.remove("a/b")
    storage.remove("a/b")
    storage.remove_directory("a")
    assert not storage.has("a")
    storage.create("f", size=1)
    with pytest.raises(OSError, match="Not a directory"):
        storage.remove_directory("f")


@pytest.mark.parametrize("count", [3, 100])
def test_all_files_and_their_directories_up_to_the_root_are_synced_once(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    files = [storage.create(f"consumequeue/T/{n}/0", size=20) for n in range(count)]
    synced: list[str] = []
    sync_names, sync = file_storage.sync_names, FileStorageFile.sync

    def note_names(path: str) -> None:
        synced.append(os.path.relpath(path, tmp_path))
        sync_names(path)

    def note_file(file: FileStorageFile) -> None:
        synced.append(file.path)
        sync(file)

    monkeypatch.setattr(file_storage, "sync_names", note_names)
    monkeypatch.setattr(FileStorageFile, "sync", note_file)
    storage.sync_all(files, [f"consumequeue/T/{n}" for n in range(count)])

    expected = {".", "consumequeue", "consumequeue/T"}
    expected |= {f"consumequeue/T/{n}" for n in range(count)} | {file.path for file in files}
    assert sorted(expected) == sorted(synced)


def test_an_error_of_the_disk_is_not_hidden_by_a_shortage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    files = [storage.create(f"f{n}", size=20) for n in range(100)]
    codes = {"f1": errno.EMFILE, "f50": errno.EIO, "f99": errno.EMFILE}

    def fail(file: FileStorageFile) -> None:
        if code := codes.get(file.path):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(FileStorageFile, "sync", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        storage.sync_all(files, [""])


@pytest.mark.parametrize("thread_count", [0, 3])
def test_files_are_synced_without_more_threads(
    thread_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    files = [storage.create(f"f{n}", size=20) for n in range(100)]
    synced, sync, start = set[str](), FileStorageFile.sync, threading.Thread.start

    def note_file(file: FileStorageFile) -> None:
        synced.add(file.path)
        sync(file)

    def start_some(thread: threading.Thread) -> None:
        if int(thread.name.rpartition("_")[2]) >= thread_count:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(FileStorageFile, "sync", note_file)
    monkeypatch.setattr(threading.Thread, "start", start_some)
    storage.sync_all(files, [""])

    assert synced == {file.path for file in files}


@pytest.mark.parametrize("count", [3, 100])
def test_one_file_that_cannot_be_synced_is_an_error_of_all(count: int, tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    files = [storage.create(f"consumequeue/T/{n}/0", size=20) for n in range(count)]
    storage.remove(files[count // 2].path)

    with pytest.raises(FileNotFoundError):
        storage.sync_all(files, ["consumequeue/T/0"])
