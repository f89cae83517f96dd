"""Writing events: compare-and-swap on the ledger's tip, one commit per event.

Enters: a function from a view to events or a refusal. Leaves: what was written, or that refusal.
Guards: an event is decided on the very tip it lands on, written once however often it is retried,
and moves with the refs that belong to it or not at all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from swarm.errors import HubUnusable
from swarm.ids import new_event_id
from swarm.ledger import records
from swarm.ledger.clock import Clock, SystemClock
from swarm.ledger.events import Event, stray_paths
from swarm.ledger.index import Index
from swarm.ledger.view import View, read_view
from swarm.plumbing.history import iter_messages
from swarm.plumbing.hub import LEDGER, Hub
from swarm.plumbing.objects import edit_tree
from swarm.plumbing.refs import Busy, Committed, Move, Moved, Refused, Torn, Unknown
from swarm.trailers import Message, compose, of_commit, parse

T = TypeVar("T", covariant=True)
V = TypeVar("V")
AUTHOR = "swarm <ledger@swarm.invalid>"
BUSY_SECONDS = 10.0
_ONE_BY_ONE = 64  # events that are read without starting a git: a printer's tail, a retry
_SLACK_SECONDS = 3600


class Draft(msgspec.Struct, Generic[T], frozen=True):
    """What a decision wants written: events in order, the refs that move with them, and a value.

    Refs move before the ledger, in the given order. Without events nothing is written: a refusal.
    """

    events: tuple[Event, ...]
    value: T
    moves: tuple[Move, ...] = ()


def refuse(value: V) -> Draft[V]:
    """Write nothing and answer `value`."""
    return Draft((), value)


class Logged(NamedTuple):
    """One ledger commit, read back."""

    oid: str
    at: datetime  # the committer's, in the local zone
    message: Message

    @property
    def kind(self) -> str:
        return self.message.trailers.get("Swarm-Event", "")

    @property
    def task(self) -> str:
        return self.message.trailers.get("Swarm-Task", "")


class Ledger:
    """The ledger of one hub for one target.

    Safe: any number of threads and processes; after a crash anywhere the next call goes on.
    """

    def __init__(
        self, hub: Hub, branch: str, cache: Path | None = None, clock: Clock | None = None
    ) -> None:
        self.hub = hub
        self.branch = branch
        self.clock: Clock = clock or SystemClock()
        self.index = Index(cache / "state.sqlite" if cache else None)
        self._known_format: str | None = None  # blob that said what we understand

    def close(self) -> None:
        self.index.close()
        self.hub.close()

    def find_view(self) -> View | None:
        """The present, or None when the hub has no ledger yet.

        Raises:
            HubUnusable: the ledger has a format that this version does not know.
        """
        view = read_view(self.hub, LEDGER, self.branch, self.clock.now)
        if view is not None:
            blob = view.blob_id(records.FORMAT_PATH)
            if blob is not None and blob == self._known_format:
                return view
            layout = view.raw(records.FORMAT_PATH)
            if layout != records.LAYOUT:
                raise HubUnusable(
                    f"the ledger has format {layout!r}; this swarm knows {records.LAYOUT!r}",
                    hint="use the version of swarm that wrote it",
                )
            self._known_format = blob
        return view

    def view(self) -> View:
        """
        Raises:
            HubUnusable: no ledger, or one of an unknown format.
        """
        view = self.find_view()
        if view is None:
            raise HubUnusable(f"no ledger in {self.hub.path}", hint="swarm init")
        return view

    def create(self) -> bool:
        """Write the first commit; False when there is a ledger already.

        Raises:
            HubUnusable: busy or not writable; nothing was written, and creating again is safe.
        """
        with self.hub.turn.held():
            if self.hub.reader.ref(LEDGER) is not None:
                return False
            gate = records.free_gate(0, "")
            first = Event(
                kind="created",
                says="The ledger begins.",
                edits={
                    records.FORMAT_PATH: records.LAYOUT,
                    records.GATE_PATH: records.encode(gate),
                },
            )
            trouble = self._write(None, (first,), (new_event_id(),), ())
            if trouble is not None:
                raise trouble
            return True

    def append(self, decide: Callable[[View], Draft[V]]) -> V:
        """Decide on the present tip, write, and return the draft's value.

        `decide` may be called several times, each time with a newer view; it must not have effects.

        Raises:
            HubUnusable: busy or not writable for ten seconds (nothing was written), or git did
                not answer, and whether it was written is unknown.
        """
        ids: list[str] = []
        deadline = time.monotonic() + BUSY_SECONDS
        tried: tuple[str, V] | None = None  # the tip that the last try was made on, and its value
        trouble: HubUnusable | None = None
        pause = 0.01
        while True:
            with self.hub.turn.held():
                view = self.view()
                # Before deciding again: our own event may be what a new decision would refuse.
                if tried is not None and self._is_written(ids[0], tried[0], view):
                    return tried[1]
                if trouble is not None and time.monotonic() > deadline:
                    raise trouble
                decided = decide(view)
                if not decided.events:
                    return decided.value
                while len(ids) < len(decided.events):
                    ids.append(new_event_id())
                tried = view.tip, decided.value
                trouble = self._write(view, decided.events, tuple(ids), decided.moves)
            if trouble is None:
                return decided.value
            time.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _write(
        self,
        view: View | None,
        events: tuple[Event, ...],
        ids: tuple[str, ...],
        moves: tuple[Move, ...],
    ) -> HubUnusable | None:
        """None: written. Otherwise what stands in the way; the caller may decide again.

        Raises:
            HubUnusable: nothing that another try could change.
        """
        batch = self.hub.batch()
        tip = view.tip if view else None
        tree = view.tree if view else None
        at = f"{int(self.clock.now().timestamp())} +0000"
        edits: dict[str, bytes | None] = {}
        for event, event_id in zip(events, ids, strict=False):
            stray = stray_paths(event)
            if stray:
                raise AssertionError(f"{event.kind} may not touch {stray}")
            tree = edit_tree(self.hub.reader, batch, tree, event.edits)
            edits.update(event.edits)
            tip = batch.commit(tree, [tip] if tip else [], message_of(event, event_id), AUTHOR, at)
        try:
            batch.write()
        except OSError as error:
            raise HubUnusable(
                f"the hub is not writable: {error.strerror}",
                why=str(error),
                hint=f"df -h {self.hub.path}",
            ) from error
        old = view.tip if view else None
        wanted = [m for m in moves if m.old != m.new or m.ref.startswith("refs/heads/")]
        outcome = self.hub.refs.transact([*wanted, Move(LEDGER, old, tip)])
        match outcome:
            case Committed():
                if view is not None and tree is not None:
                    self.index.advance(view, tree, edits)
                return None
            case Moved(refs):
                return HubUnusable(f"the hub is busy: {', '.join(refs)} moved at every try")
            case Torn():
                return HubUnusable(
                    "the hub is not writable: a ref could not be renamed",
                    why=f"moved {outcome.moved}, not {outcome.unmoved}",
                    hint="swarm doctor --fix",
                )
            case Busy(locks):
                ours = [oid for oid in (tip, *(m.new for m in moves)) if oid]
                self.hub.heal_locks(ours + self._landing_oids(view))
                return HubUnusable(
                    "the hub is busy: a lock file is in the way",
                    why=", ".join(str(path) for path in locks),
                    hint="swarm doctor --fix",
                )
            case Refused(reason):
                return HubUnusable("the hub refused a write", why=reason, hint="swarm doctor")
            case Unknown():
                raise HubUnusable(
                    "git did not answer: whether it was written is unknown",
                    hint="swarm log --since 5m",
                )

    def _landing_oids(self, view: View | None) -> list[str]:
        with contextlib.suppress(HubUnusable):
            landing = view.landing() if view else None
            return [landing.new] if landing else []
        return []

    def _is_written(self, event_id: str, old: str, view: View) -> bool:
        """Was our event written after all, although the answer was lost?"""
        for logged in self.iter_log(view.tip, stop=old):
            if logged.message.trailers.get("Swarm-Event-Id") == event_id:
                return True
        return False

    def iter_log(
        self,
        tip: str | None = None,
        stop: str | None = None,
        *,
        task: str = "",
        since: datetime | None = None,
    ) -> Iterator[Logged]:
        """Events, newest first, down to `stop` (not included) or to the first one; only those of a
        task, or not older than a moment, when named. Commits know whole seconds: so does that test.

        A few are read one by one, which needs no program; many through one git, a stream.

        Raises:
            GitFault: a commit is missing; the events before it have been given.
        """
        oid = tip or self.hub.reader.ref(LEDGER)
        since = since.replace(microsecond=0) if since is not None else None
        if not task and since is None:
            for _ in range(_ONE_BY_ONE):
                if oid is None or oid == stop:
                    return
                raw = self.hub.reader.commit(oid)
                head = raw.partition(b"\n\n")[0].decode("utf-8", "replace").split("\n")
                yield Logged(oid, _committed_at(head), of_commit(raw))
                oid = next((line[7:] for line in head if line.startswith("parent ")), None)
        if oid is None or oid == stop:
            return
        wanted = ["--fixed-strings", f"--grep=Swarm-Task: {task}"] if task else []
        if since is not None:  # with slack for a clock that was set back: the test below decides
            wanted.append(f"--since=@{int(since.timestamp()) - _SLACK_SECONDS}")
        for name, seconds, text in iter_messages(self.hub.git, oid, stop, wanted):
            logged = Logged(name, datetime.fromtimestamp(seconds).astimezone(), parse(text))
            if (not task or logged.task == task) and (since is None or logged.at >= since):
                yield logged


def _committed_at(head: list[str]) -> datetime:
    seconds = 0
    for line in head:
        if line.startswith("committer "):
            seconds = int(line.rsplit(" ", 2)[1])
    return datetime.fromtimestamp(seconds).astimezone()


def message_of(event: Event, event_id: str) -> str:
    """The commit message that tells an event."""
    subject = f"{event.kind}: {event.task}" if event.task else event.kind
    if event.agent:
        subject += f" by {event.agent}"
    trailers: dict[str, Any] = {"Swarm-Event": event.kind, "Swarm-Event-Id": event_id}
    if event.task:
        trailers["Swarm-Task"] = event.task
    if event.agent:
        trailers["Swarm-Agent"] = event.agent
    if event.token:
        trailers["Swarm-Token"] = str(event.token)
    return compose(subject, event.says, trailers | dict(event.trailers))
