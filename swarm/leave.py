"""Taking out again what bringing a repository in made.

Enters: a checkout. Leaves: it without us, or what stands in the way.
Guards: nothing is removed while it holds work that the checkout's own repository lacks, while a
runner lives, or when a person has changed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from swarm import config as configuration
from swarm.adopt import (
    MOST_NAMED,
    REMOTE,
    Record,
    Say,
    has_commit,
    has_state,
    is_our_remote,
    load_record,
    refuse_state_folder,
    row,
)
from swarm.config import FILE, Config
from swarm.errors import HubUnusable, SwarmError, UsageError
from swarm.layout import Layout, beside
from swarm.ledger import records
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git
from swarm.plumbing.hub import RESCUE, WORK, Hub, branch_ref
from swarm.reconcile import rescue_leftovers
from swarm.slot import Slot
from swarm.steer import live_runners
from swarm.workspace import Workspace


def unmake(folder: Path, *, keep_hub: bool, say: Say) -> None:
    """Remove what `make` made: the remote, an unchanged `swarm.toml`, an empty folder of tasks, and
    the state folder once nothing in it is the only copy.

    Args:
        keep_hub: leave the state folder and the hub where they are.

    Raises:
        UsageError: a runner lives, a claim is held, or the hub has what this repository lacks; all
            of it is named and nothing was removed.
        GitFault: what lies in a slot could not be saved; nothing was removed.

    Safe: killed anywhere, doing it again goes on.
    """
    refuse_state_folder(folder)
    root = user.look(folder, with_status=False).root
    config = _config_or_default(root)
    layout = beside(root, config.hub)
    record = load_record(layout)
    url = user.remotes(root).get(REMOTE)
    is_ours = url is not None and is_our_remote(url, root, layout)
    gone = layout.root.with_name(layout.root.name + ".removing")
    is_made = has_state(layout)
    if not (is_ours or is_made or gone.is_dir() or (root / FILE).is_file()):
        raise SwarmError("swarm is not set up here", hint="swarm init")
    if layout.root.is_symlink():
        raise UsageError(f"{layout.root} is a link; swarm removes only folders of its own")
    _refuse_runners(layout)
    if (layout.hub / "objects").is_dir() and not keep_hub:
        _refuse_only_copies(root, config, layout)
    if is_ours:
        user.remove_remote(root, REMOTE)
        say(row("removed", f"remote {REMOTE}"))
    for line in _remove_files(root, config, record):
        say(line)
    shown_root = f"../{layout.root.name}"
    if keep_hub:
        say(row("left", f"{shown_root:<22} as you asked"))
        return
    if is_made:
        if gone.is_dir():
            _remove_folder(gone)
        layout.root.rename(gone)  # at once, so that a kill leaves no half hub at its place
    if gone.is_dir():
        _remove_folder(gone)
        say(row("removed", f"{shown_root:<22} hub, worktrees, transcripts"))
    if layout.hub.exists():
        say(row("left", f"{config.hub:<22} it lies elsewhere; others may use it"))


def _config_or_default(root: Path) -> Config:
    if (root / FILE).exists():
        return configuration.load(root)
    return Config(hub=f"../{root.name}.swarm/hub.git")


def _refuse_runners(layout: Layout) -> None:
    alive = live_runners(layout)
    if alive:
        raise UsageError(
            f"{len(alive)} runner{'s' if len(alive) != 1 else ''} of this repository still work"
            f"{'s' if len(alive) == 1 else ''}: {', '.join(alive[:MOST_NAMED])}",
            hint="swarm stop; what is no run (swarm gate, swarm init) ends where it was started",
        )


def _refuse_only_copies(root: Path, config: Config, layout: Layout) -> None:
    """
    Raises:
        UsageError: a claim is held, or a commit is in the hub alone; with the commands that bring
            it here.
    """
    try:
        hub = Hub.open(layout.hub)
        target = hub.git.run("config", "--get", "swarm.target", ok=(0, 1)).text or config.target
        ledger = Ledger(hub, target, layout.cache)
    except HubUnusable as error:
        raise UsageError(error.what, why=error.why, hint=error.hint) from error
    try:
        view = ledger.find_view()
        if view is not None:
            _refuse_claims(view)
            _save_slots(Workspace(root, config, layout, ledger))
        found = user.look(root, with_status=False)
        lacking = _lacking(ledger, ledger.find_view(), Git(found.git_dir))
    finally:
        ledger.close()
    if lacking:
        named = [f"{ref}  {oid[:7]}" for ref, oid in lacking[:20]]
        if len(lacking) > 20:
            named.append(f"and {len(lacking) - 20} more")
        raise UsageError(
            f"{len(lacking)} ref{'s' if len(lacking) != 1 else ''} of the hub hold"
            f"{'s' if len(lacking) == 1 else ''} work that this repository lacks",
            why="\n".join(named),
            hint="\n".join(_cures(lacking, layout, target)),
        )


def _cures(lacking: Sequence[tuple[str, str]], layout: Layout, target: str) -> list[str]:
    cures = []
    if any(ref == branch_ref(target) for ref, _ in lacking):
        cures.append("swarm pull")
    if any(ref.startswith("refs/swarm/") for ref, _ in lacking):
        cures.append(f"git fetch {REMOTE} 'refs/swarm/*:refs/swarm/*'    keeps them here")
    for ref, _ in lacking[:5]:
        if ref.startswith("refs/heads/") and ref != branch_ref(target):
            name = ref.removeprefix("refs/heads/")
            cures.append(f"git fetch {REMOTE} {name}:{name}")
    return [*cures, f"swarm uninit --keep-hub    leaves {layout.root}"]


def _refuse_claims(view: View) -> None:
    held = [lock for lock in view.locks() if view.state(lock.task) is State.CLAIMED]
    if held:
        raise UsageError(
            f"{len(held)} task{'s are' if len(held) != 1 else ' is'} claimed: "
            f"{', '.join(lock.task for lock in held[:MOST_NAMED])}",
            hint=f"swarm stop {held[0].task}",
        )


def _save_slots(work: Workspace) -> None:
    """Whatever an agent left in a worktree goes to a rescue ref, where it counts as work."""
    for path in sorted(work.layout.slots.glob("*.flock")):
        name = path.name.removesuffix(".flock")
        slot = Slot.take(work.layout.slots, name, work.ledger.hub)
        if slot is None:
            raise UsageError(f"another process works in {work.layout.slots / name}")
        try:
            rescue_leftovers(work.ledger, slot, work.rules)
        finally:
            slot.close()


def _lacking(ledger: Ledger, view: View | None, source: Git) -> list[tuple[str, str]]:
    """(ref, commit) of the hub that no ref of this repository reaches, by name.

    Our own remote-tracking refs do not count, since they go with the remote. What the target
    contains is not named beside it: whoever pulls the target has it. So is a landed task's head,
    which after a squash is in no landing.
    """
    hub = ledger.hub
    refs: dict[str, str] = {}
    for prefix in ("refs/heads", WORK, RESCUE):
        refs |= hub.refs_below(prefix)
    oids = set(refs.values())
    here = [oid for oid in oids if has_commit(source, oid)]
    ours = (f"--exclude=refs/remotes/{REMOTE}/*", "--all")
    lost = (oids - set(here)) | _unreached(source, here, *ours)
    landed = oids - _unreached(hub.git, sorted(oids), branch_ref(ledger.branch))
    if view is not None:
        for path, _ in view.iter_paths("done"):
            with contextlib.suppress(records.Undecodable):
                done = view.done(Path(path).stem)
                if done is not None and done.result == "landed" and done.head is not None:
                    landed.add(done.head)
    return sorted(
        (ref, oid)
        for ref, oid in refs.items()
        if oid in lost and (ref == branch_ref(ledger.branch) or oid not in landed)
    )


def _unreached(git: Git, commits: Sequence[str], *tips: str) -> set[str]:
    """Those commits that cannot be reached from the tips."""
    asked = "".join(f"{oid}\n" for oid in commits).encode()
    if not asked:
        return set()
    return set(commits) & set(git.run("rev-list", "--stdin", "--not", *tips, input=asked).lines)


def _remove_files(root: Path, config: Config, record: Record) -> list[str]:
    """Removes `swarm.toml` and the folder of tasks when they are as they were made."""
    lines = []
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
    tasks = root / config.tasks
    if tasks.is_dir():
        count = sum(1 for _ in tasks.iterdir())
        if count or not record.tasks:
            why = f"{count} file{'s' if count != 1 else ''}" if count else "it was there before"
            lines.append(row("left", f"{config.tasks + '/':<22} {why}"))
        else:
            tasks.rmdir()
            lines.append(row("removed", f"{config.tasks}/"))
    return lines


def _remove_folder(folder: Path) -> None:
    """
    Raises:
        UsageError: a part of it cannot be removed, and is named.
    """
    for place, names, _ in os.walk(folder):
        for name in names:
            inner = Path(place, name)
            if not inner.is_symlink():
                inner.chmod(0o700)  # caches of some tools are folders that nobody may write
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise UsageError(
            f"{folder} could not be removed whole", why=str(error), hint="swarm uninit"
        ) from error
