"""Bringing a repository in: a hub beside it, a configuration, a first verdict of its target.

Enters: a checkout. Leaves: what `Made` and `Judged` say.
Guards: nothing that exists is changed, everything written is named, and a refusal writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from swarm import config as configuration
from swarm.check import Running, applies
from swarm.config import FILE, Check, Config, shown
from swarm.detect import Detected, detect
from swarm.errors import UsageError
from swarm.files import put_whole
from swarm.gate import Gate, Job
from swarm.judge import Ask, BaseRed, CannotJudge, Green, judge_target
from swarm.layout import Layout, beside
from swarm.ledger.records import Verdict
from swarm.ledger.store import Ledger
from swarm.plumbing import checkout as user
from swarm.plumbing.checkout import Checkout
from swarm.plumbing.git import Git
from swarm.plumbing.hub import LEDGER, Hub, branch_ref
from swarm.plumbing.refs import Move
from swarm.tend import tend
from swarm.workspace import Workspace

LOOK_SECONDS = 0.02  # between two looks at the checks of the target
REMOTE = "swarm"
OLDEST_GIT = (2, 39)
RECORD = "made.json"
MOST_NAMED = 10  # uncommitted files, refs and so on; then a count
_TASKS = ("tasks", "swarm-tasks")  # the first name that the repository does not use for others
_WIDTH = 100

Say = Callable[[str], None]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`made.json` of the state folder: what `init` made, and so `uninit` may remove."""

    config_digest: str = ""  # sha256 of the `swarm.toml` written; "": it was there before
    tasks: bool = False  # the folder of task files
    folder: str = ""  # its name
    hub: str = ""  # where the hub was made, from the checkout


class Made(msgspec.Struct, frozen=True):
    """A repository that is set up. `notes` are sentences for people."""

    checkout: Path
    config: Config
    layout: Layout
    tip: str  # of the hub's target
    dirty: tuple[tuple[str, str], ...]  # (status code, path): what agents will not see
    notes: tuple[str, ...]


# Making


def make(folder: Path, *, target: str | None = None, hub: str | None = None, say: Say) -> Made:
    """Make what is missing: hub, `swarm.toml`, the folder of tasks, the remote; say each.

    Args:
        target: a local branch; the one of `swarm.toml`, else the checkout's, when left out.
        hub: a path, relative to the folder where it is typed; beside the checkout when left out.

    Raises:
        UsageError: the repository, `swarm.toml` or what is in the way does not allow it; nothing
            was written.
        GitFault: git refused on the way; doing it again goes on.

    Safe: twice, and after a kill anywhere: it makes what is missing.
    """
    found = _look(folder)
    source = Git(found.git_dir)
    text, config, detected = _configuration(found, target, hub, folder)
    layout = beside(found.root, config.hub)
    tip = _branch_tip(source, config, found, target)
    _refuse_remote(found.root, layout)
    is_new = _refuse_hub(layout, config.target, source)
    say(row(shown(found.root.name, 60), _about(found)))
    _make_state(layout)
    _note(layout, hub=config.hub)
    now = _make_hub(layout, config, found, tip)
    say(row("hub", f"{config.hub:<22} {_hub_says(config, now, tip, is_new=is_new)}"))
    if text is not None:
        _note(layout, config_digest=hashlib.sha256(text.encode()).hexdigest())
        _write_new(found.root / FILE, text)
    for line in _config_lines(config, detected, is_new=text is not None):
        say(line)
    say(row("copy", _copy_says(found.root, config)))
    tasks = found.root / config.tasks
    if not tasks.is_dir():
        _note(layout, tasks=True, folder=config.tasks)
        tasks.mkdir(parents=True, exist_ok=True)
        say(row("tasks", f"{config.tasks + '/':<22} new, empty"))
    else:
        count = sum(1 for _ in tasks.glob("*.md"))
        files = f"{count} file{'s' if count != 1 else ''}: swarm plan check" if count else "empty"
        say(row("tasks", f"{config.tasks + '/':<22} there already, {files}"))
    is_added = user.add_remote(found.root, REMOTE, layout.hub, config.target)
    says = "added to this checkout" if is_added else "there already"
    say(row("remote", f"{REMOTE:<22} {says}, branch {config.target} only"))
    ours = (FILE, f"{config.tasks}/")
    dirty = tuple(row for row in found.dirty if row[1] not in ours)
    notes = [*(detected.notes if detected else ()), *_notes(found, config, now, tip, source)]
    return Made(found.root, config, layout, now, dirty, tuple(notes))


