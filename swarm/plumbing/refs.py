"""The one primitive: move several refs at once, or say exactly why not.

Enters: (ref, old, new) triples, the turn held. Leaves: one outcome of six.
Guards: only refs that still hold their old value move; no answer of git's is believed but
`commit: ok`, everything else is read back; nobody cleans a lock whose git still lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from swarm.errors import HubUnusable
from swarm.plumbing.git import Git, end_group
from swarm.plumbing.objects import Reader

ANSWER_SECONDS = 60.0  # for one transaction; git itself waits 0.1 s for a lock
TURN_SECONDS = 120.0


class Move(msgspec.Struct, frozen=True):
    """One ref's step. `old` None: must not exist; `new` None: delete."""

    ref: str
    old: str | None
    new: str | None


class Committed(msgspec.Struct, frozen=True):
    """Every ref holds its new value."""


class Moved(msgspec.Struct, frozen=True):
    """Somebody else moved these refs first; nothing of ours was written."""

    refs: tuple[str, ...]


class Torn(msgspec.Struct, frozen=True):
    """A failed rename: these moved, those did not. Only a landing's record can settle it."""

    moved: tuple[str, ...]
    unmoved: tuple[str, ...]


class Busy(msgspec.Struct, frozen=True):
    """Nothing moved; a lock file is in the way."""

    locks: tuple[Path, ...]


class Refused(msgspec.Struct, frozen=True):
    """Nothing moved, and git says why."""

    reason: str


class Unknown(msgspec.Struct, frozen=True):
    """Git did not answer and could not be ended: the write may still happen."""


Outcome = Committed | Moved | Torn | Busy | Refused | Unknown


class Turn:
    """The flock beside the hub by which processes of one host take turns.

    Released by the kernel when its holders die. One descriptor per process, inherited by the git
    that moves refs and by nothing else: so a free flock means that no such git is alive.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._depth = 0
        self._fd: int | None = None
        self.generation = 0  # of the descriptor: what inherited an older one does not hold the turn

    @property
    def fd(self) -> int:
        """The descriptor that `update-ref` inherits."""
        if self._fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o666)
        return self._fd

    @property
    def is_held(self) -> bool:
        """True in the thread that holds it."""
        return self._depth > 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the turn and keep it for the block; re-entrant within a thread.

        Raises:
            HubUnusable: not ours within two minutes.
        """
        with self._mutex:
            if self._depth == 0:
                self._lock()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno == errno.EROFS:
                raise HubUnusable(
                    "the hub cannot be written from here",
                    why=f"{error.strerror}: {self._path}; an agent in a sandbox only reads it",
                    hint='swarm ask "your question"\nswarm release --reason "why"',
                ) from error
            raise HubUnusable(f"cannot lock {self._path}", why=str(error)) from error
        # The kernel wakes who waits, nearly in order; a loop of tries made some wait for seconds.
        # A blocking flock cannot be given up, so a thread of its own waits in it.
        wait = _Wait(os.dup(self.fd))
        try:
            if wait.ended.wait(TURN_SECONDS) and wait.error is None:
                return
        except BaseException:
            self._give_up(wait)
            raise
        self._give_up(wait)
        if wait.error is not None:
            raise HubUnusable(f"cannot lock {self._path}", why=str(wait.error))
        raise HubUnusable(
            "the hub is busy: its turn was not free for two minutes",
            why=f"flock on {self._path}",
            hint=f"fuser -v {self._path}",
        )

    def _give_up(self, wait: _Wait) -> None:
        """Leave the wait to its thread, which unlocks what it gets; go on with a new descriptor."""
        if wait.give_up() and self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Forget the descriptor without unlocking: a git that cannot be ended keeps the turn."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self.generation += 1

    def close(self) -> None:
        self.abandon()


