"""The state cache: one row per task, derived from the ledger, forgettable at any time.

Enters: a view. Leaves: tasks in pick order, counts, rows for listings.
Guards: it is keyed by the ledger's tip and brought to the asked view by comparing trees, so its
answers are those of that view or it is rebuilt; nothing is ever decided by it alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swarm.ledger import records
from swarm.ledger.records import Attempts, Done, Lock, Parked, QueueEntry, Undecodable
from swarm.ledger.view import State, View, derive

_VERSION = 1
_BULK = 200  # changed files from which they are read in one stream

_SCHEMA = """
create table if not exists meta(key text primary key, value text) without rowid;
create table if not exists tasks(
  id text primary key, state text not null, title text not null, priority integer not null,
  added real not null, role text not null, paths text not null, needs text not null,
  unmet integer not null, retry_at real, token integer not null, strikes integer not null,
  agent text not null, why text not null) without rowid;
create index if not exists by_agent on tasks(agent) where agent<>'';
create index if not exists pick on tasks(state, unmet, priority desc, added, id);
create table if not exists needs(need text, task text, primary key(need, task)) without rowid;
"""


@dataclass(frozen=True)
class Row:
    """What listings and the pick need to know of a task without reading its records."""

    id: str
    state: State
    title: str
    priority: int
    added: float
    role: str
    paths: tuple[str, ...]
    needs: tuple[str, ...]
    unmet: int  # needs that have not landed
    retry_at: float | None  # back-off runs until then, seconds since the epoch
    token: int
    strikes: int
    agent: str  # holder of the live claim, "" when there is none
    why: str  # of parked or damaged


_COLUMNS = (
    "id, state, title, priority, added, role, paths, needs, unmet, retry_at, token, strikes, "
    "agent, why"
)


def _row(values: tuple[object, ...]) -> Row:
    id_, state, title, priority, added, role, paths, needs, unmet, retry_at, *rest = values
    token, strikes, agent, why = rest
    return Row(
        str(id_),
        State(str(state)),
        str(title),
        int(str(priority)),
        float(str(added)),
        str(role),
        tuple(json.loads(str(paths))),
        tuple(json.loads(str(needs))),
        int(str(unmet)),
        None if retry_at is None else float(str(retry_at)),
        int(str(token)),
        int(str(strikes)),
        str(agent),
        str(why),
    )


class Index:
    """The cache in one SQLite file, shared by the processes of a host; None keeps it in memory.

    Safe: processes and threads; a broken or foreign file is deleted and built again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._mutex:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                str(self._path or ":memory:"),
                timeout=30,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=off")
            if self._db.execute("pragma user_version").fetchone()[0] != _VERSION:
                self._db.executescript(
                    "drop table if exists meta; drop table if exists tasks;"
                    "drop table if exists needs;" + _SCHEMA
                )
                self._db.execute(f"pragma user_version={_VERSION}")
        return self._db

    def _forget(self) -> None:
        self.close()
        if self._path is not None:
            for name in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _at(self, view: View) -> Iterator[sqlite3.Connection]:
        """The database at the view's tip, for the length of a transaction."""
        with self._mutex:
            try:
                db = self._open()
                db.execute("begin immediate")
                self._bring(db, view)
            except sqlite3.DatabaseError:
                self._forget()
                db = self._open()
                db.execute("begin immediate")
                self._bring(db, view)
            try:
                yield db
                db.execute("commit")
            except BaseException:
                db.execute("rollback")
                raise

    def first_ready(self, view: View, wanted: Callable[[Row], bool]) -> Row | None:
        """The first ready task in (priority, age, id) order that `wanted` accepts."""
        with self._at(view) as db:
            cursor = db.execute(
                f"select {_COLUMNS} from tasks where state='open' and unmet=0 "
                "order by priority desc, added, id"
            )
            now = view.now.timestamp()
            for values in cursor:
                if values[9] is not None and values[9] > now:
                    continue
                row = _row(values)
                if wanted(row):
                    return row
        return None

    def find(self, view: View, task: str) -> Row | None:
        """One task's row."""
        with self._at(view) as db:
            found = db.execute(f"select {_COLUMNS} from tasks where id=?", (task,)).fetchone()
            return _row(found) if found else None

    def live(self, view: View) -> list[Row]:
        """Tasks with a live or queued claim, by id."""
        with self._at(view) as db:
            cursor = db.execute(f"select {_COLUMNS} from tasks where agent<>'' order by id")
            return [_row(found) for found in cursor]

    def rows(self, view: View, state: State | None = None) -> list[Row]:
        """Every task, or those in one state, in pick order."""
        where, values = ("where state=?", (state.value,)) if state else ("", ())
        with self._at(view) as db:
            cursor = db.execute(
                f"select {_COLUMNS} from tasks {where} order by priority desc, added, id", values
            )
            return [_row(found) for found in cursor]

    def ids(self, view: View) -> list[str]:
        """Every task's id, sorted."""
        with self._at(view) as db:
            return [found[0] for found in db.execute("select id from tasks order by id")]

    def needs(self, view: View) -> dict[str, list[str]]:
        """task -> its needs, for tasks that have any."""
        found: dict[str, list[str]] = {}
        with self._at(view) as db:
            for need, task in db.execute("select need, task from needs order by task, need"):
                found.setdefault(task, []).append(need)
        return found

    def counts(self, view: View) -> dict[str, int]:
        """State -> number of tasks; states without tasks are absent."""
        with self._at(view) as db:
            return dict(db.execute("select state, count(*) from tasks group by state"))

    def _bring(self, db: sqlite3.Connection, view: View) -> None:
        found = db.execute("select value from meta where key='tree'").fetchone()
        old = found[0] if found else None
        if old == view.tree:
            return
        if old is not None and not view.hub.reader.has(old):  # another hub's file
            old = None
        if old is None:
            db.execute("delete from tasks")
            db.execute("delete from needs")
        changes: dict[str, dict[str, str | None]] = {}
        for path, _, new in view.hub.reader.iter_changes(old, view.tree):
            folder, _, rest = path.partition("/")
            if folder in _FOLDERS:
                task = rest.rpartition("/")[2].rpartition(".")[0]
                changes.setdefault(task, {})[folder] = new
        if changes:
            self._rewrite(db, view, changes, whole=old is None)
        db.execute("insert or replace into meta values('tree', ?)", (view.tree,))

    def _rewrite(
        self,
        db: sqlite3.Connection,
        view: View,
        changes: dict[str, dict[str, str | None]],
        whole: bool,
    ) -> None:
        oids = [oid for files in changes.values() for oid in files.values() if oid is not None]
        if len(oids) >= _BULK:
            view.blobs.update(zip(oids, view.hub.reader.iter_blobs(oids), strict=True))

        def read(task: str, folder: str) -> bytes | None:
            if whole or folder in changes[task]:
                oid = changes[task].get(folder)
            else:
                oid = view.blob_id(_FOLDERS[folder](task))
            if oid is None:
                return None
            known = view.blobs.get(oid)
            return known if known is not None else view.hub.reader.read(oid, "blob")

        rows = [_derive_row(task, functools.partial(read, task)) for task in changes]
        db.executemany("delete from tasks where id=?", [(task,) for task in changes])
        if not whole:
            db.executemany("delete from needs where task=?", [(task,) for task in changes])
        kept = [row for row in rows if row is not None]
        db.executemany(
            f"insert into tasks({_COLUMNS}) values(?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    row.id,
                    row.state.value,
                    row.title,
                    row.priority,
                    row.added,
                    row.role,
                    json.dumps(row.paths),
                    json.dumps(row.needs),
                    len(row.needs),
                    row.retry_at,
                    row.token,
                    row.strikes,
                    row.agent,
                    row.why,
                )
                for row in kept
            ],
        )
        db.executemany(
            "insert or ignore into needs values(?,?)",
            [(need, row.id) for row in kept for need in row.needs],
        )
        view.blobs.clear()
        _recount(db, None if whole else changes)