def row(word: str, text: str) -> str:
    return f"{word:<9} {text}".rstrip()


def _look(folder: Path) -> Checkout:
    """
    Raises:
        UsageError: swarm cannot work on this repository; why, and the cure.
    """
    refuse_state_folder(folder)
    _refuse_old_git()
    found = user.look(folder)
    root = found.root
    if not str(root).isprintable() or not root.name:
        raise UsageError(
            f"the path of this repository holds characters that git's own files cannot: "
            f"{shown(str(root), 200)}",
            hint="move it to a path of printable characters",
        )
    if found.head is None:
        raise UsageError("this repository has no commit yet", hint="git add -A && git commit")
    if found.branch is None:
        raise UsageError(
            "HEAD is detached: there is no branch to land on",
            why="agents start from a branch, and what passes lands on it",
            hint="git switch main\ngit switch -c my-branch",
        )
    source = Git(found.git_dir)
    if _is_submodule(found):
        raise UsageError(
            f"{shown(root.name)} is a submodule",
            why="the hub beside it would lie in the repository around it",
            hint=f"git clone {shlex.quote(str(root))} {shlex.quote(_outside(found))}",
        )
    if (found.git_dir / "shallow").exists():
        raise UsageError(
            "this is a shallow clone",
            why="the hub needs the history that merges are based on",
            hint="git fetch --unshallow",
        )
    promisors = source.run(
        "config", "--name-only", "--get-regexp", r"^remote\..*\.promisor$", ok=(0, 1)
    ).lines
    if promisors:
        name = promisors[0].removeprefix("remote.").removesuffix(".promisor")
        raise UsageError(
            "this is a partial clone",
            why="the hub needs the files that it left out",
            hint=f"git fetch --refetch --no-filter {name} && git config --unset {promisors[0]}",
        )
    return found


def refuse_state_folder(folder: Path) -> None:
    """
    Raises:
        UsageError: typed in a slot or elsewhere below a state folder of ours.
    """
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        if place.name.endswith(".swarm") and (
            (place / "hub.git").is_dir() or (place / RECORD).is_file()
        ):
            home = place.with_name(place.name.removesuffix(".swarm"))
            raise UsageError(f"{folder} belongs to swarm", hint=f"cd {shlex.quote(str(home))}")


def _refuse_old_git() -> None:
    said = Git(Path("/")).run("version").text
    numbers = re.search(r"(\d+)\.(\d+)", said)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_GIT:
        least = ".".join(map(str, OLDEST_GIT))
        raise UsageError(f"swarm needs git {least} or newer, found: {shown(said)}")


def _is_submodule(found: Checkout) -> bool:
    if "modules" not in found.git_dir.parts or not (found.root / ".git").is_file():
        return False
    return Git(found.git_dir).run("config", "core.worktree", ok=(0, 1)).code == 0


def _outside(found: Checkout) -> str:
    """A place for a submodule of its own: beside the repository around it."""
    parts = found.git_dir.parts
    above = Path(*parts[: parts.index("modules")]).parent
    return str(above.with_name(f"{above.name}-{found.root.name}"))


def _configuration(
    found: Checkout, target: str | None, hub: str | None, folder: Path
) -> tuple[str | None, Config, Detected | None]:
    """(text to write or None, what it says, what was detected for it)."""
    root = found.root
    if (root / FILE).exists():
        config = configuration.load(root)
        if target is not None and target != config.target:
            raise UsageError(
                f"{FILE} lands on {config.target}, not on {shown(target)}",
                hint=f'set target = "{shown(target)}" in {FILE}',
            )
        if hub is not None and (folder / hub).resolve() != (root / config.hub).resolve():
            where = os.path.relpath((folder / hub).resolve(), root.resolve())
            raise UsageError(
                f"{FILE} names the hub {config.hub}", hint=f'set hub = "{where}" in {FILE}'
            )
        if target is None and config.target != found.branch:
            raise UsageError(
                f"{FILE} lands on {config.target}, and this checkout is on {found.branch}",
                hint=f"git switch {shlex.quote(config.target)}\n"
                f"swarm init --target {shlex.quote(config.target)}",
            )
        return None, config, None
    tracked = user.tracked_files(root)
    detected = detect(root, tracked)
    where = f"../{root.name}.swarm/hub.git"
    if hub is not None:
        where = os.path.relpath((folder / hub).resolve(), root.resolve())
    text = configuration.starter(
        target=target or found.branch or "",
        hub=where,
        tasks=_tasks_folder(root, tracked),
        checks=[
            Check(name=c.name, run=c.run, env=dict(c.env), keep=c.keep) for c in detected.checks
        ],
        setup=detected.setup,
        setup_inputs=detected.setup_inputs,
        keep=detected.keep,
    )
    return text, configuration.parse(text.encode()), detected


