"""Taking out again what bringing a repository in made.

Enters: a checkout. Leaves: it without us, or what stands in the way.
Guards: what is looked at is what is removed, whatever `swarm.toml` says; nothing is removed while
it holds work that the checkout's own repository lacks, while a claim or a runner lives there, or
when a person has changed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from swarm import config as configuration
from swarm.adopt import (
    MOST_NAMED,
    RECORD,
    REMOTE,
    Record,
    Say,
    has_commit,
    has_state,
    load_record,
    refuse_state_folder,
    row,
)
from swarm.change import capture
from swarm.config import FILE, Config
from swarm.errors import GitFault, HubUnusable, SwarmError, UsageError
from swarm.layout import Layout, beside
from swarm.ledger import records
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View
from swarm.liveness import Holder, is_flock_free, signs
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git
from swarm.plumbing.hub import BEATS, LEDGER, Hub, branch_ref
from swarm.reconcile import rescue_leftovers
from swarm.slot import Slot
from swarm.workspace import Workspace

# What a state folder holds; beside it only a hub that somebody gave another name.
_OURS = ("cache", "checks", "gate", "homes", "hub.git", "hub.git.turn", "runs", "slots", RECORD)
_CHECKED = "removing"  # in the folder that was moved aside: all of it was found safe to remove


class _Scene(msgspec.Struct, frozen=True):
    """What may be removed, and every hub that this checkout is known to have used."""

    root: Path  # of the checkout
    config: Config
    trouble: str  # why `swarm.toml` was not read, or empty
    layout: Layout
    record: Record
    url: str | None  # of our remote; None: there is none, or it leads elsewhere
    hubs: tuple[Path, ...]  # that exist; where work is kept comes first

    def goes(self, hub: Path) -> bool:
        """Does this hub lie in the folder that is removed?"""
        return hub.is_relative_to(self.layout.root)


def unmake(folder: Path, *, keep_hub: bool, say: Say) -> None:
    """Remove what `make` made: the remote, an unchanged `swarm.toml`, an empty folder of tasks, and
    the state folder once nothing in it is the only copy.

    Args:
        keep_hub: leave the state folder and the hub where they are.

    Raises:
        SwarmError: a runner lives, a claim is held, the hub or a slot has what this repository
            lacks, or the folder holds what is not ours; it is named, and nothing was removed.

    Safe: killed anywhere, doing it again goes on. What others do to the hub waits for its turn:
    they find it as it was looked at, or gone.
    """
    refuse_state_folder(folder)
    root = user.look(folder, with_status=False).root
    config, trouble = _config_or_default(root)
    layout = beside(root, config.hub)
    gone = layout.root.with_name(layout.root.name + ".removing")
    for place in (layout.root, gone):
        if place.is_symlink():
            raise SwarmError(f"{place} is a link; swarm removes only folders of its own")
    _put_back(layout.root, gone)
    scene = _look_around(root, config, trouble, layout, gone)
    is_made = has_state(layout)
    if not (scene.url is not None or is_made or gone.is_dir() or (root / FILE).is_file()):
        raise SwarmError("swarm is not set up here", hint="swarm init")
    _refuse_runners(layout)
    _take_away(scene, gone, is_kept=keep_hub or not is_made)
    if scene.url is not None:
        user.remove_remote(root, REMOTE)
        say(row("removed", f"remote {REMOTE}"))
    for line in _remove_files(scene):
        say(line)
    shown_root = f"../{layout.root.name}"
    if keep_hub:
        say(row("left", f"{shown_root:<22} as you asked"))
        return
    if gone.is_dir():
        _remove_folder(gone)
        say(row("removed", f"{shown_root:<22} hub, worktrees, transcripts"))
    for hub in scene.hubs:
        if not scene.goes(hub):
            says = os.path.relpath(hub, root)
            say(row("left", f"{says:<22} it lies elsewhere; others may use it"))


def _config_or_default(root: Path) -> tuple[Config, str]:
    """The configuration, or what `init` would write and why the file could not be read."""
    trouble = ""
    if (root / FILE).exists():
        try:
            return configuration.load(root), ""
        except UsageError as error:
            trouble = error.what
    return Config(hub=f"../{root.name}.swarm/hub.git"), trouble


def _put_back(root: Path, gone: Path) -> None:
    """A folder that was moved aside and not yet found safe is looked at again, like any other.

    Raises:
        SwarmError: there is another one at its place by now.
    """
    if not gone.is_dir() or (gone / _CHECKED).is_file():
        return
    if os.path.lexists(root):
        raise SwarmError(
            f"{gone} and {root} are both there",
            why="the first was to be removed, and it is not known whether anything in it is needed",
            hint=f"mv {shlex.quote(str(gone))} {shlex.quote(str(gone.with_suffix('.old')))}",
        )
    gone.rename(root)


def _look_around(root: Path, config: Config, trouble: str, layout: Layout, gone: Path) -> _Scene:
    aside = Layout(gone, layout.hub)
    record = load_record(layout if has_state(layout) else aside)
    named = [layout.root / "hub.git", layout.hub]
    if record.hub:
        named.append(root / record.hub)
    known = [hub.resolve() for hub in named]
    url = user.remotes(root).get(REMOTE)
    if url is not None and (root / url.removeprefix("file://")).resolve() not in known:
        url = None
    hubs = tuple(hub for hub in dict.fromkeys(known) if hub.is_dir() and any(hub.iterdir()))
    return _Scene(root, config, trouble, layout, record, url, hubs)


def _refuse_runners(layout: Layout) -> None:
    """A runner whose flock cannot be tried may live."""
    alive = sorted(
        path.name.removesuffix(".alive")
        for path in layout.runs.glob("*.alive")
        if is_flock_free(path) is not True
    )
    if alive:
        is_one = len(alive) == 1
        raise SwarmError(
            f"{len(alive)} runner{'' if is_one else 's'} of this repository still "
            f"work{'s' if is_one else ''}: {', '.join(alive[:MOST_NAMED])}",
            why="what is no run (swarm gate, swarm init) ends where it was started",
            hint="swarm stop",
        )


# The state folder


def _take_away(scene: _Scene, gone: Path, *, is_kept: bool) -> None:
    """Move the state folder aside when nothing in it is needed; claims are looked for in any case.

    From the last look to the move the turn of every hub is ours, and so is each slot.

    Raises:
        SwarmError: something in it is needed, or is not ours.
    """
    with contextlib.ExitStack() as open_:
        ledgers = _open_hubs(scene, open_, is_kept=is_kept)
        _refuse_claims(scene, ledgers)
        if is_kept:
            return
        _refuse_strangers(scene)
        _refuse_borrowed(scene)
        for ledger in ledgers:
            if scene.goes(ledger.hub.path):
                _refuse_others(scene, ledger)
        _save_slots(scene, ledgers, open_)
        for ledger in ledgers:
            open_.enter_context(ledger.hub.turn.held())
        _refuse_runners(scene.layout)
        _refuse_claims(scene, ledgers)
        for ledger in ledgers:
            if scene.goes(ledger.hub.path):
                _refuse_others(scene, ledger)
                _refuse_only_copies(scene, ledger)
        if gone.is_dir():
            _remove_folder(gone)
        scene.layout.root.rename(gone)  # at once, so that a kill leaves no half hub at its place
    (gone / _CHECKED).touch()


def _open_hubs(scene: _Scene, open_: contextlib.ExitStack, *, is_kept: bool) -> tuple[Ledger, ...]:
    """
    Raises:
        SwarmError: one that would be removed cannot be read, so that nobody knows what it holds.
    """
    ledgers = []
    for path in scene.hubs:
        try:
            hub = Hub.open(path)
            branch = hub.git.run("config", "--get", "swarm.target", ok=(0, 1)).text
            if not branch and hub.refs_below("refs"):
                raise HubUnusable(f"{path} is a repository that swarm did not make")
            ledger = Ledger(hub, branch or scene.config.target)
            open_.callback(ledger.close)
            ledger.find_view()
            ledgers.append(ledger)
        except (HubUnusable, GitFault) as error:
            if is_kept or not scene.goes(path):
                continue
            raise SwarmError(
                error.what, why=error.why, hint=f"swarm uninit --keep-hub\n{_look_at(path)}"
            ) from error
    return tuple(ledgers)


def _look_at(path: Path) -> str:
    return f"git -C {shlex.quote(str(path))} for-each-ref"


def _refuse_claims(scene: _Scene, ledgers: Sequence[Ledger]) -> None:
    """Of a hub that goes every claim counts; of another one those that work in a slot here."""
    held: list[tuple[str, State]] = []
    for ledger in ledgers:
        view = ledger.find_view()
        if view is None:
            continue
        goes = scene.goes(ledger.hub.path)
        for path, _ in view.iter_paths("current_tasks"):
            task = Path(path).stem
            state = view.state(task)
            is_live = state in (State.CLAIMED, State.DAMAGED)
            if is_live and (goes or _works_here(scene, view, task)):
                held.append((task, state))
    if held:
        task, state = held[0]
        verb = "cancel" if state is State.DAMAGED else "stop"
        raise SwarmError(
            f"{len(held)} task{'s are' if len(held) != 1 else ' is'} claimed: "
            f"{', '.join(task for task, _ in held[:MOST_NAMED])}",
            hint=f"swarm {'task ' if verb == 'cancel' else ''}{verb} {task}",
        )


def _works_here(scene: _Scene, view: View, task: str) -> bool:
    with contextlib.suppress(records.Undecodable):
        lock = view.lock(task)
        if lock is None or not lock.slot:
            return False
        slot = Slot(scene.layout.slots, lock.slot, view.hub, -1)  # to read its record
        occupant = slot.occupant()
        return occupant is not None and occupant.nonce == lock.nonce
    return False


def _refuse_others(scene: _Scene, ledger: Ledger) -> None:
    """Runners whose flock is not on this disk, or beside another checkout that uses this hub.

    Raises:
        SwarmError: one of them gave a sign of life within its lease.
    """
    view = ledger.find_view()
    if view is None:
        return
    lease = scene.config.claims.lease.total_seconds()
    holders = [Holder.of(run) for run in view.runs() if run.state != "ended"]
    with contextlib.suppress(HubUnusable):  # damaged: flocks, runs and claims say who lives
        gate = view.gate()
        if gate.runner is not None:
            holders.append(Holder.of(gate))
            lease = max(lease, gate.lease_seconds or 0.0)
    layout = scene.layout
    found = signs(ledger.hub, holders, layout.runs, layout.cache, ledger.clock)
    for holder in holders:
        sign = found[holder.nonce]
        if sign.age_seconds <= lease:
            raise SwarmError(
                f"{holder.runner} may still work with {ledger.hub.path}",
                why=f"{sign.says()}; it counts as alive for {lease:.0f} s",
                hint="swarm status",
            )


def _refuse_strangers(scene: _Scene) -> None:
    """
    Raises:
        SwarmError: the folder holds something that swarm did not put there.
    """
    root = scene.layout.root
    named = {hub.relative_to(root).parts[:1] for hub in scene.hubs if scene.goes(hub)}
    hubs = {parts[0] for parts in named if parts}
    ours = {*_OURS, *hubs, *(f"{name}.turn" for name in hubs)}
    if () in named:  # the folder itself is the hub
        return
    strange = [
        path
        for path in sorted(root.iterdir())
        if path.name not in ours and not path.name.startswith("made.")
    ]
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise SwarmError(
            f"{strange[0]}{more} would be removed, and swarm did not make it",
            hint=f"mv {shlex.quote(str(strange[0]))} {shlex.quote(str(root.parent))}/",
        )


def _refuse_borrowed(scene: _Scene) -> None:
    """
    Raises:
        SwarmError: this repository reads objects out of the folder that would be removed.
    """
    objects = user.look(scene.root, with_status=False).git_dir / "objects"
    with contextlib.suppress(OSError):
        for line in (objects / "info/alternates").read_text("utf-8", "replace").splitlines():
            if line and scene.goes((objects / line).resolve()):
                raise SwarmError(
                    f"this repository borrows its objects from {line}",
                    hint="git repack -a -d && rm " + shlex.quote(str(objects / "info/alternates")),
                )


def _save_slots(scene: _Scene, ledgers: Sequence[Ledger], open_: contextlib.ExitStack) -> None:
    """Whatever an agent left in a worktree goes to a rescue ref, where it counts as work.

    The slots stay ours until `open_` ends.

    Raises:
        SwarmError: another process has one, or what lies in one cannot be kept; it is named.
    """
    folder = scene.layout.slots
    paths = folder.iterdir() if folder.is_dir() else ()
    for name in sorted({path.name.partition(".")[0] for path in paths} - {""}):
        ledger = _ledger_of(folder / f"{name}.git", ledgers)
        if ledger is None:
            if not (folder / f"{name}.json").exists():
                continue
            raise SwarmError(
                f"work may lie in {folder / name}, and its hub is gone",
                hint="swarm uninit --keep-hub",
            )
        slot = Slot.take(folder, name, ledger.hub)
        if slot is None:
            raise SwarmError(f"another process works in {folder / name}", hint="swarm claims")
        open_.callback(slot.close)
        occupant = slot.occupant()
        if occupant is None:
            if slot.record.exists():
                raise SwarmError(
                    f"whose work lies in {slot.tree} cannot be read", why=f"see {slot.record}"
                )
            continue
        rules = Workspace(scene.root, scene.config, scene.layout, ledger).rules
        try:
            rescue_leftovers(ledger, slot, rules)
            left = capture(slot, occupant, rules)
        except GitFault as fault:
            raise SwarmError(
                f"what lies in {slot.tree} cannot be saved",
                why=f"{fault.what}: {fault.why or ''}".rstrip(": "),
                hint="swarm doctor --fix\nswarm uninit --keep-hub",
            ) from fault
        if left.malformed or left.unreadable:
            what = "commits that git refuses to take over" if left.malformed else "unreadable files"
            raise SwarmError(
                f"{slot.tree} holds {what}",
                why=left.malformed or ", ".join(left.unreadable[:MOST_NAMED]),
                hint="swarm uninit --keep-hub",
            )


def _ledger_of(repo: Path, ledgers: Sequence[Ledger]) -> Ledger | None:
    """The hub that a slot borrows from. An agent can write that file, so it only picks one."""
    with contextlib.suppress(OSError):
        for line in (repo / "objects/info/alternates").read_text("utf-8", "replace").splitlines():
            for ledger in ledgers:
                if Path(line) == ledger.hub.path / "objects":
                    return ledger
    return ledgers[0] if ledgers else None


# The only copies


def _refuse_only_copies(scene: _Scene, ledger: Ledger) -> None:
    """
    Raises:
        SwarmError: a commit is in this hub alone; with the commands that bring it here.
    """
    found = user.look(scene.root, with_status=False)
    lacking = _lacking(ledger, Git(found.git_dir))
    if lacking:
        named = [f"{ref}  {oid[:7]}" for ref, oid in lacking[:20]]
        if len(lacking) > 20:
            named.append(f"and {len(lacking) - 20} more")
        named.append(f"swarm uninit --keep-hub would leave {scene.layout.root}")
        raise SwarmError(
            f"{len(lacking)} ref{'s' if len(lacking) != 1 else ''} of the hub hold"
            f"{'s' if len(lacking) == 1 else ''} work that this repository lacks",
            why="\n".join(named),
            hint="\n".join(_cures(scene, lacking, ledger)),
        )


def _cures(scene: _Scene, lacking: Sequence[tuple[str, str]], ledger: Ledger) -> list[str]:
    """Commands that bring all of it here, one after the other."""
    hub, target = ledger.hub.path, ledger.branch
    is_named = scene.layout.hub == hub and not scene.trouble and (scene.root / FILE).is_file()
    is_remote = scene.url is not None and hub == (
        (scene.root / scene.url.removeprefix("file://")).resolve()
    )
    source = REMOTE if is_remote else shlex.quote(str(hub))
    cures = []
    if any(ref == branch_ref(target) for ref, _ in lacking):
        pull = f"git pull --ff-only {source} {shlex.quote(target)}"
        cures.append("swarm pull" if is_named and is_remote else pull)
    for prefix in ("refs/swarm", "refs/tags"):
        if any(ref.startswith(f"{prefix}/") for ref, _ in lacking):
            cures.append(f"git fetch {source} '{prefix}/*:{prefix}/*'")
    for ref, _ in lacking:
        if ref.startswith("refs/heads/") and ref != branch_ref(target):
            name = ref.removeprefix("refs/heads/")
            cures.append(f"git fetch {source} {shlex.quote(f'{name}:{name}')}")
        elif not ref.startswith(("refs/heads/", "refs/swarm/", "refs/tags/")):
            cures.append(f"git fetch {source} {shlex.quote(f'{ref}:{ref}')}")
    return cures


def _lacking(ledger: Ledger, source: Git) -> list[tuple[str, str]]:
    """(ref, object) of the hub that no ref of this repository reaches, by name.

    Our own remote-tracking refs do not count, since they go with the remote. What the target
    contains is not named beside it: whoever pulls the target has it. So is the head of a task
    whose landing is in the target, which after a squash is in no landing.
    """
    hub, target = ledger.hub, branch_ref(ledger.branch)
    refs = {ref: oid for ref, oid in _tips(hub.git) if not ref.startswith(f"{BEATS}/")}
    refs.pop(LEDGER, None)
    oids = set(refs.values())
    here = [oid for oid in sorted(oids) if has_commit(source, oid)]
    ours = (f"--exclude=refs/remotes/{REMOTE}/*", "--all")
    names = {oid for ref, oid in _tips(source) if not ref.startswith(f"refs/remotes/{REMOTE}/")}
    lost = (oids - set(here)) | (_unreached(source, here, *ours) - names)
    landed: set[str] = set()
    if target in refs:
        landings = _landings(ledger)
        known = {*oids, *(oid for oid in landings if has_commit(hub.git, oid))}
        landed = known - _unreached(hub.git, sorted(known), target)
        landed |= {head for oid, head in landings.items() if oid in landed}
    return sorted(
        (ref, oid)
        for ref, oid in refs.items()
        if oid in lost and (ref == target or oid not in landed)
    )


def _tips(git: Git) -> Iterator[tuple[str, str]]:
    """(ref, commit) of every ref; a tag's own commit, and for what is none the object itself."""
    listing = git.run("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)")
    for line in listing.lines:
        oid, peeled, ref = line.split(" ", 2)
        yield ref, peeled or oid


