"""The main job on a real library: click's own source and test-suite, ten tasks, a kill -9.

    python examples/real_library.py [--folder DIR] [--slots 4]

Needs pip and PyPI once, for the library's source and wheel. Every task's end is written here before
the run; the script ends 0 only when every end is as written, every landed tip passed the library's
suite with its code imported from the gate's worktree, and the invariants hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

VERSION = "8.5.1"
CHECK = (
    'python -c "import click; print(\'imported\', click.__file__)" '
    "&& python -m pytest -q -p no:cacheprovider tests"
)


@dataclass(frozen=True)
class Case:
    """One task: what the agent plays, and how it must end."""

    id: str
    title: str
    script: str
    end: str  # landed or parked
    attempts: int
    header: str = ""


def new_module(name: str, code: str, test: str, message: str) -> str:
    return f"""[[attempt]]
step = [
  {{ write = "src/click/{name}.py", text = '''{code}''' }},
  {{ write = "tests/test_swarm{name}.py", text = '''{test}''' }},
  {{ commit = "{message}" }},
]
"""


CASES = [
    Case(
        "safecall-doc",
        "Say what a safe call returns",
        """[[attempt]]
step = [
  { replace = "src/click/utils.py", old = "    \\"\\"\\"Wraps a function so that it swallows exceptions.\\n", new = "    \\"\\"\\"Wraps a function so that it swallows exceptions and returns None.\\n" },
  { commit = "Say what a safe call returns" },
]
""",
        "landed",
        1,
    ),
    Case(
        "make-str-bytearray",
        "make_str decodes a bytearray",
        """[[attempt]]
step = [
  { wait = "make-str-memoryview", is = "claimed", within = "300s" },
  { replace = "src/click/utils.py", old = "    if isinstance(value, bytes):\\n        try:\\n", new = "    if isinstance(value, (bytes, bytearray)):\\n        try:\\n" },
  { write = "tests/test_swarm_bytearray.py", text = "from click.utils import make_str\\n\\n\\ndef test_bytearray():\\n    assert make_str(bytearray(b'abc')) == 'abc'\\n" },
  { commit = "make_str decodes a bytearray" },
]
""",
        "landed",
        1,
        "priority: 20\n",
    ),
    Case(
        "make-str-memoryview",
        "make_str decodes a memoryview",
        """[[attempt]]
step = [
  { replace = "src/click/utils.py", old = "    if isinstance(value, bytes):\\n        try:\\n", new = "    if isinstance(value, memoryview):\\n        value = value.tobytes()\\n    if isinstance(value, bytes):\\n        try:\\n" },
  { write = "tests/test_swarm_memoryview.py", text = "from click.utils import make_str\\n\\n\\ndef test_memoryview():\\n    assert make_str(memoryview(b'abc')) == 'abc'\\n" },
  { commit = "make_str decodes a memoryview" },
  { wait = "make-str-bytearray", is = "landed", within = "600s" },
]

[[attempt]]
step = [
  { expect = "<<<<<<<", in = "src/click/utils.py" },
  { run = ["python", "-c", "import re,pathlib; p=pathlib.Path('src/click/utils.py'); s=p.read_text(); p.write_text(re.sub(r'<<<<<<< .*?>>>>>>> [^\\\\n]*\\\\n', '    if isinstance(value, memoryview):\\\\n        value = value.tobytes()\\\\n    if isinstance(value, (bytes, bytearray)):\\\\n', s, flags=re.S))"] },
  { commit = "make_str decodes a memoryview beside a bytearray" },
]
""",
        "landed",
        2,
        "priority: 20\n",
    ),
    Case(
        "rename-posixify",
        "Call it _slugify",
        """[[attempt]]
step = [
  { wait = "slug-helper", is = "claimed", within = "600s" },
  { replace = "src/click/utils.py", old = "def _posixify(name", new = "def _slugify(name" },
  { replace = "src/click/utils.py", old = "f\\"~/.{_posixify(app_name)}\\"", new = "f\\"~/.{_slugify(app_name)}\\"" },
  { replace = "src/click/utils.py", old = "        _posixify(app_name),\\n", new = "        _slugify(app_name),\\n" },
  { commit = "Call it _slugify" },
]
""",
        "landed",
        1,
        "priority: 15\n",
    ),
    Case(
        "slug-helper",
        "A public slug helper",
        """[[attempt]]
