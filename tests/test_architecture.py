"""The house rules that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# One worker alone parses all modules.
pytestmark = pytest.mark.xdist_group("architecture")

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sparrowmq"
MODULES = sorted(SOURCE.rglob("*.py"))
IMPURE = {"asyncio", "socket", "selectors", "threading", "time", "random", "os", "logging"}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "base", "manager", "impl", "misc"}
FUNCTION_LINES_MAX = 70
# A smell, not a target: a module is cut where its thought ends.
MODULE_LINES_MAX = 900

# The two ends of a request may have one name.
BOTH_ENDS = {"broker/processors", "client/operations"}
# Names of parallel parts: a room's settings, a job's parts, a machine on sockets.
TWICE = {"config", "job", "report", "server"}


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """Let go of millions of objects, which each search for garbage would look through."""
    yield
    parse.cache_clear()


@cache
def blocks(name: str) -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found: list[str] = re.findall(rf"```{name}\n(.*?)```", text, re.S)
    assert len(found) == 1, f"ARCHITECTURE.md has {len(found)} blocks named {name}"
    return found[0]


def dependency_table() -> dict[str, set[str]]:
    rows = (line.split("->") for line in blocks("dependencies").splitlines() if line.strip())
    return {left.strip(): set(right.split()) for left, right in rows}


def room(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            found.append((node.lineno, node.module or ""))
    return tuple(found)


@cache
def imported_files(path: Path) -> frozenset[Path]:
    """Return the modules of the package that one imports; a package's `__init__` counts."""
    names: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    paths = [
        SOURCE.parent / name.replace(".", "/") for name in names if name.startswith("sparrowmq.")
    ]
    files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    return frozenset(file for file in files if file.exists())


def is_pure(path: Path) -> bool:
    relative = path.relative_to(SOURCE).as_posix()
    if relative in blocks("edges").split():
        return False
    return any(
        relative == pure or relative.startswith(f"{pure}/") for pure in blocks("pure").split()
    )


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_modules_import_only_what_the_dependency_table_allows() -> None:
    allowed = {name: rooms | {name} for name, rooms in dependency_table().items()}

    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for path in MODULES
        if path != SOURCE / "__init__.py"
        for line, module in imports(path)
        if module.startswith("sparrowmq")
        and ([*module.split("."), ""])[1] not in allowed[room(path)]
    ]

    assert wrong == []


def test_pure_modules_reach_nothing_of_the_world_however_far_their_imports_go() -> None:
    ahead = [(path, name_of(path)) for path in MODULES if is_pure(path)]
    wrong, reached = list[str](), {path for path, _ in ahead}
    assert reached
    while ahead:
        module, way = ahead.pop()
        wrong += [
            f"{way}:{line}: {name}"
            for line, name in imports(module)
            if name.split(".")[0] in IMPURE
        ]
        for found in imported_files(module) - reached:
            reached.add(found)
            ahead.append((found, f"{way} -> {name_of(found)}"))

    assert wrong == []


def test_imports_of_modules_make_no_circle() -> None:
    """Imports for types count as well; a package's `__init__` only collects names."""
    modules = {path for path in MODULES if path.name != "__init__.py"}
    imported = {path: (imported_files(path) - {path}) & modules for path in modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(name_of(path) for path in error.args[1]))


def test_modules_keep_their_form() -> None:
    for path in MODULES:
        text = path.read_text()
        tree = parse(path)
        functions = [
            n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

        assert path.stem not in FORBIDDEN_NAMES, path
        assert len(text.splitlines()) <= MODULE_LINES_MAX, path
        assert [
            f"{f.name} has {f.end_lineno - f.lineno + 1} lines"
            for f in functions
            if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > FUNCTION_LINES_MAX
        ] == [], path
        assert ast.get_docstring(tree), f"{path} has no docstring"
        unbound = re.findall(r"TODO(?!: (?:once|until|when) ).*", text)
        assert unbound == [], f"{path}: a TODO says when it goes"
        assert "pickle" not in {module for _, module in imports(path)}, path


def test_modules_have_tests_of_their_name_or_name_them_in_their_head() -> None:
    tests = ROOT / "tests"
    homes = {(path.parent, path.name) for path in tests.rglob("test_*.py")}
    missing = []
    for path in MODULES:
        # A generated module is tested as its source.
        if path.stem.startswith("__") or "# Made of" in path.read_text()[:20]:
            continue
        named = re.search(r"\bTests: ([\w/., ]+)\.$", ast.get_docstring(parse(path)) or "")
        if named is None:
            name, of_room = f"test_{path.stem}.py", tests / room(path)
            if not any(found == name and home.is_relative_to(of_room) for home, found in homes):
                missing.append(f"{name_of(path)}: {name}")
            continue
        home = tests / path.parent.relative_to(SOURCE)
        missing += [
            f"{name_of(path)}: {name}"
            for name in named[1].split(", ")
            if not ((home / name).exists() or (tests / name).exists())
        ]

    assert missing == []


def test_tables_name_only_what_exists() -> None:
    rooms = {room(path) for path in MODULES} - {"__init__"}
    assert rooms == set(dependency_table())
    named = blocks("pure").split() + blocks("edges").split()
    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_walks_name_only_what_exists() -> None:
    stops = re.findall(r"^  (\S+): (.+)$", blocks("walks"), re.M)
    missing = []
    for path, names in stops:
        text = (SOURCE / path).read_text()
        for part in re.split(r", |\.", names):
            if not re.search(rf"^ *(class|def|async def) {part}\b", text, re.M):
                missing.append(f"{path}: {part}")

    assert len(stops) > 40
    assert missing == []


def test_table_of_rocketmqs_mechanisms_names_only_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("| RocketMQ | SparrowMQ |")[2].partition("\n\n")[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", table)

    assert len(named) > 30
    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_module_name_means_one_thing() -> None:
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        # A command's module has the command's name.
        if room(path) != "cli" and not path.stem.startswith("__"):
            homes.setdefault(path.stem, set()).add(name_of(path.parent))

    assert {
        stem: paths
        for stem, paths in homes.items()
        if len(paths) > 1 and stem not in TWICE and paths != BOTH_ENDS
    } == {}


def test_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_repository_names_no_place_of_a_machine() -> None:
    shared, home = "/" + "work/", "/" + "root/"
    for path in [*SOURCE.rglob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        text = path.read_text()
        assert shared not in text, path
        assert home not in text, path
