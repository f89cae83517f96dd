"""What must always hold, told from the hub alone: the whole history, commit by commit.

Enters: a ledger, and what a checkout looked like before. Leaves: violations with their evidence.
Guards: invariants 1 to 5, 9 and 12 of docs/design.md, what the hub shows of 6, and 8 and 10 from
the facts that are handed in; it reads and never writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from swarm.ids import is_oid
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.events import KINDS, folder_of
from swarm.ledger.records import Landing, Undecodable, Verdict, VerdictValue
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View, readable
from swarm.plumbing.hub import LEDGER, RESCUE, WORK, branch_ref
from swarm.slot import Occupant
from swarm.trailers import Message, of_commit

R = TypeVar("R", bound=msgspec.Struct)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TASK_FOLDERS = {
    "tasks": records.task_path,
    "current_tasks": records.lock_path,
    "queue": records.queue_path,
    "attempts": records.attempts_path,
    "done": records.done_path,
    "parked": records.parked_path,
}
_RECORDS: dict[str, type[msgspec.Struct]] = {
    "current_tasks": records.Lock,
    "queue": records.QueueEntry,
    "attempts": records.Attempts,
    "done": records.Done,
    "parked": records.Parked,
    "verdicts": records.Verdict,
    "runs": records.Run,
    records.GATE_PATH: records.Gate,
    records.LANDING_PATH: records.Landing,
    records.UPSTREAM_PATH: records.Upstream,
}
_QUEUED = frozenset({State.QUEUED, State.HELD})
_FREE = frozenset({State.OPEN, State.PARKED})
_LIVE = frozenset({State.OPEN, State.CLAIMED, State.QUEUED, State.HELD, State.PARKED})

# The transition of each kind, as the state table names it; kinds that are not here change no state.
_STEPS: dict[str, tuple[frozenset[State], frozenset[State]]] = {
    "added": (frozenset({State.ABSENT}), frozenset({State.OPEN})),
    "claimed": (frozenset({State.OPEN}), frozenset({State.CLAIMED})),
    "expired": (frozenset({State.CLAIMED}), frozenset({State.OPEN})),
    "released": (frozenset({State.CLAIMED}), frozenset({State.OPEN})),
    "sealed": (frozenset({State.CLAIMED}), _QUEUED),
    "held": (_QUEUED, frozenset({State.HELD})),
    "approved": (frozenset({State.HELD}), _QUEUED),
    "rejected": (frozenset({State.HELD}), frozenset({State.OPEN})),
    "landed": (frozenset({State.QUEUED}), frozenset({State.LANDED})),
    "ejected": (_QUEUED, frozenset({State.OPEN})),
    "parked": (frozenset({State.OPEN}), frozenset({State.PARKED})),
    "reopened": (frozenset({State.PARKED, State.CANCELLED}), frozenset({State.OPEN})),
    "cancelled": (_LIVE, frozenset({State.CANCELLED})),
    "lost": (frozenset({State.LANDED}), frozenset({State.PARKED})),
}
# Who writes these must hold the claim that the event names, at the commit before.
_BY_HOLDER = frozenset({"sealed", "released", "expired", "extended", "ejected", "landed", "held"})
_CHECK_LINE = re.compile(r"^Swarm-Check: (.+) ([0-9a-f]{12})$", re.MULTILINE)
_OURS = "<swarm@swarm.invalid>"


class Violation(msgspec.Struct, frozen=True):
    """One invariant that does not hold."""

    number: int  # of docs/design.md, Invariants
    what: str  # one sentence
    evidence: tuple[str, ...] = ()  # object ids, refs and paths

    def __str__(self) -> str:
        return f"invariant {self.number}: {self.what} ({', '.join(self.evidence)})"


class Policy(msgspec.Struct, frozen=True):
    """What of the configuration decides whether a landing was right."""

    flaky_lands: bool = False  # `[gate] flaky = "land"`
    path_limited: frozenset[str] = frozenset()  # checks with `paths`: some landings lack them


class CheckoutFacts(msgspec.Struct, frozen=True):
    """What a checkout was, so that a later look can tell whether anything changed it."""

    root: Path
    head: str  # HEAD, and what its branch holds
    index: str  # digest
    config: str  # digest
    files: str  # digest of every path with its size, mode and modification time


def checkout_facts(root: Path) -> CheckoutFacts:
    """Look at a checkout by reading files alone: a git call might itself refresh the index."""
    git_dir = root / ".git"
    head = _text(git_dir / "HEAD").strip()
    if head.startswith("ref: "):
        head += f" {_text(git_dir / head[5:]).strip()}"
    listing = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if parts[0] == ".git" or "__pycache__" in parts or ".pytest_cache" in parts:
            continue
        status = path.lstat()
        if not path.is_dir() or path.is_symlink():
            row = f"{path}\0{status.st_size}\0{status.st_mode}\0{status.st_mtime_ns}\n"
            listing.update(row.encode("utf-8", "surrogateescape"))
    return CheckoutFacts(
        root,
        head,
        _digest(git_dir / "index"),
        _digest(git_dir / "config"),
        listing.hexdigest(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "none"


def checkout_faults(before: CheckoutFacts) -> list[Violation]:
    """Invariant 8: what changed in a checkout since it was looked at."""
    after = checkout_facts(before.root)
    found = []
    for name in ("head", "index", "config", "files"):
        if getattr(before, name) != getattr(after, name):
            what = f"{name} of the user's checkout changed"
            found.append(Violation(8, what, (str(before.root), getattr(after, name))))
    return found


def agent_environment_faults(env: Mapping[str, str]) -> list[str]:
    """Invariant 10: names of variables that would steer an agent's git."""
    return sorted(name for name in env if name.upper().startswith("GIT_"))