step = [
  { write = "src/click/_slug.py", text = "from . import utils\\n\\n\\ndef slug(name: str) -> str:\\n    return utils._posixify(name)\\n" },
  { write = "tests/test_swarm_slug.py", text = "from click import _slug\\n\\n\\ndef test_slug():\\n    assert _slug.slug('My App') == 'my-app'\\n" },
  { commit = "A slug helper" },
  { wait = "rename-posixify", is = "landed", within = "600s" },
]

[[attempt]]
step = [
  { expect = "test_slug", in = "{prompt}" },
  { replace = "src/click/_slug.py", old = "utils._posixify", new = "utils._slugify" },
  { commit = "The slug helper after the rename" },
]
""",
        "landed",
        2,
        "priority: 15\n",
    ),
    Case(
        "break-echo",
        "Print twice (the control: it must never land)",
        """[[attempt]]
step = [
  { replace = "src/click/utils.py", old = "    file.write(out)  # type: ignore\\n", new = "    file.write(out + out)  # type: ignore\\n" },
  { commit = "Print twice" },
]
""",
        "parked",
        1,
        "strikes: 1\n",
    ),
    Case(
        "docs-why",
        "A sentence in the docs",
        """[[attempt]]
step = [
  { append = "docs/why.md", text = "\\nIt is also a pleasure to test.\\n" },
  { commit = "A sentence" },
]
""",
        "landed",
        1,
        'paths: ["docs/**"]\n',
    ),
    Case(
        "clamp-helper",
        "A clamp helper",
        new_module(
            "_clamp",
            "def clamp(value: int, low: int, high: int) -> int:\n"
            "    return max(low, min(value, high))\n",
            "from click._clamp import clamp\n\n\ndef test_clamp():\n"
            "    assert [clamp(v, 0, 3) for v in (-1, 2, 9)] == [0, 2, 3]\n",
            "A clamp helper",
        ),
        "landed",
        1,
        'paths: ["src/click/_clamp.py", "tests/test_swarm_clamp.py"]\n',
    ),
    Case(
        "clamp-percent",
        "Percentages are clamped",
        new_module(
            "_percent",
            "from ._clamp import clamp\n\n\ndef percent(value: int) -> str:\n"
            '    return f"{clamp(value, 0, 100)}%"\n',
            "from click._percent import percent\n\n\ndef test_percent():\n"
            '    assert percent(140) == "100%"\n',
            "Percentages",
        ),
        "landed",
        1,
        "needs: [clamp-helper]\n",
    ),
    Case(
        "crash-once",
        "Continue after a crash",
        """[[attempt]]
step = [
  { write = "src/click/_crash.py", text = "VALUE = 1\\n" },
  { commit = "Half of it" },
  { crash = "SIGKILL" },
]

[[attempt]]
step = [
  { expect = "VALUE = 1", in = "src/click/_crash.py" },
  { write = "tests/test_swarm_crash.py", text = "from click import _crash\\n\\n\\ndef test_value():\\n    assert _crash.VALUE == 1\\n" },
  { commit = "The other half" },
]
""",
        "landed",
        2,
    ),
]


def sh(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def prepare(folder: Path) -> tuple[Path, dict[str, str]]:
    """The library as a repository, and an environment with pytest and the library's wheel."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    sh(*pip, "download", "--no-deps", "--no-binary", ":all:", f"click=={VERSION}", cwd=folder)
    with tarfile.open(folder / f"click-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    app = folder / "click"
    (folder / f"click-{VERSION}").rename(app)
    sh(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    python = str(folder / "venv/bin/python")
    sh(python, "-m", "pip", "-q", "install", "pytest", f"click=={VERSION}", cwd=folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "SWARM_", "PYTHON"))}
    env["PATH"] = f"{folder / 'venv/bin'}{os.pathsep}{env['PATH']}"
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "A Person", f"GIT_{who}_EMAIL": "person@example.invalid"}
    (app / ".gitignore").write_text("__pycache__/\n*.pyc\n", "utf-8")
    (app / "swarm.toml").write_text(
        'format = 1\ntarget = "main"\n[limits]\nbackoff = "1s"\n[[checks]]\nname = "tests"\n'
        f"run = '''{CHECK}'''\ntimeout = \"5m\"\nenv = {{ PYTHONPATH = \"src\" }}\n",
        "utf-8",
    )
    for case in CASES:
        tomllib.loads(case.script)
        (app / "tasks").mkdir(exist_ok=True)
        (app / ".swarm/scripts").mkdir(parents=True, exist_ok=True)
        (app / f"tasks/{case.id}.md").write_text(
            f"---\ntitle: {json.dumps(case.title)}\n{case.header}---\nDo it.\n", "utf-8"
        )
        (app / f".swarm/scripts/{case.id}.toml").write_text(case.script, "utf-8")
    sh("git", "init", "-q", "-b", "main", cwd=app, env=env)
    sh("git", "add", "-A", cwd=app, env=env)
    sh("git", "commit", "-q", "-m", f"click {VERSION}", cwd=app, env=env)
    return app, env


