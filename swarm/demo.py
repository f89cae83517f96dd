"""The main job on a small project: `python -m swarm.demo`, which is `make demo`.

Enters: the template of examples/repo-template. Leaves: it played to its end below `.demo`, told as
`swarm run` tells it, and whether every task ended as the template says.
Guards: nothing but a `.demo` of ours is ever removed; the user's git configuration has no say.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec

from swarm import adopt, invariants, process
from swarm.cli.boundary import show
from swarm.cli.live import Screen, Signals, screen
from swarm.cli.ready import Order, Ready, prepare
from swarm.cli.run import Ended, launch, moved
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View
from swarm.output import plural, since_text, standing_lines
from swarm.overview import stand
from swarm.plumbing.git import Git
from swarm.task import take_plan
from swarm.workspace import Workspace, opened

FOLDER = ".demo"
MARK = ".made-by-swarm-demo"
NAME = "shop"
EXPECTED = "expected.toml"
KINDS = frozenset({"claimed", "sealed", "ejected", "released", "landed", "parked"})
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one task must end, whatever the order in which things happen."""

    end: str  # landed, parked or blocked
    attempts: int  # claims
    strikes: int  # what is left of them at the end
    events: list[str] = []  # its own of KINDS, in order
    ejected: list[str] = []  # the reason of each ejection, `:` its partner when there is one


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "slots", type=click.IntRange(2, 64), default=4, help="Agents at once.")
@click.option("--at", "folder", type=click.Path(path_type=Path), default=FOLDER, help="Where.")
def demo(slots: int, folder: Path) -> int:
    """Play 15 tasks with scripted agents: a conflict, a red merge, a crash, all healed."""
    _seal()
    with claimed(folder) as place, Signals() as signals:
        return int(play(place, slots, screen(), signals))


def _seal() -> None:
    """This environment's own programs first, and no git configuration but what is ours."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    os.environ["GIT_CONFIG_GLOBAL"] = os.devnull
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    programs = Path(sys.executable).parent
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


# -- the project ----------------------------------------------------------------------------------


def template() -> Path:
    """The folder of the template: in the package when installed, beside it in a checkout.

    Raises:
        UsageError: it is in neither place.
    """
    here = Path(__file__).resolve().parent
    for folder in (here.parent / "examples/repo-template", here / "template"):
        if (folder / EXPECTED).is_file():
            return folder
    raise UsageError("the template of the demo is not installed", hint="pip install git-swarm")


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """The demo's own folder, made or taken over, empty of an earlier demo; ours while it lasts.

    Raises:
        UsageError: there is something that no demo made, or another demo plays there.
    """
    mark = folder / MARK
    if folder.is_symlink() or (folder.exists() and not mark.is_file()):
        raise UsageError(
            f"{folder} was not made by the demo; nothing in it was touched",
            hint="python -m swarm.demo --at ANOTHER-FOLDER",
        )
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a demo is being played in {folder}") from None
        for name in (NAME, f"{NAME}.swarm"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder / name)
        yield folder
    finally:
        os.close(descriptor)


def make_shop(place: Path) -> Path:
    """A repository with one commit, made from the template without any configuration of a user."""
    shop = place.resolve() / NAME
    shutil.copytree(template(), shop, ignore=_NOT_COPIED)
    (shop / ".git").mkdir()
    git = Git(shop / ".git", work_tree=shop)
    git.run("init", "--quiet", "--template=", "--initial-branch=main")
    for key, value in (
        ("user.name", "A Person"),
        ("user.email", "person@shop.invalid"),
        ("commit.gpgSign", "false"),
        ("tag.gpgSign", "false"),
    ):
        git.run("config", key, value)
    git.run("add", "--all")
    identity = {
        f"GIT_{who}_{what}": text
        for who in ("AUTHOR", "COMMITTER")
        for what, text in (("NAME", "A Person"), ("EMAIL", "person@shop.invalid"))
    }
    git.run("commit", "--quiet", "--no-verify", "--message", "A small shop", env=identity)
    return shop


# -- the play -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What the ledger says of one task, in the words of expected.toml."""

    end: str
    attempts: int
    strikes: int
    events: list[str]
    ejected: list[str]


def play(place: Path, slots: int, where: Screen, signals: Signals) -> Exit:
    """From nothing to the comparison.

    Returns: YES when every task ended as expected and every invariant holds, INTERRUPTED, or NO.
    """
    began = time.monotonic()
    shop = make_shop(place)
    adopt.make(shop, say=lambda _: None)
    with opened(shop) as work:
        before = invariants.checkout_facts(shop)
        ready = prepare(work, Order(slots=slots, agent="scripted"))
        for line in _head(place, work, ready):
            where.say(line)
        take_plan(work.ledger, ready.drafts)
        start = datetime.now(UTC)
        ended = launch(work, ready, where, signals, lambda _: since_text(datetime.now(UTC), start))
        for line in _end(work, ended, time.monotonic() - began):
            where.say(line)
        if ended.exit_code is Exit.INTERRUPTED:
            where.say("stopped before its end; make demo starts anew")
            return Exit.INTERRUPTED
        wrong = differences(work.ledger, expected(shop))
        broken = [str(v) for v in invariants.check(work.ledger, work.layout, before, _policy(work))]
        total = len(ready.drafts)
        for line in (*wrong, *broken):
            where.say(f"  WRONG     {line}")
        if wrong or broken:
            return Exit.NO
        where.say(f"  {total} of {total} tasks ended as {EXPECTED} says; the invariants hold")
    for line in _look_around(place):
        where.say(line)
    return Exit.YES


