"""The shape of the code is tested: who may import whom, sizes, names, the runtime's floor."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "runyard"
RUNTIME = ROOT / "runtime" / "src" / "runyard_runtime"
COMPAT = ROOT / "compat" / "src" / "azureml"

MAX_MODULE = 600  # lines; a module that outgrows this holds two concepts
MAX_FUNCTION = 70  # lines

# What each package may import of the others. A name with a dot means that module alone.
# `settings` is a package of one file.
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "settings": {"domain"},
    "planning": {"domain", "engines.base"},
    "engines": {"domain"},
    "environments": {"domain", "planning"},
    "stores": {"domain"},
    "data": {"domain", "planning", "stores.base"},
    "conductor": {
        "domain",
        "planning",
        "settings",
        "engines.base",
        "environments.base",
        "stores.base",
        "data.catalog",
        "data.sealing",
        "serving.access",
        "serving.bell",
        "serving.front_config",
    },
    # The server is also where everything is put together: main.py opens what the others only
    # know as protocols.
    "server": {"domain", "settings", "conductor", "engines", "environments", "stores", "data"},
    # A process of its own that must stay small: nothing of the server or the conductor.
    "serving": {"domain"},
    # An estimator shows what it will install before any server is asked: a pure table.
    "sdk": {"domain", "settings", "planning.frameworks"},
    "cli": {"domain", "settings", "sdk", "environments.interpreters"},
    "testing": {
        "domain",
        "data.base",
        "engines.base",
        "environments.base",
        "stores.base",
        "stores",
    },
}

FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "misc", "manager", "handler", "processor")

MODULES = sorted(SRC.rglob("*.py"))
RUNTIME_MODULES = sorted(RUNTIME.rglob("*.py"))
COMPAT_MODULES = sorted(COMPAT.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module named in an import statement, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_imports(tree: ast.AST, package: str) -> set[str]:
    prefix = package + "."
    found = {name.removeprefix(prefix) for name in imported(tree) if name.startswith(prefix)}
    return found - {"__version__"}


def allowed(package: str, target: str) -> bool:
    own = target.split(".")[0]
    if own == package:
        return True
    for rule in MAY_IMPORT[package]:
        if rule == own or target == rule or target.startswith(rule + "."):
            return True
    # `from runyard.engines import base` names the package first; the full name is checked too.
    return any(rule.startswith(target + ".") for rule in MAY_IMPORT[package])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent != SRC], ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(SRC).parts[0]
    tree = ast.parse(path.read_text())
    wrong = sorted(name for name in our_imports(tree, "runyard") if not allowed(package, name))
    assert not wrong, f"{package} may not import {wrong}; see MAY_IMPORT"


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages <= set(MAY_IMPORT), "a new package needs a row in MAY_IMPORT"


@pytest.mark.parametrize("path", MODULES + RUNTIME_MODULES + COMPAT_MODULES, ids=name_of)
def test_modules_and_functions_stay_small(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= MAX_MODULE, "split this module by concept"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES + RUNTIME_MODULES, ids=name_of)
def test_names_say_what_is_inside(path: Path) -> None:
    assert path.stem not in FORBIDDEN_NAMES, "name the module after its concept"
    if path.stem != "__init__":
        assert ast.get_docstring(ast.parse(path.read_text())), "say in a line what this is"


def test_there_are_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        graph[name] = our_imports(_top_level(path), "runyard")
    graph = {
        name: {target for target in targets if target in graph and target != name}
        for name, targets in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, road: tuple[str, ...]) -> None:
        assert name not in road, "a cycle: " + " → ".join((*road[road.index(name) :], name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*road, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _top_level(path: Path) -> ast.Module:
    """The module without what runs later or never: bodies, and imports for the type checker."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _runs_later(node)]
    return tree


def _runs_later(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


@pytest.mark.parametrize("path", RUNTIME_MODULES, ids=name_of)
def test_the_runtime_is_old_and_alone(path: Path) -> None:
    # Syntax only; tests/runtime also runs it on every interpreter found, 3.6 among them.
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    known = set(sys.stdlib_module_names) | {"runyard_runtime", "azureml"}
    foreign = sorted({name.split(".")[0] for name in imported(tree)} - known)
    assert not foreign, f"the runtime travels alone; it may not import {foreign}"


@pytest.mark.parametrize("path", COMPAT_MODULES, ids=name_of)
def test_the_azureml_paths_hold_no_logic(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.ClassDef), "define it in runyard.sdk, re-export it here"


def test_only_settings_and_entry_points_read_the_environment() -> None:
    """A setting that is read somewhere else is a setting nobody finds."""
    may_read = {"settings", "sdk", "cli", "environments", "engines", "testing"}
    for path in MODULES:
        package = path.relative_to(SRC).parts[0].removesuffix(".py")
        if package in may_read:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            assert not reads, f"{name_of(path)} reads os.environ; take it from settings"