def _recount(db: sqlite3.Connection, touched: Iterable[str] | None) -> None:
    """Set `unmet` of the touched tasks and of those that need them; None: of all."""
    count = (
        "update tasks set unmet=(select count(*) from needs n where n.task=tasks.id and not exists"
        "(select 1 from tasks t where t.id=n.need and t.state='landed'))"
    )
    if touched is None:
        db.execute(count + " where needs<>'[]'")
        return
    for task in touched:
        db.execute(
            count + " where id=? or id in (select task from needs where need=?)", (task, task)
        )


_FOLDERS: dict[str, Callable[[str], str]] = {
    "tasks": records.task_path,
    "current_tasks": records.lock_path,
    "queue": records.queue_path,
    "attempts": records.attempts_path,
    "done": records.done_path,
    "parked": records.parked_path,
}


def _derive_row(task: str, read: Callable[[str], bytes | None]) -> Row | None:
    """The row of one task, or None when it has no file but `attempts`."""
    data = read("tasks")
    title, priority, added, role = task, 0, 0.0, ""
    paths: list[str] = []
    needs: list[str] = []
    retry_at: float | None = None
    token = strikes = 0
    agent = why = ""
    try:
        if data is not None:
            header = records.decode_task(data).header
            title, priority, role = header.title, header.priority, header.role
            added, paths, needs = header.added_at.timestamp(), header.paths, header.needs
        raw = read("attempts")
        if raw is not None:
            attempts = records.decode(Attempts, raw)
            token, strikes = attempts.token, len(attempts.strikes)
            retry_at = attempts.retry_at.timestamp() if attempts.retry_at else None
        lock, entry, done, parked = (read(f) for f in ("current_tasks", "queue", "done", "parked"))
        claim = records.decode(Lock, lock) if lock is not None else None
        agent = claim.agent if claim else ""
        parked_record = records.decode(Parked, parked) if parked is not None else None
        state = derive(
            has_task=data is not None,
            lock=claim,
            entry=records.decode(QueueEntry, entry) if entry is not None else None,
            done=records.decode(Done, done) if done is not None else None,
            parked=parked_record,
        )
        if parked_record is not None:
            why = parked_record.message
    except Undecodable as error:
        state, why = State.DAMAGED, str(error)
    if state is State.ABSENT:
        return None
    return Row(
        task,
        state,
        title,
        priority,
        added,
        role,
        tuple(paths),
        tuple(needs),
        len(needs),
        retry_at,
        token,
        strikes,
        agent,
        why,
    )
