"""How a repository is set up and tested, as far as its tracked files say.

Enters: a checkout and the names git tracks in it. Leaves: checks, a setup command, and notes.
Guards: reads files and runs nothing; suggests only what a fresh worktree can run, on its own tree.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

MAX_BYTES = 1 << 20  # a larger file is not read
_MAX_SAMPLE = 20  # test files looked into, and folders other than the root

# What may stand in a command as it is: never an option, never anything a shell would expand.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*(?:/[A-Za-z0-9_.@+-]+)*")
# Folders whose manifests are copies, samples or test data.
_FOREIGN = re.compile(
    r"(?:^|/)(?:\.?venv|node_modules|bower_components|vendor|third_party|site-packages"
    r"|testdata|fixtures?|examples?|samples?|templates?|tests?)/"
)


class DetectedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[checks]]` to suggest."""

    name: str  # "tests" for the first, then tests-<kind>
    run: str
    env: dict[str, str]
    keep: tuple[str, ...]  # ignored paths that survive between check runs
    because: str  # the files it was seen in


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """What `swarm init` writes down; everything is empty when nothing was recognised."""

    checks: tuple[DetectedCheck, ...]
    setup: str  # sh command for a new worktree, or ""
    setup_inputs: tuple[str, ...]
    keep: tuple[str, ...]  # of [worktree]
    notes: tuple[str, ...]  # sentences for people: what was seen and not used, and why