class _Seen(msgspec.Struct):
    """What the walk over the ledger has learned so far."""

    tip: str | None = None
    tree: str | None = None
    states: dict[str, State] = {}  # but for tasks never touched
    tokens: dict[str, int] = {}  # the last one given
    holders: dict[str, str] = {}  # task -> agent of its live claim
    verdicts: dict[str, tuple[VerdictValue, str]] = {}  # key -> (…, tree)
    event_ids: set[str] = msgspec.field(default_factory=set)
    heads: dict[str, str] = {}  # recorded commit -> where
    landed: dict[str, str] = {}  # landing commit -> task
    gate_token: int = 0


class Checker:
    """Checks a hub again and again, each time only what is new.

    `checkout`: what the user's checkout was; call `accept_checkout` after a command that may
    write there.

    Safe: reads only; a hub that moves meanwhile is seen at one moment of the ledger and at refs
    that are no older.
    """

    def __init__(
        self,
        ledger: Ledger,
        layout: Layout | None = None,
        checkout: CheckoutFacts | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._ledger = ledger
        self._hub = ledger.hub
        self._layout = layout
        self._checkout = checkout
        self._policy = policy or Policy()
        self._seen = _Seen()
        self._found: list[Violation] = []
        self._target: str | None = None  # the last one found to hold every landing
        self._refs: dict[str, str] = {}
        self._log_offset = 0

    def accept_checkout(self) -> None:
        """The checkout as it is now is how it should be."""
        if self._checkout is not None:
            self._checkout = checkout_facts(self._checkout.root)

    def step(self) -> list[Violation]:
        """What is violated in all that is new since the last step.

        What holds for the present (reachability, the checkout) is looked at each time.
        """
        self._found = []
        tip = self._hub.reader.ref(LEDGER)
        fresh_heads, fresh_landed = len(self._seen.heads), set(self._seen.landed)
        self._walk(tip)
        self._check_target(set(self._seen.landed) - fresh_landed)
        self._check_heads(is_fresh=len(self._seen.heads) != fresh_heads)
        if self._layout is not None:
            self._check_slots(self._layout)
        if self._checkout is not None:
            self._found += checkout_faults(self._checkout)
        return self._found

    def _add(self, number: int, what: str, *evidence: str) -> None:
        self._found.append(Violation(number, what, evidence))

    # The history

    def _walk(self, tip: str | None) -> None:
        if tip == self._seen.tip:
            return
        chain: list[tuple[str, bytes]] = []
        oid = tip
        while oid is not None and oid != self._seen.tip:
            raw = self._hub.reader.commit(oid)
            chain.append((oid, raw))
            parents = _parents(raw)
            if len(parents) > 1:
                self._add(9, "the ledger has a merge", oid)
            oid = parents[0] if parents else None
        if oid is None and self._seen.tip is not None:
            self._add(9, "the ledger does not continue what it was", self._seen.tip, tip or "none")
            self._seen = _Seen()
        for oid, raw in reversed(chain):
            self._event(oid, raw)

    def _event(self, oid: str, raw: bytes) -> None:
        seen = self._seen
        before = self._at(seen.tip) if seen.tip else None
        after = self._at(oid)
        message = of_commit(raw)
        changes = {
            path: (old, new)
            for path, old, new in self._hub.reader.iter_changes(seen.tree, after.tree)
        }
        event = _Event(oid, message, before, after, changes)
        self._check_grammar(event)
        self._check_rows(event)
        self._check_facts(event)
        self._learn(event)
        seen.tip, seen.tree = oid, after.tree

    def _at(self, commit: str) -> View:
        return View(self._hub, commit, self._ledger.branch, "", _EPOCH)

    def _check_grammar(self, event: _Event) -> None:
        """Invariant 9: the row of its kind, the task it names, an id of its own."""
        ident = event.facts.get("Swarm-Event-Id", "")
        if not ident or ident in self._seen.event_ids:
            self._add(9, f"{event.kind} has no id of its own", event.oid, ident)
        self._seen.event_ids.add(ident)
        if event.before is None and event.kind != "created":
            self._add(9, "the ledger does not begin with created", event.oid)
        row = KINDS.get(event.kind)
        if row is None:
            return  # of a newer version: shown by its own sentence
        for path in event.changes:
            if folder_of(path) not in row.folders:
                self._add(9, f"{event.kind} may not change {path}", event.oid, path)
            elif event.task and folder_of(path) in _TASK_FOLDERS and _task_of(path) != event.task:
                self._add(9, f"{event.kind} of {event.task} changes {path}", event.oid, path)

    def _check_rows(self, event: _Event) -> None:
        """Invariants 1, 2 and 6: every touched task, before and after."""
        for task in event.touched():
            was = self._seen.states.get(task, State.ABSENT)
            now = event.after.state(task)
            self._seen.states[task] = now
            if now is State.DAMAGED:
                self._add(1, f"the files of {task} are no row of the table", event.oid, task)
                continue
            self._check_attempts(event, task, now)
            self._check_holder(event, task)
            allowed = _STEPS.get(event.kind)
            if allowed is not None and (was not in allowed[0] or now not in allowed[1]):
                what = f"{event.kind} took {task} from {was.value} to {now.value}"
                self._add(1, what, event.oid, task)
            if allowed is None and event.kind in KINDS and was is not now:
                what = f"{event.kind} changed {task} from {was.value} to {now.value}"
                self._add(1, what, event.oid, task)
        for path, (_, new) in event.changes.items():
            if new is not None:
                self._check_decodes(event, path, new)

    def _check_decodes(self, event: _Event, path: str, oid: str) -> None:
        kind = _RECORDS.get(folder_of(path))
        try:
            data = self._hub.reader.read(oid, "blob")
            if folder_of(path) == "tasks":
                records.decode_task(data)
            elif kind is not None:
                records.decode(kind, data)
        except Undecodable as error:
            self._add(1, f"{path} does not decode: {error}", event.oid, path)

    def _check_attempts(self, event: _Event, task: str, now: State) -> None:
        attempts = readable(event.after.attempts, task)
        lock = readable(event.after.lock, task)
        entry = readable(event.after.entry, task)
        had = readable(event.before.attempts, task) if event.before is not None else None
        if attempts is None:
            if event.after.blob_id(records.attempts_path(task)) is not None:
                return  # it does not decode, which is told by its path
            if had is not None:
                self._add(1, f"the attempts record of {task} is gone", event.oid, task)
            if lock is not None or now is State.LANDED:
                self._add(1, f"{task} is {now.value} without an attempts record", event.oid, task)
            return
        if had is not None and attempts.token < had.token:
            self._add(2, f"the token of {task} fell to {attempts.token}", event.oid, task)
        if had is None and event.kind != "claimed":
            self._add(1, f"{event.kind} began the attempts record of {task}", event.oid, task)
        if had is not None and event.kind != "claimed" and attempts.token != had.token:
            self._add(2, f"{event.kind} changed the token of {task}", event.oid, task)
        if lock is not None and lock.token != attempts.token:
            self._add(2, f"{task} is held with another token than its last", event.oid, task)
        if entry is not None and lock is not None:
            is_same = entry.nonce == lock.nonce and entry.token == lock.token
            lock_id = event.after.blob_id(records.lock_path(task))
            if not is_same or entry.lock != lock_id:
                self._add(6, f"the queue entry of {task} is not of its lock", event.oid, task)

    def _check_holder(self, event: _Event, task: str) -> None:
        holders = self._seen.holders
        lock = readable(event.after.lock, task)
        holders.pop(task, None)
        if lock is None:
            return
        other = next((t for t, agent in holders.items() if agent == lock.agent), None)
        if other is not None and event.kind == "claimed":
            self._add(9, f"{lock.agent} holds {other} and claimed {task}", event.oid, task)
        holders[task] = lock.agent

    def _check_facts(self, event: _Event) -> None:
        """Invariants 2, 6 and 9: trailers equal the files; only the holder writes."""
        task = event.task
        if event.kind == "claimed":
            token = event.token
            if token <= self._seen.tokens.get(task, 0):
                self._add(2, f"token {token} of {task} was given before", event.oid, task)
        if event.kind in _BY_HOLDER and event.before is not None:
            lock = readable(event.before.lock, task)
            if lock is not None and event.facts.get("Swarm-Token") != str(lock.token):
                what = f"{event.kind} of {task} by a holder of an older claim"
                self._add(6, what, event.oid, task)
        for name, said, found in _told(event):
            if said is not None and said != found:
                what = f"{event.kind} says {name} {said or 'none'}, its files {found or 'none'}"
                self._add(9, what, event.oid, task)
        if event.kind == "landed":
            self._check_landed(event)

    def _learn(self, event: _Event) -> None:
        seen, facts = self._seen, event.facts
        at = f"{event.kind} {event.oid}"
        for path, (_, new) in event.changes.items():
            if folder_of(path) == "verdicts" and new is not None:
                verdict = _decoded(Verdict, self._hub.reader.read(new, "blob"))
                if verdict is not None:
                    seen.verdicts[verdict.key] = (verdict.verdict, verdict.tree)
        names = ["Swarm-Work"]
        if event.kind in ("sealed", "rescued"):
            names.append("Swarm-Head")
        if event.kind == "claimed":
            names.append("Swarm-Start")
            seen.tokens[event.task] = max(seen.tokens.get(event.task, 0), event.token)
        for name in names:
            if is_oid(facts.get(name, "")):
                seen.heads.setdefault(facts[name], at)
        if event.kind == "landed" and is_oid(facts.get("Swarm-Landed", "")):
            seen.landed[facts["Swarm-Landed"]] = event.task
        if event.kind == "lost":
            seen.landed.pop(facts.get("Swarm-Landed", ""), None)
        if event.kind == "gate-taken":
            gate = _decoded(records.Gate, event.after.raw(records.GATE_PATH) or b"")
            if gate is not None and gate.token <= seen.gate_token:
                self._add(9, f"token {gate.token} of the gate was given before", event.oid)
            seen.gate_token = gate.token if gate is not None else seen.gate_token

    # Landings

    def _check_landed(self, event: _Event) -> None:
        """Invariants 3, 4 and 12: what landed is what was checked, on what it was built on."""
        done = readable(event.after.done, event.task)
        if done is None or done.landed is None or done.previous is None:
            self._add(9, f"{event.task} landed without a landing commit", event.oid)
            return
        reader = self._hub.reader
        if not reader.has(done.landed) or not reader.has(done.previous):
            self._add(3, f"the landing commit of {event.task} is missing", event.oid, done.landed)
            return
        raw = reader.commit(done.landed)
        tree, message = _tree(raw), of_commit(raw)
        is_ours = done.landed != done.head  # else the target went forward to somebody's own commit
        said = message.trailers.get("Swarm-Tree", tree) if is_ours else tree
        if done.tree != tree or said != tree:
            what = f"the landing commit of {event.task} shows another tree than was recorded"
            self._add(3, what, event.oid, done.landed, tree)
        if done.previous not in _parents(raw)[:1] and not self._hub.contains(
            done.landed, done.previous
        ):
            what = f"the landing commit of {event.task} does not follow what it was built on"
            self._add(3, what, event.oid, done.landed, done.previous)
        landing = _decoded(
            Landing, (event.before.raw(records.LANDING_PATH) if event.before else None) or b""
        )
        if landing is None:
            self._add(9, f"{event.task} landed without landing.json", event.oid)
        named = _CHECK_LINE.findall(raw.decode("utf-8", "replace")) if is_ours else []
        self._check_verdicts(event, done.landed, tree, done.verdicts, named, landing)

    def _check_verdicts(
        self,
        event: _Event,
        landed: str,
        tree: str,
        keys: list[str],
        named: list[tuple[str, str]],
        landing: Landing | None,
    ) -> None:
        if not keys and not named:
            what = f"{event.task} landed without any check"
            self._add(12, what, event.oid, landed)
        # In a batch the top of the stack may have been judged for all below it.
        fit = {tree, landed}
        if landing is not None:
            fit |= {change.tree for change in landing.changes}
            fit |= {change.landed for change in landing.changes}
        passed: set[str] = set()
        for key in keys:
            verdict = self._seen.verdicts.get(key)
            if verdict is None:
                self._add(4, f"{event.task} landed on a verdict that nobody wrote", event.oid, key)
                continue
            value, judged = verdict
            passed.add(key.removeprefix(f"{judged}-").rpartition("-")[0])
            if value != "passed" and not (value == "flaky" and self._policy.flaky_lands):
                what = f"{event.task} landed although {key.partition('-')[2]} {value}"
                self._add(4, what, event.oid, key)
            # A digest of declared paths is no object; a tree or a commit must be the landing's.
            if judged not in fit and self._hub.reader.has(judged):
                self._add(4, f"{event.task} landed on a verdict of another tree", event.oid, key)
        for name, _ in named:
            if name not in passed and name not in self._policy.path_limited:
                self._add(4, f"{event.task} landed without check {name}", event.oid, landed)

    def _check_target(self, fresh: set[str]) -> None:
        """Invariant 3: every landing is in the target, and our moves only went forward."""
        target = self._hub.reader.ref(branch_ref(self._ledger.branch))
        if target is None:
            self._add(3, f"the hub has no branch {self._ledger.branch}", self._ledger.branch)
            return
        self._check_moves()
        known = self._target
        if target == known and not fresh:
            return
        wanted = set(self._seen.landed)
        if known is not None and self._hub.contains(target, known):
            wanted &= fresh
        lacking = self._unreachable(wanted, [target])
        for commit in sorted(lacking):
            what = f"{self._ledger.branch} lacks the landing commit of {self._seen.landed[commit]}"
            self._add(3, what, commit, target)
        self._target = target if not lacking else None

    def _check_moves(self) -> None:
        path = self._hub.path / "logs" / branch_ref(self._ledger.branch)
        try:
            with path.open("rb") as file:
                file.seek(self._log_offset)
                data = file.read()
        except OSError:
            return  # a missing log is a finding of its own, not a wrong move
        whole = data[: data.rfind(b"\n") + 1]
        self._log_offset += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            old, new, rest = line.split(" ", 2)
            if _OURS not in rest or not old.strip("0") or not new.strip("0"):
                continue
            if not self._hub.reader.has(new) or not self._hub.reader.has(old):
                self._add(3, f"a commit that {self._ledger.branch} held is gone", old, new)
            elif old not in _parents(self._hub.reader.commit(new)) and not self._hub.contains(
                new, old
            ):
                self._add(3, f"we moved {self._ledger.branch} other than forward", old, new)

    # What is kept

    def _check_heads(self, *, is_fresh: bool) -> None:
        """Invariant 5: every recorded commit is reachable from target, work or rescue refs."""
        names = (WORK, RESCUE, branch_ref(self._ledger.branch))
        listed = self._hub.git.run("for-each-ref", "--format=%(refname) %(objectname)", *names)
        refs = dict(line.split(" ", 1) for line in listed.lines)
        if refs == self._refs and not is_fresh:
            return
        lost = self._unreachable(set(self._seen.heads) - set(refs.values()), set(refs.values()))
        for commit in sorted(lost):
            self._add(5, f"{commit} is on no ref of the hub", self._seen.heads[commit], commit)
        self._refs = {} if lost else refs

    def _unreachable(self, commits: Iterable[str], tips: Iterable[str]) -> set[str]:
        """Those of `commits` that no tip contains; a missing object is unreachable."""
        wanted = set(commits)
        if not wanted:
            return set()
        missing = {oid for oid in wanted if not self._hub.reader.has(oid)}
        lines = [*sorted(wanted - missing), *(f"^{tip}" for tip in sorted(set(tips)))]
        listed = self._hub.git.run("rev-list", "--stdin", input="\n".join(lines).encode() + b"\n")
        return missing | (wanted & set(listed.lines))

    def _check_slots(self, layout: Layout) -> None:
        """Invariant 6: no two worktrees carry the same claim."""
        owners: dict[str, str] = {}
        for path in sorted(layout.slots.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                occupant = msgspec.json.decode(path.read_bytes(), type=Occupant)
                if occupant.nonce in owners:
                    what = f"{owners[occupant.nonce]} and {path.stem} carry one claim"
                    self._add(6, what, occupant.task, occupant.nonce)
                owners[occupant.nonce] = path.stem


def check(
    ledger: Ledger,
    layout: Layout | None = None,
    checkout: CheckoutFacts | None = None,
    policy: Policy | None = None,
) -> list[Violation]:
    """Everything at once: the whole history and the present. Linear in the history.

    Raises:
        GitFault: the ledger itself cannot be read.
    """
    return Checker(ledger, layout, checkout, policy).step()


class _Event(msgspec.Struct, frozen=True):
    """One ledger commit with its surroundings."""

    oid: str
    message: Message
    before: View | None
    after: View
    changes: Mapping[str, tuple[str | None, str | None]]

    @property
    def facts(self) -> Mapping[str, str]:
        return self.message.trailers

    @property
    def kind(self) -> str:
        return self.facts.get("Swarm-Event", "")

    @property
    def task(self) -> str:
        return self.facts.get("Swarm-Task", "")

    @property
    def token(self) -> int:
        text = self.facts.get("Swarm-Token", "")
        return int(text) if text.isdigit() else 0

    def touched(self) -> list[str]:
        return sorted({_task_of(p) for p in self.changes if folder_of(p) in _TASK_FOLDERS})


def _told(event: _Event) -> Iterator[tuple[str, str | None, str | None]]:
    """(trailer, what it says, what the files say) of everything that an event repeats."""
    facts, task, after, before = event.facts, event.task, event.after, event.before

    def pair(name: str, found: object) -> tuple[str, str | None, str | None]:
        return name, facts.get(name), None if found is None else str(found)

    match event.kind:
        case "claimed":
            lock = readable(after.lock, task)
            if lock is not None:
                yield "Swarm-Nonce", facts.get("Swarm-Nonce", ""), lock.nonce
                yield "Swarm-Token", facts.get("Swarm-Token", ""), str(lock.token)
                yield pair("Swarm-Agent", lock.agent)
                yield pair("Swarm-Slot", lock.slot)
                yield pair("Swarm-Start", lock.start)
                yield pair("Swarm-Merge", lock.merge)
        case "sealed":
            entry = readable(after.entry, task)
            if entry is not None:
                yield "Swarm-Head", facts.get("Swarm-Head", ""), entry.head
                yield pair("Swarm-Base", entry.base)
                yield pair("Swarm-Lock", entry.lock)
                yield pair("Swarm-Token", entry.token)
        case "landed":
            done = readable(after.done, task)
            if done is not None:
                yield "Swarm-Landed", facts.get("Swarm-Landed", ""), done.landed
                yield pair("Swarm-Previous", done.previous)
                yield pair("Swarm-Head", done.head)
                yield pair("Swarm-Tree", done.tree)
                yield pair("Swarm-Token", done.token)
        case "released" | "expired" | "ejected" | "rejected":
            attempts = readable(after.attempts, task)
            if attempts is not None and attempts.last is not None:
                yield pair("Swarm-Outcome", attempts.last.outcome)
                yield pair("Swarm-Token", attempts.last.token)
                yield pair("Swarm-Work", attempts.work.head if attempts.work else None)
        case "told":
            attempts = readable(after.attempts, task)
            if attempts is not None and attempts.told:
                yield pair("Swarm-By", attempts.told[-1].by)
                yield pair("Swarm-Token", attempts.token)
        case "parked":
            parked = readable(after.parked, task)
            yield pair("Swarm-Reason", parked.reason if parked else None)
        case "checked":
            for path, (_, new) in event.changes.items():
                if new is not None and folder_of(path) == "verdicts":
                    verdict = _decoded(Verdict, after.hub.reader.read(new, "blob"))
                    if verdict is not None:
                        yield pair("Swarm-Tree", verdict.tree)
                        yield pair("Swarm-Check", verdict.check)
                        yield pair("Swarm-Verdict", verdict.verdict)
                        yield pair("Swarm-Definition", verdict.definition[:12])
        case "landing":
            landing = _decoded(Landing, after.raw(records.LANDING_PATH) or b"")
            yield pair("Swarm-Landed", landing.new if landing else None)
            yield pair("Swarm-Target", landing.old if landing else None)
        case "void":
            landing = _decoded(
                Landing, (before.raw(records.LANDING_PATH) if before else None) or b""
            )
            yield pair("Swarm-Landed", landing.new if landing else None)
        case "synced" | "pushed":
            upstream = _decoded(records.Upstream, after.raw(records.UPSTREAM_PATH) or b"")
            if upstream is not None:
                yield pair("Swarm-Upstream", f"{upstream.remote}/{upstream.branch}")
                yield pair("Swarm-Tip", upstream.tip)
                yield pair("Swarm-Rewritten", upstream.rewritten)
                pushed = {p.branch: p.oid for p in upstream.pushes}
                yield pair("Swarm-Head", pushed.get(facts.get("Swarm-Branch", "")))
        case "gate-taken":
            gate = _decoded(records.Gate, after.raw(records.GATE_PATH) or b"")
            yield pair("Swarm-Gate", gate.token if gate else None)
            yield pair("Swarm-Runner", gate.runner if gate else None)


def _decoded(kind: type[R], data: bytes) -> R | None:
    try:
        return records.decode(kind, data)
    except Undecodable:
        return None


def _task_of(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


def _parents(raw: bytes) -> list[str]:
    head = raw.partition(b"\n\n")[0]
    return [line[7:].decode() for line in head.split(b"\n") if line.startswith(b"parent ")]


def _tree(raw: bytes) -> str:
    return raw[5:].split(b"\n", 1)[0].decode()
