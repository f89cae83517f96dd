"""The order of the modules, and what only some of them may do.

Enters: the source of swarm/, agents/ and hooks/. Leaves: each offence as `file:line what`.
Guards: a module imports only earlier modules of LAYERS; one place runs git, one prints, one
catches everything.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# Lowest first. A line is a module of `swarm`, or a package with all that is in it; a module may
# import what stands above its line, and within a package whatever makes no cycle. A line may
# name a module that does not exist yet.
LAYERS = [
    "errors",
    "ids",
    "agents",
    "hooks",
    "trailers",
    "faults",
    "config",
    "scope",
    "secret",
    "similar",
    "layout",
    "files",
    "breaker",
    "plumbing",
    "ledger",
    "outcome",
    "liveness",
    "plan",
    "budget",
    "claim",
    "task",
    "tell",
    "environment",
    "adapter",
    "transcript",
    "shim",
    "process",
    "sandbox",
    "slot",
    "strays",
    "change",
    "merge",
    "check",
    "judge",
    "land",
    "request",
    "reconcile",
    "offer",
    "opening",
    "invariants",
    "steer",
    "workspace",
    "same",
    "upstream",
    "revert",
    "probe",
    "prompt",
    "goal",
    "diagnosis",
    "hand",
    "overview",
    "push",
    "pull_request",
    "notify",
    "gate",
    "launch",
    "pulse",
    "tend",
    "loop",
    "gather",
    "planner",
    "watch",
    "supervisor",
    "detect",
    "adopt",
    "pull",
    "leave",
    "doctor",
    "kept",
    "output",
    "cli",
    "demo",
    "pytest_plugin",
    "__main__",
]

# The scripted agent waits for what the ledger shows, so it knows where records lie.
EXCEPTIONS = {("swarm.agents.scripted", "swarm.ledger.records")}

RUNS_GIT = {"plumbing"}
# An agent is a program of its own: what it runs, it runs in its worktree.
RUNS_PROGRAMS = {"plumbing", "process", "shim", "probe", "demo", "agents"}
PRINTS = {"output", "demo", "cli"}
# One handler in each group of modules: the boundary, and a thread's end, which hands over what it
# caught to be raised again in the main thread.
CATCHES_ALL = [{"swarm.cli.boundary"}, {"swarm.supervisor"}]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"swarm": ROOT / "swarm", "swarm.agents": ROOT / "agents", "swarm.hooks": ROOT / "hooks"}


@dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str  # dotted; a package's own name for its __init__
    path: Path
    tree: ast.Module
    is_package: bool

    @property
    def layer(self) -> str:
        """Its line of LAYERS; "" for `swarm` itself, which everything may import."""
        return self.name.split(".")[1] if "." in self.name else ""

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler) -> str:
        return f"{self.path.name}:{node.lineno} ({self.name})"


def load(packages: Mapping[str, Path]) -> dict[str, Module]:
    found = {}
    for package, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, path, ast.parse(path.read_bytes()), is_package)
    return found


def imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every dotted name that an import anywhere in the module asks for.

    `from a import b` gives `a.b`: whether `b` is a module is for the caller to say.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.name.split(".")
                above = above[: len(above) - node.level + module.is_package]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node, f"{base}.{alias.name}"


def targets(modules: Mapping[str, Module], module: Module) -> Iterator[tuple[ast.stmt, Module]]:
    """The modules of ours that it imports: the longest known prefix of each name."""
    for node, name in imports(module):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        if name and modules[name] is not module:
            yield node, modules[name]


def missing_layers(modules: Mapping[str, Module]) -> list[str]:
    layers = {module.layer for module in modules.values()} - {""}
    return [f"{layer} is not in LAYERS" for layer in sorted(layers - set(LAYERS))]


def upward_imports(modules: Mapping[str, Module]) -> list[str]:
    order = {"": -1} | {layer: number for number, layer in enumerate(LAYERS)}
    return [
        f"{module.at(node)} imports {imported.name}"
        for module in modules.values()
        for node, imported in targets(modules, module)
        if imported.layer != module.layer
        and (module.name, imported.name) not in EXCEPTIONS
        and order.get(imported.layer, 0) > order.get(module.layer, 0)
    ]


def cycle(modules: Mapping[str, Module]) -> list[str]:
    """The modules of one import cycle, first and last the same; empty when there is none."""
    graph = {
        module.name: {imported.name for _, imported in targets(modules, module)}
        for module in modules.values()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def forbidden_programs(modules: Mapping[str, Module]) -> list[str]:
    allowed = {"git": RUNS_GIT, "subprocess": RUNS_PROGRAMS}
    return [
        f"{module.at(node)} imports {top}"
        for module in modules.values()
        for node, name in imports(module)
        if (top := name.partition(".")[0]) in allowed and module.layer not in allowed[top]
    ]


def forbidden_prints(modules: Mapping[str, Module]) -> list[str]:
    found = []
    for module in modules.values():
        if module.layer in PRINTS:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "print",
                "click.echo",
                "click.secho",
            }:
                found.append(f"{module.at(node)} prints")
        for statement, name in imports(module):
            if name in {"click.echo", "click.secho"}:
                found.append(f"{module.at(statement)} imports {name}")
    return found


def broad_handlers(modules: Mapping[str, Module]) -> Iterator[tuple[Module, str]]:
    """What swallows everything: bare, `Exception` or `BaseException`, and `suppress` of these.

    A handler that undoes something and ends in a plain `raise` swallows nothing.
    """
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                if (_is_broad(caught) or node.type is None) and not _raises_again(node):
                    yield module, module.at(node)
            elif (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith("suppress")
                and _is_broad(node.args)
            ):
                yield module, module.at(node)


def _is_broad(caught: Sequence[ast.expr | None]) -> bool:
    names = {ast.unparse(kind).rpartition(".")[2] for kind in caught if kind is not None}
    return bool(names & {"Exception", "BaseException"})


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    leaves = (ast.Return, ast.Continue, ast.Break)
    return (
        isinstance(last, ast.Raise)
        and last.exc is None
        and not any(isinstance(node, leaves) for node in ast.walk(handler))
    )


@pytest.fixture(scope="module")
def ours() -> dict[str, Module]:
    return load(PACKAGES)


def test_layers_names_each_module_once() -> None:
    assert len(LAYERS) == len(set(LAYERS))


def test_every_module_has_its_place(ours: dict[str, Module]) -> None:
    assert missing_layers(ours) == []


def test_a_module_imports_only_earlier_ones(ours: dict[str, Module]) -> None:
    assert upward_imports(ours) == []


def test_no_import_cycle_even_inside_functions(ours: dict[str, Module]) -> None:
    assert cycle(ours) == []


def test_every_package_is_in_the_wheel(ours: dict[str, Module]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    assert {module.name for module in ours.values() if module.is_package} <= listed


def test_only_plumbing_runs_git(ours: dict[str, Module]) -> None:
    assert forbidden_programs(ours) == []


def test_only_the_edges_print(ours: dict[str, Module]) -> None:
    assert forbidden_prints(ours) == []


def test_everything_is_caught_in_one_boundary(ours: dict[str, Module]) -> None:
    handlers = list(broad_handlers(ours))
    allowed = set().union(*CATCHES_ALL)
    assert [at for module, at in handlers if module.name not in allowed] == []
    for group in CATCHES_ALL:
        assert len([at for module, at in handlers if module.name in group]) <= 1


# -- and that these rules see what they are for --------------------------------------------------


def sources(tmp_path: Path, **texts: str) -> dict[str, Module]:
    """Modules of a package `swarm`; `a__b` is a/b.py."""
    for name, text in texts.items():
        path = tmp_path / "swarm" / (name.replace("__", "/", 1) + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "swarm/__init__.py").touch()
    for folder in {path.parent for path in (tmp_path / "swarm").rglob("*.py")}:
        (folder / "__init__.py").touch()
    return load({"swarm": tmp_path / "swarm"})


@pytest.mark.parametrize(
    "text",
    [
        "import swarm.gate",
        "from swarm import gate",
        "from swarm.gate import tick",
        "from . import gate",
        "from .gate import tick",
        "def f():\n    import swarm.gate as g",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from swarm.gate import tick",
        "try:\n    from swarm import gate\nexcept ImportError:\n    pass",
    ],
)
def test_an_upward_import_is_seen_however_it_is_written(tmp_path: Path, text: str) -> None:
    modules = sources(tmp_path, claim=text, gate="tick = 1")
    assert [offence.partition(") ")[2] for offence in upward_imports(modules)] == [
        "imports swarm.gate"
    ]


def test_a_relative_import_out_of_a_package_is_resolved(tmp_path: Path) -> None:
    modules = sources(
        tmp_path, ledger__store="from ..gate import tick\nfrom .view import x", gate="tick = 1",
        ledger__view="x = 1",
    )  # fmt: skip
    assert len(upward_imports(modules)) == 1


def test_earlier_modules_attributes_and_strangers_are_fine(tmp_path: Path) -> None:
    modules = sources(
        tmp_path,
        ids="import re",
        gate="from swarm import ids, __version__\nfrom swarm.ids import fold\nimport msgspec",
    )
    assert upward_imports(modules) == []
    assert missing_layers(modules) == []


def test_agents_may_use_errors_and_ids_alone(tmp_path: Path) -> None:
    modules = sources(
        tmp_path,
        agents__scripted="import swarm.ids, swarm.errors, swarm.config",
        ids="",
        errors="",
        config="",
    )
    assert len(upward_imports(modules)) == 1


def test_a_module_without_a_place_is_seen(tmp_path: Path) -> None:
    assert missing_layers(sources(tmp_path, utils="")) == ["utils is not in LAYERS"]


def test_a_cycle_within_a_package_is_seen(tmp_path: Path) -> None:
    modules = sources(
        tmp_path,
        ledger__view="from swarm.ledger import store",
        ledger__store="def f():\n    from swarm.ledger.view import x",
    )
    assert set(cycle(modules)) == {"swarm.ledger.view", "swarm.ledger.store"}


def test_git_and_programs_outside_their_place_are_seen(tmp_path: Path) -> None:
    modules = sources(
        tmp_path,
        claim="from git import Repo",
        gate="def f():\n    from subprocess import run",
        process="import subprocess",
        plumbing__objects="import git.repo, subprocess",
        merge="from swarm.plumbing import git",
    )
    assert len(forbidden_programs(modules)) == 2


def test_a_print_outside_the_edges_is_seen(tmp_path: Path) -> None:
    modules = sources(
        tmp_path,
        claim="print(1)",
        gate="import click\nclick.echo(1)",
        loop="from click import echo",
        output="print(1)",
    )
    assert len(forbidden_prints(modules)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept (OSError, BaseException) as e:\n    raise OSError from e",
        "try:\n    f()\nexcept builtins.Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
        "for x in y:\n  try:\n    f()\n  except Exception:\n    if x: break\n    raise",
        "with contextlib.suppress(Exception):\n    f()",
    ],
)
def test_a_broad_handler_is_seen(tmp_path: Path, text: str) -> None:
    assert len(list(broad_handlers(sources(tmp_path, claim=text)))) == 1


@pytest.mark.parametrize("caught", ["OSError: pass", "BaseException:\n    undo()\n    raise"])
def test_a_narrow_handler_and_an_undo_are_fine(tmp_path: Path, caught: str) -> None:
    modules = sources(tmp_path, claim=f"try:\n    f()\nexcept {caught}")
    assert list(broad_handlers(modules)) == []