def _tasks_folder(root: Path, tracked: Sequence[str]) -> str:
    """A name that the repository itself has no other use for."""
    used = {path.split("/", 1)[0] for path in tracked if not _is_task_file(path)}
    for name in _TASKS:
        if name not in used and ((root / name).is_dir() or not os.path.lexists(root / name)):
            return name
    raise UsageError(
        f"{' and '.join(_TASKS)} are in use in this repository",
        hint=f'write {FILE} with a line like: tasks = "agent-tasks"',
    )


def _is_task_file(path: str) -> bool:
    return re.fullmatch(r"tasks/[^/]+\.md", path) is not None


def _branch_tip(source: Git, config: Config, found: Checkout, wanted: str | None) -> str:
    ref = branch_ref(config.target)
    tip = source.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ok=(0, 1)).text
    if not tip:
        asked = wanted or config.target
        raise UsageError(
            f"there is no branch {shown(asked)} here", hint=f"swarm init --target {found.branch}"
        )
    return tip


def _refuse_remote(root: Path, layout: Layout) -> None:
    url = user.remotes(root).get(REMOTE)
    if url is None or is_our_remote(url, root, layout):
        return
    raise UsageError(
        f"a remote named {REMOTE} is there already, and it is not this hub",
        why=f"{REMOTE} is {shown(_public(url), 200)}, the hub {layout.hub}",
        hint=f"git remote rename {REMOTE} {REMOTE}-old",
    )


def is_our_remote(url: str, root: Path, layout: Layout) -> bool:
    """Does a remote's URL lead to our hub?"""
    return (root / url.removeprefix("file://")).resolve() == layout.hub.resolve()


def _refuse_hub(layout: Layout, target: str, source: Git) -> bool:
    """True when the hub is still to be made, or to be made whole.

    Raises:
        UsageError: something else is at its place or at the state folder's, or it is the hub of
            other work.
    """
    hub, root = layout.hub, layout.root
    # Looking makes a cache, also where nothing else was made yet.
    is_new = root.is_dir() and all(path.name == layout.cache.name for path in root.iterdir())
    is_foreign = not has_state(layout) and not is_new
    if os.path.lexists(root) and is_foreign:
        raise UsageError(
            f"{root} is there, and swarm did not make it",
            hint=f"mv {shlex.quote(str(root))} {shlex.quote(f'{root}-old')}",
        )
    if not os.path.lexists(hub):
        return True
    name = root.name.removesuffix(".swarm")
    hint = f"swarm init --hub {shlex.quote(f'../{name}-hub.git')}"
    if not hub.is_dir():
        raise UsageError(f"{hub} is there and is no hub", hint=hint)
    if not (hub / "HEAD").is_file() or not (hub / "objects").is_dir():
        if any(hub.iterdir()):
            raise UsageError(f"{hub} is there and is no hub", hint=hint)
        return True
    git = Git(hub)
    known = git.run("config", "--get", "swarm.target", ok=(0, 1)).text
    if not known:
        if git.run("for-each-ref", "--count=1").text:
            raise UsageError(f"{hub} is a repository that swarm did not make", hint=hint)
        return True
    if known != target:
        raise UsageError(
            f"the hub {hub} lands on {known}, not on {target}",
            hint=f"git switch {shlex.quote(known)}\n{hint}",
        )
    roots = git.run("rev-list", "--max-parents=0", branch_ref(known), ok=(0, 128)).lines
    missing = [oid for oid in roots if source.run("cat-file", "-e", oid, ok=(0, 1, 128)).code]
    if roots and missing == roots:
        raise UsageError(
            f"the hub {hub} belongs to another repository",
            why=f"{known} begins with a commit that this repository does not have",
            hint=hint,
        )
    return not git.run("for-each-ref", "--count=1", LEDGER).text