class _Suite(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule makes of one folder."""

    kind: str
    run: str
    because: tuple[str, ...]
    env: dict[str, str] = {}
    keep: tuple[str, ...] = ()
    setup: str = ""
    inputs: tuple[str, ...] = ()
    whole: bool = False  # one run of it covers the same kind's folders below


def detect(checkout: Path, tracked: Sequence[str]) -> Detected:
    """Suggests checks and setup for the root, and names what other folders have in the notes.

    A language's own runner goes before `make test`: what a Makefile calls is whatever is on PATH,
    which need not be the tree that is checked, while each rule below says where its programs come
    from. A target `test` is the check where no rule knows better, and a note elsewhere.

    Args:
        checkout: its root.
        tracked: paths from the root, `/` between parts, as `git ls-files -z` gives them.
    """
    root = _Folder(checkout, tracked)
    suites = list(_suites(root))
    fallbacks = [suite for rule in (_make, _just) if (suite := rule(root))]
    if suites:
        for suite in fallbacks:
            root.notes.append(
                f"{suite.run} ({suite.because[0]}) is not used, since it runs what is on PATH; name"
                " it in swarm.toml if it is the better check"
            )
    else:
        suites = fallbacks[:1]
    _note_other_folders(root, suites)
    return Detected(
        checks=tuple(
            DetectedCheck(
                name="tests" if number == 0 else f"tests-{suite.kind}",
                run=suite.run,
                env=suite.env,
                keep=suite.keep,
                because=", ".join(suite.because),
            )
            for number, suite in enumerate(suites)
        ),
        setup=" && ".join(suite.setup for suite in suites if suite.setup),
        setup_inputs=_once(path for suite in suites for path in suite.inputs),
        keep=_once(path for suite in suites for path in suite.keep),
        notes=_once(root.notes),
    )


class _Folder:
    """The tracked files of one folder, with names from there, and how to read them."""

    def __init__(self, checkout: Path, tracked: Iterable[str], below: str = "") -> None:
        prefix = f"{below}/" if below else ""
        self.path = checkout / below
        self.prefix = prefix
        self.files = {name.removeprefix(prefix): None for name in tracked if _is_at(name, prefix)}
        self.notes: list[str] = []
        self._read: dict[str, str] = {}

    def has(self, *names: str) -> bool:
        return any(name in self.files for name in names)

    def first(self, *names: str) -> str | None:
        return next((name for name in names if name in self.files), None)

    def named(self, pattern: str) -> list[str]:
        """Tracked names that match all of `pattern`, sorted."""
        return sorted(filter(re.compile(pattern).fullmatch, self.files))

    def has_folder(self, name: str) -> bool:
        return any(path.startswith(f"{name}/") for path in self.files)

    def text(self, name: str) -> str:
        """What a tracked file says; "" when it is missing here, no plain file or too large."""
        if name not in self.files:
            return ""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def toml(self, name: str) -> dict[str, Any]:
        """{} when it is not TOML, which becomes a note."""
        return self._parsed(name, tomllib.loads)

    def json(self, name: str) -> dict[str, Any]:
        """{} when it is not a JSON object, which becomes a note."""
        return self._parsed(name, json.loads)

    def _load(self, name: str) -> str:
        path = self.path / name
        try:
            seen = path.lstat()
            if not stat.S_ISREG(seen.st_mode):
                self.notes.append(f"{self.prefix}{name} is not a plain file, not read")
                return ""
            if seen.st_size > MAX_BYTES:
                self.notes.append(f"{self.prefix}{name} is larger than 1 MiB, not read")
                return ""
            return path.read_text("utf-8-sig", errors="replace")
        except OSError as error:
            self.notes.append(f"{self.prefix}{name} cannot be read: {error.strerror}")
            return ""

    def _parsed(self, name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
        text = self.text(name)
        if not text:
            return {}
        try:
            parsed = parse(text)
        except (ValueError, RecursionError) as error:
            self.notes.append(f"{self.prefix}{name} is broken, not used: {error}")
            return {}
        return parsed if isinstance(parsed, dict) else {}


def _is_at(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and len(name) > len(prefix)


def _once(items: Iterable[str]) -> tuple[str, ...]:
    """In order, without repetitions."""
    return tuple(dict.fromkeys(items))


def _table(value: Any, *keys: str) -> dict[str, Any]:
    """The table at a path of keys; {} when anything on the way is missing or no table."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


# -- Python -------------------------------------------------------------------------------------

_TEST_FILE = r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py"
_TEST_NAMES = ("test", "tests", "testing", "dev")  # of extras, groups: the best first
_BUILDS_EXTENSION = re.compile(
    r"\bext_modules\b|\bExtension\(|\bcffi_modules\b|\brust_extensions\b|\bcythonize\b"
)
_EXTENSION_BACKENDS = ("maturin", "mesonpy", "scikit_build_core", "py_build_cmake")
_EXTENSION_REQUIRES = ("cython", "pybind11", "nanobind", "setuptools-rust", "mypy", "numpy")


def _python(folder: _Folder) -> _Suite | None:
    manifest = folder.first("pyproject.toml", "setup.py", "setup.cfg", "Pipfile")
    tests = [name for name in folder.named(_TEST_FILE) if not _is_copied(name)]
    if folder.has("manage.py"):
        tests += folder.named(r"(?:.*/)?tests\.py")
    if not tests:
        if manifest:
            folder.notes.append(f"{folder.prefix}{manifest} is there, but no test_*.py is tracked")
        return None
    if note := folder.first("tox.ini", "noxfile.py"):
        folder.notes.append(
            f"{folder.prefix}{note} is not used: it makes environments of its own for each run"
        )
    project = folder.toml("pyproject.toml")
    arguments = _python_arguments(folder, tests)
    if folder.has("uv.lock"):
        return _uv(folder, project, arguments)
    if folder.has("poetry.lock"):
        return _poetry(folder, project, arguments)
    if folder.has("Pipfile.lock"):
        return _pipenv(folder, arguments)
    return _pip(folder, project, arguments, tests[0])


def _is_copied(name: str) -> bool:
    """Unlike `_FOREIGN`, a folder of tests is where tests are expected."""
    return re.search(r"(?:^|/)(?:\.?venv|node_modules|site-packages|testdata)/", name) is not None


def _python_arguments(folder: _Folder, tests: Sequence[str]) -> list[str]:
    """What follows `python`: one per command, more than one only for unittest."""
    sample = [folder.text(name) for name in tests[:_MAX_SAMPLE]]
    if not _mentions_pytest(folder, sample):
        if folder.has("manage.py"):
            return ["manage.py test"]
        starts = {_unittest_start(folder, name) for name in tests}
        usual = any(name.rpartition("/")[2].startswith("test") for name in tests)
        pattern = "" if usual else " -p '*_test.py'"
        if all(_PLAIN.fullmatch(start) for start in starts if start):
            return [
                f"-m unittest discover -q{f' -s {start}' if start else ''}{pattern}"
                for start in sorted(starts)
            ]
    return ["-m pytest -q"]


def _mentions_pytest(folder: _Folder, sample: Sequence[str]) -> bool:
    if folder.named(r"\.?pytest\.ini|(?:.*/)?conftest\.py"):
        return True
    configured = ("pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "noxfile.py", "Pipfile")
    if any("pytest" in folder.text(name) for name in (*configured, *_requirements(folder))):
        return True
    # Bare `def test_x` functions are pytest's too, although nothing names it.
    plain = any(text and "unittest" not in text and "TestCase" not in text for text in sample)
    return any("pytest" in text for text in sample) or plain


def _unittest_start(folder: _Folder, test: str) -> str:
    """The folder to discover from: discovery only goes down into packages."""
    parts = test.split("/")[:-1]
    for depth in range(len(parts), 0, -1):
        if not folder.has("/".join([*parts[:depth], "__init__.py"])):
            return "/".join(parts[:depth])
    return ""


def _requirements(folder: _Folder) -> list[str]:
    """requirements.txt and the one that names tests (or development) best."""
    found = folder.named(r"requirements[\w.-]*\.txt|requirements/[\w.-]+\.txt")
    base = [name for name in found if name in ("requirements.txt", "requirements/base.txt")]
    for word in ("test", "dev"):
        more = [name for name in found if word in name and name not in base]
        if more:
            return [*base[:1], more[0]]
    return base[:1]


def _tree_on_path(folder: _Folder) -> dict[str, str]:
    """What makes an uninstalled tree the imported one, in child processes too."""
    has_src = bool(folder.named(r"src/(?:[^/]+/__init__|[^/]+)\.py"))
    return {"PYTHONPATH": "src" if has_src else "."}


def _uv(folder: _Folder, project: dict[str, Any], arguments: Sequence[str]) -> _Suite:
    uv = _table(project, "tool", "uv")
    defaults = uv.get("default-groups", ["dev"])
    groups = _groups(project)
    unasked = {name: groups[name] for name in _texts(defaults) if name in groups}
    unasked["dev-dependencies"] = _texts(uv.get("dev-dependencies"))
    options = ""
    if defaults != "all" and not _holder(unasked):
        group = _holder(groups)
        extra = _holder(_table(project, "project", "optional-dependencies"))
        options = f" --group {group}" if group else f" --extra {extra}" if extra else ""
    if _table(uv, "workspace"):
        options += " --all-packages"
    setup = f"uv sync --frozen{options}"
    packaged = uv.get("package", "build-system" in project)
    rebuild = ""
    if _builds_extension(folder, project):
        name = _table(project, "project").get("name")
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            rebuild = f"{setup} --reinstall-package {name} && "
    runs = [f"uv run {_uv_program(argument)}" for argument in arguments]
    return _Suite(
        kind="python",
        run=rebuild + " && ".join(runs),
        because=_seen(folder, "pyproject.toml", "uv.lock"),
        env={} if packaged else _tree_on_path(folder),
        keep=(".venv", *_version_files(project)),
        setup=setup,
        inputs=("uv.lock",),
        whole=bool(_table(uv, "workspace")),
    )


def _uv_program(argument: str) -> str:
    return argument.removeprefix("-m ") if "pytest" in argument else f"python {argument}"


def _poetry(folder: _Folder, project: dict[str, Any], arguments: Sequence[str]) -> _Suite:
    poetry = _table(project, "tool", "poetry")
    groups = {
        name: [*_table(group, "dependencies")]
        for name, group in _table(poetry, "group").items()
        if isinstance(group, dict) and group.get("optional") is True
    }
    extras = _table(poetry, "extras") | _table(project, "project", "optional-dependencies")
    options = ""
    if group := _holder(groups):
        options = f" --with {group}"
    elif extra := _holder(extras):
        options = f" --extras {extra}"
    in_project = "POETRY_VIRTUALENVS_IN_PROJECT"
    packaged = poetry.get("package-mode", True)
    return _Suite(
        kind="python",
        run=" && ".join(f"poetry run python {argument}" for argument in arguments),
        because=_seen(folder, "pyproject.toml", "poetry.lock"),
        env={in_project: "true"} | ({} if packaged else _tree_on_path(folder)),
        keep=(".venv", *_version_files(project)),
        setup=f"{in_project}=true poetry install --no-interaction{options}",
        inputs=("poetry.lock",),
    )


def _pipenv(folder: _Folder, arguments: Sequence[str]) -> _Suite:
    in_project = "PIPENV_VENV_IN_PROJECT"
    return _Suite(
        kind="python",
        run=" && ".join(f"pipenv run python {argument}" for argument in arguments),
        because=_seen(folder, "Pipfile", "Pipfile.lock"),
        env={in_project: "1"} | _tree_on_path(folder),
        keep=(".venv",),
        setup=f"{in_project}=1 pipenv sync --dev",
        inputs=("Pipfile.lock",),
    )


def _pip(folder: _Folder, project: dict[str, Any], arguments: Sequence[str], a_test: str) -> _Suite:
    requirements = _requirements(folder)
    installable = _is_installable(folder, project)
    seen = _seen(folder, "pyproject.toml", "setup.py", "setup.cfg", *requirements)
    wants_pytest = "pytest" in arguments[0]
    if not installable and not requirements:
        if wants_pytest:
            folder.notes.append("nothing to install was found: python3 on PATH must have pytest")
        return _Suite(
            kind="python",
            run=" && ".join(f"python3 {argument}" for argument in arguments),
            because=seen or (a_test,),
            env=_tree_on_path(folder),
        )
    items = [f"-r {name}" for name in requirements]
    stated = "".join(folder.text(name) for name in requirements)
    prepare = ""
    if installable:
        extra = _holder(_extras(folder, project))
        group = _holder(_groups(project)) if not extra else None
        items.append(f"-e '.[{extra}]'" if extra else "-e .")
        if group:
            items.append(f"--group {group}")
            prepare = ".venv/bin/pip install 'pip>=25.1' && "  # the first that knows --group
        stated += " ".join(_texts(_table(project, "project").get("dependencies")))
        stated += " ".join(_texts(_extras(folder, project).get(extra or "")))
        stated += " ".join(_groups(project).get(group or "", ()))
    if wants_pytest and "pytest" not in stated:
        items.append("pytest")
    rebuild = ""
    if installable and _builds_extension(folder, project):
        rebuild = ".venv/bin/pip install -q --no-deps -e . && "
    return _Suite(
        kind="python",
        run=rebuild + " && ".join(f".venv/bin/python {argument}" for argument in arguments),
        because=seen,
        env={} if installable else _tree_on_path(folder),
        keep=(".venv", *_version_files(project)),
        setup=f"python3 -m venv .venv && {prepare}.venv/bin/pip install {' '.join(items)}",
        inputs=seen,
    )


def _is_installable(folder: _Folder, project: dict[str, Any]) -> bool:
    """True when `pip install -e .` has a chance."""
    if "build-system" in project or folder.has("setup.py"):
        return True
    if folder.has("pyproject.toml") and "[metadata]" in folder.text("setup.cfg"):
        return True
    stated = _table(project, "project")
    if not (stated.get("dependencies") or stated.get("optional-dependencies")):
        return False
    # pip then falls back to setuptools, which finds one package by itself and no two.
    packages = folder.named(r"(?!tests?/|docs/|examples?/)[^/]+/__init__\.py")
    if folder.has_folder("src") or len(packages) == 1:
        folder.notes.append("pyproject.toml has no [build-system]: pip uses setuptools")
        return True
    folder.notes.append(
        "pyproject.toml names dependencies but has no [build-system], so pip cannot install them;"
        " python3 on PATH must have them"
    )
    return False


def _extras(folder: _Folder, project: dict[str, Any]) -> dict[str, Any]:
    extras = _table(project, "project", "optional-dependencies")
    if extras or not folder.has("setup.cfg"):
        return extras
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(folder.text("setup.cfg"))
    except configparser.Error as error:
        why = str(error).splitlines()[0]
        folder.notes.append(f"{folder.prefix}setup.cfg is broken, not used: {why}")
        return {}
    if not parser.has_section("options.extras_require"):
        return {}
    return {name: text.split() for name, text in parser.items("options.extras_require")}


def _groups(project: dict[str, Any]) -> dict[str, list[str]]:
    """[dependency-groups] with their included groups."""
    groups = _table(project, "dependency-groups")

    def flat(name: str, above: tuple[str, ...]) -> Iterator[str]:
        items = groups.get(name)
        for item in items if isinstance(items, list) else ():
            included = item.get("include-group") if isinstance(item, dict) else None
            if isinstance(item, str):
                yield item
            elif isinstance(included, str) and included not in above:
                yield from flat(included, (*above, included))

    return {name: list(flat(name, (name,))) for name in groups}


def _holder(tables: Mapping[str, Any]) -> str | None:
    """The extra or group to install for tests: one with pytest in it, else one named for tests."""
    usable = [name for name in tables if _PLAIN.fullmatch(name) and "/" not in name]
    holding = [
        name
        for name in usable
        if any(item.lower().startswith("pytest") for item in _texts(tables[name]))
    ]
    order = {name: number for number, name in enumerate(_TEST_NAMES)}
    named = [name for name in usable if name in _TEST_NAMES[:3]]
    return min(holding or named, key=lambda name: order.get(name, len(order)), default=None)


def _builds_extension(folder: _Folder, project: dict[str, Any]) -> bool:
    """True when installing leaves compiled files in the tree, where cleaning removes them."""
    build = _table(project, "build-system")
    backend = build.get("build-backend")
    requires = " ".join(_texts(build.get("requires"))).lower()
    found = (
        (isinstance(backend, str) and backend.startswith(_EXTENSION_BACKENDS))
        or any(word in requires for word in _EXTENSION_REQUIRES)
        or _BUILDS_EXTENSION.search(folder.text("setup.py")) is not None
    )
    if found:
        folder.notes.append(
            "the project builds an extension: the check installs it again each time, because a"
            " check starts in a cleaned tree"
        )
    return found


def _version_files(project: dict[str, Any]) -> tuple[str, ...]:
    """Ignored files that installing writes into the tree and importing needs."""
    scm = _table(project, "tool", "setuptools_scm")
    hatch = _table(project, "tool", "hatch", "build", "hooks", "vcs")
    pdm = _table(project, "tool", "pdm", "version")
    stated = (
        scm.get("version_file"),
        scm.get("write_to"),
        hatch.get("version-file"),
        pdm.get("write_to"),
    )
    return _once(
        path
        for path in stated
        if isinstance(path, str) and _PLAIN.fullmatch(path) and ".." not in path.split("/")
    )


def _seen(folder: _Folder, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if folder.has(name))


# -- JavaScript ---------------------------------------------------------------------------------

_LOCKS = {
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
}
_INSTALLS = {
    "pnpm": "pnpm install --frozen-lockfile",
    "yarn": "yarn install --frozen-lockfile",
    "bun": "bun install --frozen-lockfile",
    "npm": "npm ci",
}


def _node(folder: _Folder) -> _Suite | None:
    package = folder.json("package.json")
    script = _table(package, "scripts").get("test")
    if not isinstance(script, str) or not script.strip() or "no test specified" in script:
        return None
    if re.search(r"--watch(?:All)?(?!=false)(?=\s|=|$)", script):
        folder.notes.append(
            f"{folder.prefix}package.json: the test script watches and never ends, not used"
        )
        return None
    stated = str(package.get("packageManager", "")).partition("@")[0]
    locks = [name for name in _LOCKS if folder.has(name)]
    lock = min(locks, key=lambda name: _LOCKS[name] != stated, default=None)
    tool = _LOCKS[lock] if lock else "npm"
    setup = _INSTALLS[tool] if lock else ""
    keep: tuple[str, ...] = ("node_modules",)
    if not lock and (_table(package, "dependencies") or _table(package, "devDependencies")):
        setup = "npm install --no-package-lock"  # a new lock file would look like work
    if lock == "yarn.lock" and "__metadata:" in folder.text(lock):
        setup = "yarn install --immutable"
        if "nodeLinker: node-modules" not in folder.text(".yarnrc.yml"):
            keep = (".pnp.cjs", ".pnp.loader.mjs", ".yarn/cache", ".yarn/unplugged")
    if folder.has_folder("node_modules"):
        setup, keep = "", ()  # tracked
    workspaces = "workspaces" in package or folder.has("pnpm-workspace.yaml")
    if workspaces and setup:
        folder.notes.append(
            f"{folder.prefix}package.json has workspaces: add their node_modules folders to"
            " [worktree] keep where the install makes any"
        )
    return _Suite(
        kind="node",
        run=f"{tool} run test" if tool == "bun" else f"{tool} test",
        because=("package.json", *([lock] if lock else [])),
        env={"CI": "true"},  # runners that watch on a terminal run once
        keep=keep if setup else (),
        setup=setup,
        inputs=(("package.json", lock) if lock else ("package.json",)) if setup else (),
        whole=workspaces,
    )


# -- compiled languages -------------------------------------------------------------------------


def _go(folder: _Folder) -> _Suite | None:
    if not folder.has("go.mod"):
        return None
    if not folder.named(r"(?:.*/)?[^/]+_test\.go"):
        folder.notes.append(f"{folder.prefix}go.mod is there, but no *_test.go is tracked")
        return None
    return _Suite(kind="go", run="go test ./...", because=("go.mod",))


def _rust(folder: _Folder) -> _Suite | None:
    if not folder.has("Cargo.toml"):
        return None
    backend = _table(folder.toml("pyproject.toml"), "build-system").get("build-backend")
    if backend == "maturin":
        folder.notes.append(
            f"{folder.prefix}Cargo.toml is a Python extension: its tests often do not link, add"
            " cargo test if they do"
        )
        return None
    workspace = "workspace" in folder.toml("Cargo.toml")
    locked = folder.has("Cargo.lock")
    run = "cargo test" + (" --workspace" if workspace else "") + (" --locked" if locked else "")
    return _Suite(
        kind="rust",
        run=run,
        because=_seen(folder, "Cargo.toml", "Cargo.lock"),
        keep=("target",),
        whole=workspace,
    )


def _java(folder: _Folder) -> _Suite | None:
    if not folder.named(r"(?:.*/)?src/test/.*\.(?:java|kt|groovy|scala)"):
        return None
    if folder.has("pom.xml"):
        program = _wrapper(folder, "mvnw") if folder.has("mvnw") else "mvn"
        because = _seen(folder, "pom.xml", "mvnw")
        return _Suite(kind="java", run=f"{program} -B -q test", because=because, whole=True)
    build = folder.first("build.gradle.kts", "build.gradle", "settings.gradle.kts")
    if build is None:
        return None
    program = "gradle"
    if folder.has("gradlew"):
        if folder.has("gradle/wrapper/gradle-wrapper.jar"):
            program = _wrapper(folder, "gradlew")
        else:
            folder.notes.append(
                f"{folder.prefix}gradlew is not used: gradle/wrapper/gradle-wrapper.jar is not"
                " tracked, so a worktree lacks it"
            )
    # A daemon would outlive the check.
    run = f"{program} --no-daemon test"
    return _Suite(kind="java", run=run, because=_seen(folder, build, "gradlew"), whole=True)


def _wrapper(folder: _Folder, name: str) -> str:
    try:
        executable = (folder.path / name).lstat().st_mode & stat.S_IXUSR
    except OSError:
        executable = 0
    return f"./{name}" if executable else f"sh {name}"


def _dotnet(folder: _Folder) -> _Suite | None:
    projects = folder.named(r"(?:.*/)?[^/]+\.(?:cs|fs|vb)proj")
    entries = folder.named(r"[^/]+\.slnx?") or folder.named(r"[^/]+\.(?:cs|fs|vb)proj")
    is_test = any(
        "Microsoft.NET.Test.Sdk" in text or "<IsTestProject>true" in text
        for text in (folder.text(name) for name in projects[: 5 * _MAX_SAMPLE])
    )
    if not entries or not is_test:
        return None
    return _Suite(
        kind="dotnet",
        run="dotnet test" + (f" {shlex.quote(f'./{entries[0]}')}" if len(entries) > 1 else ""),
        because=(entries[0],),
        env={"MSBUILDDISABLENODEREUSE": "1"},  # a build server would outlive the check
        whole=True,
    )


# -- the others ---------------------------------------------------------------------------------


def _ruby(folder: _Folder) -> _Suite | None:
    rakefile = folder.first("Rakefile", "rakefile", "Rakefile.rb")
    rakes = rakefile and re.search(
        r"TestTask|task[ (]+[:\"']?test\b|load_tasks", folder.text(rakefile)
    )
    if folder.named(r"spec/(?:.*/)?[^/]+_spec\.rb"):
        run, seen = "rspec", "spec/"
    elif rakefile and rakes and folder.has_folder("test"):
        run, seen = "rake test", rakefile
    else:
        return None
    if not folder.has("Gemfile"):
        return _Suite(kind="ruby", run=run, because=(seen,))
    env = {"BUNDLE_PATH": "vendor/bundle"}
    if folder.has("Gemfile.lock"):
        env["BUNDLE_FROZEN"] = "true"
    words = " ".join(f"{name}={value}" for name, value in env.items())
    inputs = _seen(folder, "Gemfile", "Gemfile.lock")
    return _Suite(
        kind="ruby",
        run=f"bundle exec {run}",
        because=(*inputs, seen),
        env=env,
        keep=("vendor/bundle",),
        setup=f"{words} bundle install",
        inputs=inputs,
    )


def _php(folder: _Folder) -> _Suite | None:
    composer = folder.json("composer.json")
    config = folder.first("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
    if isinstance(_table(composer, "scripts").get("test"), str | list):
        run = "composer test"
    elif composer and config:
        run = "vendor/bin/phpunit"
    else:
        return None
    inputs = _seen(folder, "composer.json", "composer.lock")
    tracked = folder.has_folder("vendor")
    return _Suite(
        kind="php",
        run=run,
        because=(*inputs, *([config] if config else [])),
        keep=() if tracked else ("vendor",),
        setup="" if tracked else "composer install --no-interaction --no-progress",
        inputs=() if tracked else inputs,
    )


def _elixir(folder: _Folder) -> _Suite | None:
    if not folder.has("mix.exs") or not folder.named(r"(?:.*/)?test/(?:.*/)?[^/]+_test\.exs"):
        return None
    locked = folder.has("mix.lock")
    inputs = _seen(folder, "mix.exs", "mix.lock")
    return _Suite(
        kind="elixir",
        run="mix test",
        because=inputs,
        keep=("deps", "_build"),
        setup="mix deps.get" + (" --check-locked" if locked else ""),
        inputs=inputs,
        whole=True,
    )


def _make(folder: _Folder) -> _Suite | None:
    name = folder.first("GNUmakefile", "makefile", "Makefile")  # make's own order
    if name is None:
        return None
    lines = re.findall(r"^([^\s#:=][^:=#\n]*?)\s*::?(?![:=])", folder.text(name), re.MULTILINE)
    targets = {target for line in lines for target in line.split()}
    for target in ("test", "check"):
        if target in targets:
            because = (name, f"target {target}")
            return _Suite(kind="make", run=f"make {target}", because=because)
    return None


def _just(folder: _Folder) -> _Suite | None:
    name = folder.first("justfile", "Justfile", ".justfile")
    if name is None:
        return None
    for recipe in ("test", "check"):
        # A parameter without a default would have to be given.
        found = re.search(
            rf"^@?{recipe}((?:[ \t]+[^\s:]+)*)[ \t]*:(?!=)", folder.text(name), re.MULTILINE
        )
        if found and all("=" in word or word.startswith("*") for word in found[1].split()):
            because = (name, f"recipe {recipe}")
            return _Suite(kind="just", run=f"just {recipe}", because=because)
    return None


_RULES = (_python, _node, _go, _rust, _ruby, _java, _dotnet, _php, _elixir)
_MANIFEST = (
    r"(?:.*/)(?:pyproject\.toml|setup\.py|setup\.cfg|Pipfile|requirements\.txt|package\.json|go\.mod"
    r"|Cargo\.toml|Gemfile|pom\.xml|build\.gradle(?:\.kts)?|[^/]+\.sln|composer\.json|mix\.exs)"
)


def _suites(folder: _Folder) -> Iterator[_Suite]:
    for rule in _RULES:
        if suite := rule(folder):
            yield suite


def _note_other_folders(root: _Folder, suites: Sequence[_Suite]) -> None:
    """Each folder with a manifest of its own becomes a note, unless a root's suite covers it."""
    covered = {suite.kind for suite in suites if suite.whole}
    folders = {
        name.rpartition("/")[0] for name in root.named(_MANIFEST) if not _FOREIGN.search(name)
    }
    nearest = sorted(folders, key=lambda name: (name.count("/"), name))
    for name in nearest[:_MAX_SAMPLE]:
        if not _PLAIN.fullmatch(name):
            continue
        folder = _Folder(root.path, root.files, name)
        found = [suite for suite in _suites(folder) if suite.kind not in covered]
        root.notes.extend(note for note in folder.notes if "is broken" in note)
        for suite in found:
            setup = f", after {suite.setup}" if suite.setup else ""
            root.notes.append(f'{name}/ has tests: {suite.run} with cwd = "{name}"{setup}')
    if len(nearest) > _MAX_SAMPLE:
        root.notes.append(f"{len(nearest) - _MAX_SAMPLE} more folders were not looked into")