def _landings(ledger: Ledger) -> dict[str, str]:
    """landing commit -> the head that it landed, of every task that the ledger says has landed."""
    view = ledger.find_view()
    found: dict[str, str] = {}
    if view is not None:
        for path, _ in view.iter_paths("done"):
            with contextlib.suppress(records.Undecodable):
                done = view.done(Path(path).stem)
                if done is not None and done.landed is not None and done.head is not None:
                    found[done.landed] = done.head
    return found


def _unreached(git: Git, oids: Sequence[str], *tips: str) -> set[str]:
    """Those objects that cannot be reached from the tips; what is no commit never can."""
    kinds = dict.fromkeys(oids, "")
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    if not asked:
        return set()
    for line in git.run("cat-file", "--batch-check", input=asked).lines:
        oid, kind = line.split(" ")[:2]
        kinds[oid] = kind
    commits = [oid for oid, kind in kinds.items() if kind == "commit"]
    asked = "".join(f"{oid}\n" for oid in commits).encode()
    left = set(oids) - set(commits)
    if asked:
        walked = git.run("rev-list", "--stdin", "--not", *tips, input=asked, timeout=600)
        left |= set(commits) & set(walked.lines)
    return left


# What lies in the checkout, and the end


def _remove_files(scene: _Scene) -> list[str]:
    """Removes `swarm.toml` and the folder of tasks when they are as they were made."""
    lines = []
    root, record = scene.root, scene.record
    file = root / FILE
    tracked = set(user.tracked_files(root))
    if file.is_file():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        why = ""
        if FILE in tracked:
            why = "it is committed"
        elif not record.config_digest:
            why = "it was there before"
        elif digest != record.config_digest:
            why = "you changed it"
        if why:
            lines.append(row("left", f"{FILE:<22} {why}"))
        else:
            file.unlink()
            lines.append(row("removed", FILE))
    name = record.folder or scene.config.tasks
    tasks = root / name
    if tasks.is_dir():
        count = sum(1 for _ in tasks.iterdir())
        if count or not record.tasks:
            why = f"{count} file{'s' if count != 1 else ''}" if count else "it was there before"
            lines.append(row("left", f"{name + '/':<22} {why}"))
        else:
            tasks.rmdir()
            lines.append(row("removed", f"{name}/"))
    return lines


def _remove_folder(folder: Path) -> None:
    """Remove it whole; the mark that it may be goes last.

    Raises:
        SwarmError: a part of it cannot be removed, and is named.
    """
    for place, names, _ in os.walk(folder):
        for name in names:
            inner = Path(place, name)
            if not inner.is_symlink():
                inner.chmod(0o700)  # caches of some tools are folders that nobody may write
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _CHECKED:
                path.unlink()
        shutil.rmtree(folder)
    except OSError as error:
        raise SwarmError(
            f"{folder} could not be removed whole", why=str(error), hint="swarm uninit"
        ) from error