def prove_control_red(app: Path, env: dict[str, str], folder: Path) -> None:
    """The control has to fail alone, or catching it would prove nothing."""
    copy = folder / "control"
    sh("git", "clone", "-q", str(app), str(copy), cwd=folder, env=env)
    place = copy / "src/click/utils.py"
    text = place.read_text("utf-8")
    line = "    file.write(out)  # type: ignore\n"
    assert text.count(line) == 1
    place.write_text(text.replace(line, "    file.write(out + out)  # type: ignore\n"), "utf-8")
    done = subprocess.run(
        ["/bin/sh", "-c", CHECK],
        cwd=copy,
        env={**env, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 1 or str(copy) not in done.stdout:
        sys.exit(f"the control is not red alone: exit {done.returncode}\n{done.stdout[-800:]}")
    print(f"control    red alone: {done.stdout.strip().splitlines()[-1]}")


def play(app: Path, env: dict[str, str], slots: int) -> None:
    """Start, kill -9 in the middle, start again until nothing can move."""
    swarm = [sys.executable, "-m", "swarm"]
    print(sh(*swarm, "init", cwd=app, env=env))
    run = [*swarm, "run", "-n", str(slots), "--agent", "scripted"]
    first = subprocess.Popen(run, cwd=app, env=env, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    landed = 0
    for line in first.stdout:
        print(line, end="")
        landed += " landed " in line
        if landed == 3:
            first.send_signal(signal.SIGKILL)
            break
    first.wait()
    print(f"kill -9    of the runner after {landed} landings\n")
    second = subprocess.run(run, cwd=app, env=env, timeout=1800)
    if second.returncode != 1:
        sys.exit(f"the second run ended {second.returncode}, not 1 (one task parked)")


def judge(app: Path) -> bool:
    """The table, and every landed tip against its verdict's log."""
    from swarm import invariants
    from swarm.ledger.records import Verdict, decode, verdict_path
    from swarm.ledger.view import State
    from swarm.workspace import opened

    is_good = True
    with opened(app) as work:
        view = work.ledger.view()
        print(f"\n{'task':<22}{'expected':<12}{'end':<12}{'attempts':<10}commit")
        for case in CASES:
            state, attempts, done = view.state(case.id), view.attempts(case.id), view.done(case.id)
            token = attempts.token if attempts else 0
            commit = (done.landed or "-")[:10] if done else "-"
            # A killed runner costs an attempt without a strike.
            fits = state == case.end and token in (case.attempts, case.attempts + 1)
            is_good &= fits
            mark = "" if fits else "   <- not as expected"
            print(f"{case.id:<22}{case.end:<12}{state.value:<12}{token:<10}{commit}{mark}")
            if state is State.LANDED and done is not None:
                for key in done.verdicts:
                    data = next(
                        raw
                        for logged in work.ledger.iter_log()
                        if (raw := _blob(work, logged.oid, verdict_path(key))) is not None
                    )
                    verdict = decode(Verdict, data)
                    log = (work.layout.root / (verdict.log or "")).read_text("utf-8", "replace")
                    where = str(work.layout.gate)
                    if verdict.verdict != "passed" or f"imported {where}" not in log:
                        is_good = False
                        print(f"  {key}: {verdict.verdict}, not imported from {where}")
        found = invariants.check(work.ledger, work.layout)
        for violation in found:
            is_good = False
            print(violation)
        print(f"\ninvariants {'hold' if not found else 'are violated'}; ", end="")
        print("every landed tip passed with its code imported from the gate's worktree")
    return is_good


def _blob(work: object, commit: str, path: str) -> bytes | None:
    reader = work.ledger.hub.reader  # type: ignore[attr-defined]
    entry = reader.find(reader.tree_of(commit), path)
    return reader.read(entry.oid, "blob") if entry else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep everything there")
    parser.add_argument("--slots", type=int, default=4)
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="swarm-real-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    app, env = prepare(folder)
    prove_control_red(app, env, folder)
    play(app, env, given.slots)
    is_good = judge(app)
    print(f"{'as expected' if is_good else 'NOT as expected'} in {time.monotonic() - began:.0f} s")
    if given.folder is None and is_good:
        shutil.rmtree(folder)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
