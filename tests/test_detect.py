"""What is suggested for repositories of each kind, and that the suggestion runs in a worktree.

Enters: small trees of files. Leaves: checks, setup and notes.
Guards: tracked files alone decide; hostile, broken or huge files never crash or reach a command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.detect import MAX_BYTES, Detected, detect

PYTEST = "def test_it():\n    assert True\n"
UNITTEST = """import unittest
class T(unittest.TestCase):
    def test_it(self):
        self.assertTrue(True)
"""
BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'


def write(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(files)


def seen(root: Path, files: dict[str, str]) -> Detected:
    """What is detected when all of `files` are tracked."""
    return detect(root, write(root, files))


def one_line(found: Detected) -> str:
    """`setup | run | environment | kept | because` of a single check."""
    (check,) = found.checks
    env = " ".join(f"{name}={value}" for name, value in check.env.items())
    assert check.keep == found.keep
    return " | ".join([found.setup, check.run, env, " ".join(found.keep), check.because])


PIP = "python3 -m venv .venv && .venv/bin/pip install"
KINDS: dict[str, tuple[dict[str, str], str]] = {
    "uv": (
        {
            "pyproject.toml": BUILD + "[dependency-groups]\ndev = ['pytest']\n",
            "uv.lock": "",
            "tests/test_a.py": PYTEST,
        },
        "uv sync --frozen | uv run pytest -q |  | .venv | pyproject.toml, uv.lock",
    ),
    "uv, pytest in an extra, nothing packaged": (
        {
            "pyproject.toml": "[project.optional-dependencies]\nfast = []\nci = ['pytest>=8']\n",
            "uv.lock": "",
            "src/app/__init__.py": "",
            "tests/test_a.py": PYTEST,
        },
        "uv sync --frozen --extra ci | uv run pytest -q | PYTHONPATH=src | .venv"
        " | pyproject.toml, uv.lock",
    ),
    "uv, pytest in a group that dev does not include": (
        {
            "pyproject.toml": BUILD + "[dependency-groups]\ndev = ['ruff']\ntest = ['pytest']\n",
            "uv.lock": "",
            "test_a.py": PYTEST,
        },
        "uv sync --frozen --group test | uv run pytest -q |  | .venv | pyproject.toml, uv.lock",
    ),
    "uv, pytest in a group that dev includes": (
        {
            "pyproject.toml": BUILD
            + "[dependency-groups]\ndev = [{include-group = 'test'}]\ntest = ['pytest']\n",
            "uv.lock": "",
            "test_a.py": PYTEST,
        },
        "uv sync --frozen | uv run pytest -q |  | .venv | pyproject.toml, uv.lock",
    ),
    "poetry": (
        {
            "pyproject.toml": "[tool.poetry]\n[tool.poetry.group.test]\noptional = true\n"
            "[tool.poetry.group.test.dependencies]\npytest = '*'\n",
            "poetry.lock": "",
            "tests/test_a.py": PYTEST,
        },
        "POETRY_VIRTUALENVS_IN_PROJECT=true poetry install --no-interaction --with test"
        " | poetry run python -m pytest -q | POETRY_VIRTUALENVS_IN_PROJECT=true | .venv"
        " | pyproject.toml, poetry.lock",
    ),
    "pipenv": (
        {"Pipfile": "[dev-packages]\npytest='*'\n", "Pipfile.lock": "{}", "test_a.py": PYTEST},
        "PIPENV_VENV_IN_PROJECT=1 pipenv sync --dev | pipenv run python -m pytest -q"
        " | PIPENV_VENV_IN_PROJECT=1 PYTHONPATH=. | .venv | Pipfile, Pipfile.lock",
    ),
    "pip with an extra for tests": (
        {
            "pyproject.toml": BUILD
            + "[project.optional-dependencies]\ndocs=['sphinx']\ntest=['pytest']\n",
            "tests/test_a.py": PYTEST,
        },
        f"{PIP} -e '.[test]' | .venv/bin/python -m pytest -q |  | .venv | pyproject.toml",
    ),
    "pip with a dependency group": (
        {
            "pyproject.toml": BUILD + "[dependency-groups]\ntest=['pytest']\n",
            "tests/test_a.py": PYTEST,
        },
        "python3 -m venv .venv && .venv/bin/pip install 'pip>=25.1' && .venv/bin/pip install"
        " -e . --group test | .venv/bin/python -m pytest -q |  | .venv | pyproject.toml",
    ),
    "pip, pytest named nowhere as a requirement": (
        {"setup.py": "", "tests/conftest.py": "", "tests/test_a.py": PYTEST},
        f"{PIP} -e . pytest | .venv/bin/python -m pytest -q |  | .venv | setup.py",
    ),
    "pip, extras in setup.cfg": (
        {
            "setup.py": "",
            "setup.cfg": "[options.extras_require]\ntesting =\n    pytest>=7\n    mock\n",
            "tests/test_a.py": PYTEST,
        },
        f"{PIP} -e '.[testing]' | .venv/bin/python -m pytest -q |  | .venv | setup.py, setup.cfg",
    ),
    "requirements files alone": (
        {
            "requirements.txt": "flask\n",
            "requirements-dev.txt": "pytest\n",
            "app.py": "",
            "tests/test_a.py": PYTEST,
        },
        f"{PIP} -r requirements.txt -r requirements-dev.txt | .venv/bin/python -m pytest -q"
        " | PYTHONPATH=. | .venv | requirements.txt, requirements-dev.txt",
    ),
    "nothing to install, src layout": (
        {"src/app/__init__.py": "", "tests/test_a.py": PYTEST},
        " | python3 -m pytest -q | PYTHONPATH=src |  | tests/test_a.py",
    ),
    "nothing to install, flat layout, only tools configured": (
        {"pyproject.toml": "[tool.ruff]\n", "app/__init__.py": "", "tests/test_a.py": PYTEST},
        " | python3 -m pytest -q | PYTHONPATH=. |  | pyproject.toml",
    ),
    "unittest in a package": (
        {"app.py": "", "tests/__init__.py": "", "tests/test_a.py": UNITTEST},
        " | python3 -m unittest discover -q | PYTHONPATH=. |  | tests/test_a.py",
    ),
    "unittest in a plain folder, other names": (
        {"app.py": "", "tests/a_test.py": UNITTEST},
        " | python3 -m unittest discover -q -s tests -p '*_test.py' | PYTHONPATH=."
        " |  | tests/a_test.py",
    ),
    "django": (
        {"manage.py": "", "requirements.txt": "django\n", "shop/tests.py": UNITTEST},
        f"{PIP} -r requirements.txt | .venv/bin/python manage.py test | PYTHONPATH=. | .venv"
        " | requirements.txt",
    ),
    "npm": (
        {"package.json": '{"scripts": {"test": "jest"}}', "package-lock.json": "{}"},
        "npm ci | npm test | CI=true | node_modules | package.json, package-lock.json",
    ),
    "npm without a lock file": (
        {"package.json": '{"scripts": {"test": "jest"}, "devDependencies": {"jest": "*"}}'},
        "npm install --no-package-lock | npm test | CI=true | node_modules | package.json",
    ),
    "npm without dependencies": (
        {"package.json": '{"scripts": {"test": "node --test"}}'},
        " | npm test | CI=true |  | package.json",
    ),
    "pnpm": (
        {"package.json": '{"scripts": {"test": "vitest"}}', "pnpm-lock.yaml": ""},
        "pnpm install --frozen-lockfile | pnpm test | CI=true | node_modules"
        " | package.json, pnpm-lock.yaml",
    ),
    "the named package manager wins over a stray lock file": (
        {
            "package.json": '{"packageManager": "yarn@1.22.0", "scripts": {"test": "jest"}}',
            "pnpm-lock.yaml": "",
            "yarn.lock": "",
        },
        "yarn install --frozen-lockfile | yarn test | CI=true | node_modules"
        " | package.json, yarn.lock",
    ),
    "yarn berry without node_modules": (
        {"package.json": '{"scripts": {"test": "jest"}}', "yarn.lock": "__metadata:\n"},
        "yarn install --immutable | yarn test | CI=true"
        " | .pnp.cjs .pnp.loader.mjs .yarn/cache .yarn/unplugged | package.json, yarn.lock",
    ),
    "bun": (
        {"package.json": '{"scripts": {"test": "bun test"}}', "bun.lock": ""},
        "bun install --frozen-lockfile | bun run test | CI=true | node_modules"
        " | package.json, bun.lock",
    ),
    "tracked node_modules": (
        {
            "package.json": '{"scripts": {"test": "jest"}}',
            "package-lock.json": "{}",
            "node_modules/jest/index.js": "",
        },
        " | npm test | CI=true |  | package.json, package-lock.json",
    ),
    "go": ({"go.mod": "", "a/a_test.go": ""}, " | go test ./... |  |  | go.mod"),
    "rust": (
        {"Cargo.toml": "[workspace]\n", "Cargo.lock": ""},
        " | cargo test --workspace --locked |  | target | Cargo.toml, Cargo.lock",
    ),
    "make": (
        {"Makefile": ".PHONY: check test\nTEST := x\nall check test: build\n\trun\n"},
        " | make test |  |  | Makefile, target test",
    ),
    "make check": (
        {"GNUmakefile": "check::\n\trun\n", "Makefile": "test:\n"},
        " | make check |  |  | GNUmakefile, target check",
    ),
    "just": (
        {"justfile": "test filter='' *args:\n  run\n"},
        " | just test |  |  | justfile, recipe test",
    ),
    "rspec": (
        {"Gemfile": "", "Gemfile.lock": "", "spec/a_spec.rb": ""},
        "BUNDLE_PATH=vendor/bundle BUNDLE_FROZEN=true bundle install | bundle exec rspec"
        " | BUNDLE_PATH=vendor/bundle BUNDLE_FROZEN=true | vendor/bundle"
        " | Gemfile, Gemfile.lock, spec/",
    ),
    "rake": (
        {"Rakefile": "Rake::TestTask.new\n", "test/a.rb": ""},
        " | rake test |  |  | Rakefile",
    ),
    "maven": (
        {"pom.xml": "", "mvnw": "", "src/test/java/ATest.java": ""},
        " | sh mvnw -B -q test |  |  | pom.xml, mvnw",
    ),
    "gradle with its wrapper": (
        {
            "build.gradle": "",
            "gradlew": "",
            "gradle/wrapper/gradle-wrapper.jar": "",
            "app/src/test/kotlin/A.kt": "",
        },
        " | sh gradlew --no-daemon test |  |  | build.gradle, gradlew",
    ),
    "dotnet": (
        {"App.sln": "", "t/T.csproj": '<PackageReference Include="Microsoft.NET.Test.Sdk" />'},
        " | dotnet test | MSBUILDDISABLENODEREUSE=1 |  | App.sln",
    ),
    "composer": (
        {"composer.json": "{}", "composer.lock": "{}", "phpunit.xml.dist": ""} |
        {"composer.json": '{"name": "a/b"}'},
        "composer install --no-interaction --no-progress | vendor/bin/phpunit |  | vendor"
        " | composer.json, composer.lock, phpunit.xml.dist",
    ),
    "elixir": (
        {"mix.exs": "", "mix.lock": "", "test/a_test.exs": ""},
        "mix deps.get --check-locked | mix test |  | deps _build | mix.exs, mix.lock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_repository_gets_its_own_runner(tmp_path: Path, kind: str) -> None:
    files, expected = KINDS[kind]
    found = seen(tmp_path, files)
    assert one_line(found) == expected
    assert found.checks[0].name == "tests"
    # Without inputs it would run at every claim.
    assert bool(found.setup) == bool(found.setup_inputs)
    assert set(found.setup_inputs) <= set(files)


NOTHING: dict[str, dict[str, str]] = {
    "an empty repository": {},
    "the npm placeholder": {
        "package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'
    },
    "a test script that never ends": {"package.json": '{"scripts": {"test": "jest --watch"}}'},
    "Python without tests": {"pyproject.toml": BUILD, "app.py": ""},
    "Go without tests": {"go.mod": "", "main.go": ""},
    "a Makefile without a target for it": {"Makefile": "test = x\nlatest: a\n\ttest: b\n"},
    "a recipe that wants an argument": {"justfile": "test name:\n  run\n"},
    "test files that are only data": {"testdata/test_a.py": "", ".venv/lib/test_b.py": ""},
}


@pytest.mark.parametrize("kind", NOTHING)
def test_nothing_is_suggested_for(tmp_path: Path, kind: str) -> None:
    found = seen(tmp_path, NOTHING[kind])
    assert (found.checks, found.setup, found.keep) == ((), "", ())


def test_a_manifest_without_tests_is_named(tmp_path: Path) -> None:
    found = seen(tmp_path, {"pyproject.toml": BUILD, "go.mod": ""})
    assert found.notes == (
        "pyproject.toml is there, but no test_*.py is tracked",
        "go.mod is there, but no *_test.go is tracked",
    )


def test_an_untracked_file_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"Makefile": "test:\n\ttrue\n", "uv.lock": "", "pyproject.toml": BUILD})
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(PYTEST)
    found = detect(tmp_path, ["tests/test_a.py"])
    assert [check.run for check in found.checks] == ["python3 -m pytest -q"]
    assert found.setup == ""


def test_a_language_s_runner_goes_before_make_and_the_note_names_make(tmp_path: Path) -> None:
    found = seen(tmp_path, {"Makefile": "test:\n\tpytest\n", "go.mod": "", "a_test.go": ""})
    assert [check.run for check in found.checks] == ["go test ./..."]
    assert any(note.startswith("make test (Makefile) is not used") for note in found.notes)


def test_two_languages_at_the_root_are_two_checks_and_one_setup(tmp_path: Path) -> None:
    found = seen(
        tmp_path,
        {
            "pyproject.toml": BUILD + "[dependency-groups]\ndev=['pytest']\n",
            "uv.lock": "",
            "tests/test_a.py": PYTEST,
            "package.json": '{"scripts": {"test": "jest"}}',
            "package-lock.json": "{}",
        },
    )
    assert [(check.name, check.keep) for check in found.checks] == [
        ("tests", (".venv",)),
        ("tests-node", ("node_modules",)),
    ]
    assert found.setup == "uv sync --frozen && npm ci"
    assert found.setup_inputs == ("uv.lock", "package.json", "package-lock.json")
    assert found.keep == (".venv", "node_modules")


def test_tox_and_nox_are_only_a_note(tmp_path: Path) -> None:
    found = seen(tmp_path, {"noxfile.py": "", "setup.py": "", "test_a.py": PYTEST})
    assert "nox" not in found.checks[0].run + found.setup
    assert any(note.startswith("noxfile.py is not used") for note in found.notes)


def test_other_folders_are_notes_with_their_cwd(tmp_path: Path) -> None:
    found = seen(
        tmp_path,
        {
            "go.mod": "",
            "a_test.go": "",
            "web/package.json": '{"scripts": {"test": "jest"}}',
            "web/package-lock.json": "{}",
            "examples/demo/package.json": '{"scripts": {"test": "jest"}}',
            "old/node_modules/x/package.json": '{"scripts": {"test": "x"}}',
        },
    )
    assert [check.run for check in found.checks] == ["go test ./..."]
    assert found.notes == ('web/ has tests: npm test with cwd = "web", after npm ci',)


def test_a_workspace_covers_its_members(tmp_path: Path) -> None:
    found = seen(
        tmp_path,
        {
            "Cargo.toml": "[workspace]\nmembers = ['a']\n",
            "a/Cargo.toml": "[package]\n",
            "b/go.mod": "",
            "b/b_test.go": "",
        },
    )
    assert found.notes == ('b/ has tests: go test ./... with cwd = "b"',)


def test_files_that_installing_generates_are_kept(tmp_path: Path) -> None:
    project = BUILD + "[tool.setuptools_scm]\nversion_file = 'src/app/_version.py'\n"
    found = seen(tmp_path, {"pyproject.toml": project, "test_a.py": PYTEST})
    assert found.keep == (".venv", "src/app/_version.py")


def test_an_extension_is_built_again_in_the_cleaned_tree(tmp_path: Path) -> None:
    project = "[build-system]\nrequires=['maturin']\nbuild-backend='maturin'\n"
    files = {"pyproject.toml": project, "Cargo.toml": "[package]\n", "tests/test_a.py": PYTEST}
    found = seen(tmp_path, files)
    assert [check.run for check in found.checks] == [
        ".venv/bin/pip install -q --no-deps -e . && .venv/bin/python -m pytest -q"
    ]
    assert any("do not link" in note for note in found.notes)


def test_a_gradle_wrapper_that_a_worktree_would_lack_is_not_suggested(tmp_path: Path) -> None:
    files = {"build.gradle": "", "gradlew": "", "src/test/java/A.java": ""}
    write(tmp_path, {"gradle/wrapper/gradle-wrapper.jar": "here, but ignored"})
    found = seen(tmp_path, files)
    assert found.checks[0].run == "gradle --no-daemon test"
    assert any("a worktree lacks it" in note for note in found.notes)


# -- hostile, broken, huge ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[broken"),
        ("pyproject.toml", "a = " + "[" * 100_000),
        ("package.json", "{"),
        ("package.json", "[" * 100_000),
        ("setup.cfg", "no section\n"),
    ],
)
def test_a_broken_file_is_a_note_and_the_rest_still_counts(
    tmp_path: Path, name: str, text: str
) -> None:
    found = seen(tmp_path, {name: text, "setup.py": "", "tests/test_a.py": PYTEST})
    assert found.checks[0].run == ".venv/bin/python -m pytest -q"
    assert any(note.startswith(f"{name} is broken") for note in found.notes)


@pytest.mark.parametrize(
    "text",
    [
        "project = 1\ntool = []\ndependency-groups = 'x'\nbuild-system = 3\n",
        "[project]\noptional-dependencies = ['pytest']\ndependencies = 5\n[tool]\nuv = 'x'\n",
        "[project.optional-dependencies]\ntest = {pytest = 1}\n[tool.uv]\ndefault-groups = 7\n",
        "[dependency-groups]\na = [{include-group='b'}]\nb = [{include-group='a'}, 3]\n",
        "[tool.poetry]\ngroup = [1]\nextras = 2\n[tool.setuptools_scm]\nwrite_to = ['x']\n",
    ],
)
@pytest.mark.parametrize("lock", ["uv.lock", "poetry.lock", "Pipfile.lock", "setup.py"])
def test_values_of_the_wrong_type_are_ignored(tmp_path: Path, text: str, lock: str) -> None:
    found = seen(tmp_path, {"pyproject.toml": text, lock: "", "test_a.py": PYTEST})
    assert len(found.checks) == 1


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"scripts": ["test"]}', '{"scripts": {"test": 3}}', '{"workspaces": 1}']
)
def test_a_package_json_of_the_wrong_shape_is_ignored(tmp_path: Path, text: str) -> None:
    assert seen(tmp_path, {"package.json": text, "composer.json": text}).checks == ()


def test_names_from_the_repository_never_reach_a_command_unless_plain(tmp_path: Path) -> None:
    hostile = "x'; touch owned; '"
    project = (
        BUILD
        + f'[project.optional-dependencies]\n"{hostile}" = ["pytest"]\n"--pre" = ["pytest"]\n'
        + f'[dependency-groups]\n"{hostile}" = ["pytest"]\n'
        + f'[tool.setuptools_scm]\nversion_file = "{hostile}"\nwrite_to = "../out"\n'
    )
    for lock in ("uv.lock", "poetry.lock", "LICENSE"):
        files = {
            "pyproject.toml": project,
            lock: "",
            f"requirements-test{hostile}.txt": "",
            f"tests{hostile}/test_a.py": UNITTEST,
            f"web{hostile}/package.json": '{"scripts": {"test": "jest"}}',
        }
        (tmp_path / lock).parent.mkdir(parents=True, exist_ok=True)
        found = seen(tmp_path / lock[:3], files)
        commands = found.setup + "".join(check.run for check in found.checks)
        assert found.checks
        assert "owned" not in commands + "".join((*found.keep, *found.notes))
        assert "--pre" not in commands
        assert ".." not in "".join(found.keep)


def test_a_file_over_one_mebibyte_is_not_read(tmp_path: Path) -> None:
    files = {"package.json": '{"scripts": {"test": "jest"}}' + " " * MAX_BYTES}
    found = seen(tmp_path, files)
    assert found.checks == ()
    assert found.notes == ("package.json is larger than 1 MiB, not read",)


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "package.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "Makefile")
    (tmp_path / "go.mod").mkdir()
    found = detect(tmp_path, ["package.json", "Makefile", "Cargo.toml"])
    assert [check.run for check in found.checks] == ["cargo test"]
    assert {note.partition(" ")[0] for note in found.notes} == {
        "package.json",
        "Makefile",
        "Cargo.toml",
    }


def test_bytes_that_are_no_text_are_survived(tmp_path: Path) -> None:
    for name in ("package.json", "pyproject.toml", "Makefile", "test_a.py"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00\x80[")
    assert detect(tmp_path, ["package.json", "pyproject.toml", "Makefile", "test_a.py"]).checks


# -- the suggestion runs in a worktree ------------------------------------------------------------

APP = "def answer():\n    return 42\n"
RUNNABLE: dict[str, dict[str, str]] = {
    "pytest, src layout": {
        "src/app/__init__.py": APP,
        "tests/test_a.py": "from app import answer\ndef test_it():\n    assert answer() == 42\n",
    },
    "pytest, flat layout": {
        "app/__init__.py": APP,
        "tests/unit/test_a.py": "from app import answer\n"
        "def test_it():\n    assert answer() == 42\n",
    },
    "unittest, package of tests": {
        "app.py": APP,
        "tests/__init__.py": "",
        "tests/test_a.py": "import unittest\nfrom app import answer\n"
        "class T(unittest.TestCase):\n    def test_a(self): self.assertEqual(answer(), 42)\n",
    },
    "unittest, two plain folders": {
        "app.py": APP,
        **{
            f"{folder}/test_a.py": "import unittest\nfrom app import answer\n"
            "class T(unittest.TestCase):\n    def test_a(self): self.assertEqual(answer(), 42)\n"
            for folder in ("tests/one", "tests/two")
        },
    },
    "make": {"Makefile": "test:\n\tgrep -q 42 app.py\n", "app.py": APP},
}


@pytest.mark.parametrize("kind", RUNNABLE)
def test_the_suggestion_is_green_in_a_worktree_and_red_when_its_tree_is_broken(
    tmp_path: Path, kind: str
) -> None:
    checkout, worktree = tmp_path / "app", tmp_path / "wt"
    files = RUNNABLE[kind]
    write(checkout, files)

    def git(*arguments: str | Path) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@swarm.invalid")
        command = ["git", "-C", checkout, *identity, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "Seed")
    git("worktree", "add", "-q", worktree)
    found = detect(checkout, sorted(files))
    (check,) = found.checks
    assert found.setup == ""
    programs = tmp_path / "bin"  # a python3 that has pytest
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python3").chmod(0o755)

    def judge() -> int:
        environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | check.env
        for cache in worktree.rglob("__pycache__"):
            shutil.rmtree(cache)
        command = ["/bin/sh", "-c", check.run]
        return subprocess.run(
            command, cwd=worktree, env=environment, stdin=subprocess.DEVNULL, capture_output=True
        ).returncode

    assert judge() == 0
    for path in worktree.rglob("*.py"):
        path.write_text(path.read_text().replace("return 42", "return 41"))
    assert judge() != 0