class _Wait:
    """One blocking flock on a descriptor of its own, in a thread."""

    def __init__(self, fd: int) -> None:
        self.ended = threading.Event()
        self.error: OSError | None = None
        self._fd = fd
        self._mutex = threading.Lock()
        self._is_wanted = True
        threading.Thread(target=self._run, name="swarm-turn", daemon=True).start()

    def _run(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            self.error = error
        with self._mutex:
            self.ended.set()
            if not self._is_wanted and self.error is None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def give_up(self) -> bool:
        """Nobody wants it any more; True when it had just come through and is still locked."""
        with self._mutex:
            self._is_wanted = False
            return self.ended.is_set() and self.error is None


class RefWriter:
    """Transactions through one long-lived `git update-ref --stdin`.

    Safe: callers hold the turn. The child dies on every lost race; the next call starts another.
    """

    def __init__(self, git: Git, reader: Reader, turn: Turn) -> None:
        self._git = git
        self._reader = reader
        self._turn = turn
        self._child: subprocess.Popen[bytes] | None = None
        self._generation = 0

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
            end_group(child)

    def transact(self, moves: Sequence[Move]) -> Outcome:
        """Move all refs or none, in the given order: the target first, the ledger last.

        Safe: a crash of this process leaves git with the turn's flock, so that nobody cleans up
        before it has finished.
        """
        if not self._turn.is_held:
            raise AssertionError("transact without the turn")
        answer = self._send(moves)
        if answer == "committed":
            return Committed()
        if answer == "unknown":
            self._turn.abandon()
            return Unknown()
        return self._look(moves, answer)

    def _look(self, moves: Sequence[Move], reason: str) -> Outcome:
        now = {move.ref: self._reader.ref(move.ref) for move in moves}
        changing = [m for m in moves if m.old != m.new]
        done = tuple(m.ref for m in changing if now[m.ref] == m.new)
        foreign = tuple(m.ref for m in moves if now[m.ref] not in (m.old, m.new))
        if changing and len(done) == len(changing) and not foreign:
            return Committed()
        if done:
            return Torn(done, tuple(m.ref for m in changing if m.ref not in done))
        if foreign:
            return Moved(foreign)
        locks = tuple(self.iter_locks(moves))
        return Busy(locks) if locks else Refused(reason)

    def iter_locks(self, moves: Sequence[Move]) -> Iterator[Path]:
        """Lock files that git would have to take for these moves."""
        names = [f"{move.ref}.lock" for move in moves] + ["HEAD.lock", "packed-refs.lock"]
        for name in names:
            path = self._git.git_dir / name
            if path.exists():
                yield path

    def _start(self) -> subprocess.Popen[bytes]:
        child = self._child
        is_stale = self._generation != self._turn.generation
        if child is None or is_stale or child.poll() is not None:
            self.close()
            self._generation = self._turn.generation
            child = self._child = subprocess.Popen(
                self._git.argv("update-ref", "--stdin"),
                cwd=self._git.git_dir,
                env=self._git.full_env(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(self._turn.fd,),
                process_group=0,
            )
        return child

    def _send(self, moves: Sequence[Move]) -> str:
        """`committed`, `unknown`, or git's complaint; the child is gone unless committed."""
        lines = ["start"]
        for move in moves:
            zero = "0" * 40 if move.new is None or len(move.new) == 40 else "0" * 64
            if move.new is None:
                lines.append(f"delete {move.ref} {move.old}")
            elif move.new == move.old:
                lines.append(f"verify {move.ref} {move.old}")
            else:
                lines.append(f"update {move.ref} {move.new} {move.old or zero}")
        text = "\n".join([*lines, "prepare", "commit", ""]).encode()
        child = self._start()
        try:
            _write(child, text)
        except OSError:  # it died while idle; what it did not read it cannot commit
            self.close()
            child = self._start()
            with contextlib.suppress(OSError):
                _write(child, text)
        return self._answer(child)

    def _answer(self, child: subprocess.Popen[bytes]) -> str:
        assert child.stdout is not None and child.stderr is not None
        got = b""
        deadline = time.monotonic() + ANSWER_SECONDS
        answers = select.poll()
        answers.register(child.stdout, select.POLLIN)
        while not got.endswith(b"commit: ok\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not answers.poll(left * 1000):
                end_group(child)
                self._child = None
                return "unknown" if child.poll() is None else "no answer"
            chunk = os.read(child.stdout.fileno(), 4096)
            if not chunk:
                break
            got += chunk
        if got.endswith(b"commit: ok\n"):
            return "committed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        reason = child.stderr.read().decode("utf-8", "replace").strip()
        end_group(child)
        self._child = None
        return reason or "git update-ref ended without an answer"


def _write(child: subprocess.Popen[bytes], text: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(text)
    child.stdin.flush()