def _about(found: Checkout) -> str:
    files = len(user.tracked_files(found.root))
    count = f"{files} file{'s' if files != 1 else ''}"
    says = f"branch {found.branch} at {(found.head or '')[:7]}, {count}"
    urls = user.remotes(found.root)
    name = "origin" if "origin" in urls else next((n for n in urls if n != REMOTE), "")
    return says + (f", {name} {shown(_public(urls[name]), 200)}" if name else "")


def _public(url: str) -> str:
    """A URL without the password or token that it may carry."""
    return re.sub(r"//[^/@]*@", "//", url)


def _make_state(layout: Layout) -> None:
    try:
        layout.root.mkdir(parents=True, exist_ok=True)
        _note(layout)
    except OSError as error:
        raise UsageError(
            f"cannot write {layout.root}",
            why=f"{error.strerror}; swarm keeps its folder beside the checkout",
            hint="move the checkout into a folder that you may write to",
        ) from error


def has_state(layout: Layout) -> bool:
    """Is the state folder one that swarm made?"""
    return (layout.root / RECORD).is_file() or (layout.root / "hub.git").is_dir()


def load_record(layout: Layout) -> Record:
    try:
        return msgspec.json.decode((layout.root / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return Record()


def _note(layout: Layout, **made: object) -> None:
    """Write down what is about to be made, before it is made."""
    record = replace(load_record(layout), **made)
    path = layout.root / RECORD
    put_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}", why=error.strerror) from error


def _make_hub(layout: Layout, config: Config, found: Checkout, tip: str) -> str:
    """Create or complete the hub; bring its target forward to `tip` when that only adds to it.

    Returns where the hub's target is now.
    """
    hub = Hub.create(layout.hub, config.target, found.git_dir, tip)
    ledger = Ledger(hub, config.target, layout.cache)
    try:
        ledger.create()
        now = hub.tip(config.target)
        if now == tip or has_commit(hub.git, tip):
            return now
        hub.fetch(found.git_dir, tip)
        if hub.contains(tip, now):
            hub.transact([Move(branch_ref(config.target), now, tip)])
        return hub.tip(config.target)
    finally:
        ledger.close()


def has_commit(git: Git, oid: str) -> bool:
    return git.run("cat-file", "-e", oid, ok=(0, 1, 128)).code == 0


def _hub_says(config: Config, now: str, tip: str, *, is_new: bool) -> str:
    word = "new" if is_new else "there already"
    same = ", as here" if now == tip and not is_new else ""
    return f"{word}; {config.target} = {now[:7]}{same}"


def _config_lines(config: Config, detected: Detected | None, *, is_new: bool) -> list[str]:
    because = {c.name: c.because for c in detected.checks} if detected else {}
    lines: list[str] = []
    for check in config.checks:
        seen = f"   ({because[check.name]})" if because.get(check.name) else ""
        lines.append(f'check "{check.name}" = {shown(check.run, 200)}{seen}')
    if not config.checks:
        lines.append("no test command found: nothing lands until it names a [[checks]]")
    worktree = config.worktree
    if worktree.setup:
        again = f", again when {' or '.join(worktree.setup_inputs)} changes"
        says = f"setup = {shown(worktree.setup, 200)}{again if worktree.setup_inputs else ''}"
        lines.append(says + (f"; keeps {', '.join(worktree.keep)}" if worktree.keep else ""))
    lines[0] = f"{'new' if is_new else 'there already'}; {lines[0]}"
    parts = [part for line in lines for part in _wrapped(line, _WIDTH - 33)]
    return [row("config", f"{FILE:<22} {parts[0]}"), *(" " * 33 + part for part in parts[1:])]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _copy_says(root: Path, config: Config) -> str:
    names = user.ignored_matching(root, config.worktree.copy)
    label = f"{'.worktreeinclude':<22}"
    if names:
        listed = ", ".join(shown(name) for name in names[:MOST_NAMED])
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        verb = "is" if len(names) == 1 else "are"
        return f"{label} found: {listed}{more} {verb} copied into worktrees, never committed"
    if (root / ".worktreeinclude").is_file():
        return f"{label} found; it names no file that git ignores"
    secret = user.ignored_matching(root, (".env", ".env.*"))
    if secret:
        listed = ", ".join(shown(name) for name in secret[:3])
        return f"{label} none: agents will not have {listed}; name it there to copy it"
    return f"{label} none: no ignored file is copied into worktrees"


def _notes(found: Checkout, config: Config, now: str, tip: str, source: Git) -> list[str]:
    notes = []
    if now != tip:
        notes.append(_apart(source, config.target, now, tip))
    filters = _filters(found.root)
    if filters:
        notes.append(
            f"{', '.join(filters)}: no filter runs in swarm's worktrees, so agents and checks see "
            "what git stores (for git-lfs: pointer files)"
        )
    if (found.root / ".gitmodules").is_file():
        notes.append("submodules are not checked out in worktrees; a check that needs them fails")
    if found.branch != config.target:
        notes.append(f"this checkout is on {found.branch}; `swarm pull` wants {config.target}")
    return notes


def _apart(source: Git, target: str, now: str, tip: str) -> str:
    if not has_commit(source, now):
        return f"the hub's {target} has landed work that this checkout lacks: swarm pull"
    if source.run("merge-base", "--is-ancestor", tip, now, ok=(0, 1)).code == 0:
        return f"the hub's {target} is ahead of this checkout: swarm pull"
    return (
        f"{target} here and in the hub have gone apart: {' && '.join(bring_in(target))}; a push is "
        "not checked before it is the target: the next run judges it first"
    )


def bring_in(target: str, *, is_dirty: bool = False) -> tuple[str, str]:
    """Two commands: put a person's own commits on top of what landed, and give them to the hub."""
    branch = shlex.quote(target)
    stash = " --autostash" if is_dirty else ""
    return (
        f"git pull --rebase{stash} {REMOTE} {branch}",
        f"git push {REMOTE} {shlex.quote(f'HEAD:{target}')}",
    )


def _filters(root: Path) -> list[str]:
    """`filter=` attributes that the repository's own files ask for."""
    found: set[str] = set()
    files = [path for path in user.tracked_files(root) if Path(path).name == ".gitattributes"]
    for name in files[:50]:
        with contextlib.suppress(OSError):
            text = (root / name).read_text("utf-8", "replace")
            found.update(re.findall(r"(?<=\s)filter=[\w.-]+", text))
    return sorted(found)


def note_lines(made: Made) -> list[str]:
    """What a person should know, each with its own `note`."""
    lines: list[str] = []
    if made.dirty:
        count = len(made.dirty)
        says = "1 change here is" if count == 1 else f"{count} changes here are"
        them = "it" if count == 1 else "them"
        tip = f"agents start from {made.tip[:7]} and will not see {them}"
        lines.append(row("note", f"{says} not committed; {tip}"))
        lines += [f"            {code} {shown(p, 80)}" for code, p in made.dirty[:MOST_NAMED]]
        if count > MOST_NAMED:
            lines.append(f"            and {count - MOST_NAMED} more")
    for note in made.notes:
        parts = _wrapped(note, _WIDTH - 10)
        lines += [row("note" if not i else "", part) for i, part in enumerate(parts)]
    return lines


# The target's first verdict


class Judged(msgspec.Struct, frozen=True):
    """What the checks say of the target. `answer` None: another runner is the gate now."""

    commit: str
    answer: Green | BaseRed | CannotJudge | None
    setup_seconds: float | None  # None: setup did not run
    began_at: datetime  # a verdict that is older was stored before


def judge_target_once(
    work: Workspace, on_wait: Callable[[Running | None], None] | None = None
) -> Judged:
    """Run the checks on the target through the real gate, and leave the gate.

    A verdict that stands is used again. `on_wait` is called a few times a second.

    Raises:
        UsageError: no check is configured, or one of them tests another copy of the code.
    """
    began_at, began = work.ledger.clock.now(), time.monotonic()
    setup: float | None = None
    has_repeated = False

    def find_end(gate: Gate) -> Judged | None:
        nonlocal has_repeated
        if gate.claim is None:
            return Judged(work.ledger.hub.tip(work.config.target), None, None, began_at)
        if gate.target_verdict is None:
            return None
        commit, answer = gate.target_verdict
        if isinstance(answer, Green) or has_repeated or _ran_at(answer) >= began_at:
            return Judged(commit, answer, setup, began_at)
        has_repeated = True
        _repeat(gate, work, commit)
        return None

    def on_step(gate: Gate) -> None:
        nonlocal setup
        running = gate.job.running if gate.job is not None else None
        if running is not None and running.is_setup:
            setup = time.monotonic() - began
        if on_wait is not None:
            on_wait(running)

    return tend(work, find_end, on_step, idle=LOOK_SECONDS, name="init")


def _ran_at(answer: BaseRed | CannotJudge) -> datetime:
    runs = answer.verdict.runs
    return runs[-1].at if runs else datetime.max.replace(tzinfo=UTC)


def _repeat(gate: Gate, work: Workspace, commit: str) -> None:
    """Judge the target anew whatever is stored: what made it red may not be in the tree."""
    checks = [check for check in work.config.checks if applies(check, (), None)]

    def steps() -> Generator[Ask, Verdict, Green | BaseRed | CannotJudge]:
        asking = judge_target(commit, checks)
        ask = next(asking)
        while True:
            verdict = yield replace(ask, again=True)
            try:
                ask = asking.send(verdict)
            except StopIteration as done:
                answer: Green | BaseRed | CannotJudge = done.value
                return answer

    again = steps()
    gate.target_verdict = None
    gate.job = Job(again, commit, None, next(again))


def check_lines(judged: Judged, config: Config, layout: Layout) -> list[str]:
    """The `checks` line of a screen, and what to do when it is no green one."""
    where = f"{config.target} {judged.commit[:7]}"
    match judged.answer:
        case None:
            return [row("checks", f"not run: another runner is the gate; {where}: swarm status")]
        case Green(verdicts):
            setup = _setup_says(judged)
            said = [f"{v.check} {v.verdict} on {where}{_how_long(v, judged)}" for v in verdicts]
            return [row("checks", setup + "; ".join(said))]
        case BaseRed(verdict):
            return _red_lines(verdict, judged, config, layout)
        case CannotJudge(verdict):
            return _mute_lines(verdict, judged, config, layout)


def _setup_says(judged: Judged) -> str:
    return f"setup {_seconds(judged.setup_seconds)}, " if judged.setup_seconds else ""


def _how_long(verdict: Verdict, judged: Judged) -> str:
    run = verdict.runs[-1] if verdict.runs else None
    if run is None:
        return ""
    counted = re.search(r"\b(\d+) passed\b", verdict.tail)
    says = f" in {_seconds(run.seconds)}" + (f" ({counted[1]} tests)" if counted else "")
    ago = judged.began_at - run.at
    return says + (f", judged {_ago(ago)} ago" if ago > timedelta() else "")


def _ago(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"


def _red_lines(verdict: Verdict, judged: Judged, config: Config, layout: Layout) -> list[str]:
    run = verdict.runs[-1] if verdict.runs else None
    exit_ = f", exit {run.exit_code}" if run else ""
    where = f"{config.target} {judged.commit[:7]}"
    head = f"{verdict.check} FAILED on {where}{_how_long(verdict, judged)}{exit_}"
    failing = [f"            {shown(line, 88)}" for line in _failing(verdict)]
    return [
        row("checks", _setup_says(judged) + head),
        *failing,
        "          nothing can be judged against a red "
        f"{config.target}. Fix it, or name another check in {FILE},",
        "          or let agents fix it:  swarm run --allow-red   (opens the task fix-main first)",
        *_log_line(verdict, layout),
    ]


def _mute_lines(verdict: Verdict, judged: Judged, config: Config, layout: Layout) -> list[str]:
    where = f"{config.target} {judged.commit[:7]}"
    run = verdict.runs[-1] if verdict.runs else None
    why = verdict.why or (f"exit {run.exit_code}" if run else "")
    word = "TIMED OUT" if verdict.verdict == "timed_out" else "COULD NOT RUN"
    head = f"{verdict.check} {word} on {where}{_how_long(verdict, judged)}"
    return [
        row("checks", _setup_says(judged) + head + (f": {shown(why, 200)}" if why else "")),
        *(f"            {shown(line, 88)}" for line in verdict.tail.splitlines()[-5:]),
        f"          is its command in {FILE} right, and does it need a [worktree] setup?",
        *_log_line(verdict, layout),
    ]


def _failing(verdict: Verdict) -> list[str]:
    lines = [line for line in verdict.tail.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (lines or list(verdict.failing) or verdict.tail.splitlines()[-5:])[:MOST_NAMED]


def _log_line(verdict: Verdict, layout: Layout) -> list[str]:
    return [f"          log {layout.root / verdict.log}"] if verdict.log else []