def _policy(work: Workspace) -> invariants.Policy:
    checks = work.config.checks
    return invariants.Policy(
        flaky_lands=work.config.gate.flaky == "land",
        path_limited=frozenset(check.name for check in checks if check.paths),
    )


def expected(shop: Path) -> dict[str, Expected]:
    """expected.toml of a copy of the template.

    Raises:
        UsageError: it says what this version cannot read.
    """
    raw = tomllib.loads((shop / EXPECTED).read_text("utf-8"))
    try:
        return msgspec.convert(raw, dict[str, Expected])
    except msgspec.ValidationError as error:
        raise UsageError(f"{EXPECTED}: {error}") from error


def facts(ledger: Ledger) -> dict[str, Facts]:
    """What became of every task."""
    view = ledger.view()
    ends = _ends(ledger, view)
    events: dict[str, list[str]] = {}
    ejected: dict[str, list[str]] = {}
    for logged in reversed(list(ledger.iter_log())):
        if logged.kind not in KINDS:
            continue
        events.setdefault(logged.task, []).append(logged.kind)
        if logged.kind == "ejected":
            told = logged.message.trailers
            words = [told.get("Swarm-Reason", "unknown"), told.get("Swarm-Partner", "")]
            ejected.setdefault(logged.task, []).append(":".join(filter(None, words)))
    found = {}
    for task, end in ends.items():
        attempts = view.attempts(task)
        found[task] = Facts(
            end=end,
            attempts=attempts.token if attempts else 0,
            strikes=len(attempts.strikes) if attempts else 0,
            events=events.get(task, []),
            ejected=ejected.get(task, []),
        )
    return found


def _ends(ledger: Ledger, view: View) -> dict[str, str]:
    landed = [row.id for row in ledger.index.rows(view, State.LANDED)]
    others = stand(view, ledger.index).lines
    ends = {task: "open" if state == "ready" else state for task, (state, _) in others.items()}
    return dict.fromkeys(landed, "landed") | ends


def differences(ledger: Ledger, wanted: Mapping[str, Expected]) -> list[str]:
    """Each way in which a task did not end as it must, in words; sorted by task."""
    found = facts(ledger)
    lines = [f"{task}: nobody expected it" for task in sorted(found.keys() - wanted.keys())]
    for task, want in sorted(wanted.items()):
        got = found.get(task)
        if got is None:
            lines.append(f"{task}: the ledger does not have it")
            continue
        for name in ("end", "attempts", "strikes", "events", "ejected"):
            one, other = getattr(got, name), getattr(want, name)
            if one != other:
                lines.append(f"{task}: {name} {_said(one)}, expected {_said(other)}")
    return lines


def _said(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)


# -- the lines ------------------------------------------------------------------------------------


def _head(place: Path, work: Workspace, ready: Ready) -> list[str]:
    count = plural(len(ready.drafts), "task")
    check = work.config.checks[0]
    return [
        f"{Path(sys.prefix).name:<9} python {platform.python_version()}, {_git_version()}",
        f"demo      {place / NAME!s:<19} a small Python project: {count}, check {check.name}",
        f"          {place / f'{NAME}.swarm'!s:<19} hub.git, worktrees, runs",
        f"agents    {len(ready.seats)} slots, scripted: no model, no account, no network",
    ]


def _git_version() -> str:
    said = process.run_quick(
        ("git", "--version"), Path("/"), dict(os.environ), timedelta(seconds=10)
    )
    words = said.stdout.decode("utf-8", "replace").split()
    return f"git {words[2]}" if len(words) > 2 else "git unknown"


def _end(work: Workspace, ended: Ended, seconds: float) -> list[str]:
    return [
        "",
        f"done in {seconds:.0f}s: {ended.end.why}",
        *standing_lines(ended.standing, ended.landed, moved(work, ended)),
    ]


def _look_around(place: Path) -> list[str]:
    program = Path(sys.executable).parent / "swarm"
    here = Path.cwd()
    name = program.relative_to(here) if program.is_relative_to(here) else program
    shop = place / NAME
    return [
        "",
        "look around",
        f"  {name} -C {shop} status",
        f"  {name} -C {shop} show report-totals",
        f"  git -C {place / f'{NAME}.swarm' / 'hub.git'} log --oneline --first-parent main",
    ]


def main() -> None:
    """Entry point of `python -m swarm.demo`."""
    try:
        sys.exit(demo.main(prog_name="python -m swarm.demo", standalone_mode=False))
    except SwarmError as error:
        show(error)
        sys.exit(int(error.exit_code))
    except click.ClickException as error:
        error.show()
        sys.exit(int(Exit.USAGE))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(int(Exit.INTERRUPTED))


if __name__ == "__main__":
    main()
