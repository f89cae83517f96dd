"""The state cache: one row per task, derived from the ledger, forgettable at any time.

Enters: a view. Leaves: tasks in pick order, counts, rows for listings.
Guards: it is keyed by the ledger's tip and brought to the asked view by comparing trees, so its
answers are those of that view or it is rebuilt; nothing is ever decided by it alone.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from swarm.errors import GitFault, HubUnusable
from swarm.ledger import records
from swarm.ledger.records import Attempts, Done, Lock, Parked, QueueEntry, Undecodable
from swarm.ledger.view import State, View, derive

_VERSION = 1
_BUSY_SECONDS = 30.0
_BULK = 200  # changed files from which they are read in one stream

_TABLES = ("meta", "tasks", "needs")
_SCHEMA = (
    "create table meta(key text primary key, value text) without rowid",
    "create table tasks("
    "id text primary key, state text not null, title text not null, priority integer not null, "
    "added real not null, role text not null, paths text not null, needs text not null, "
    "unmet integer not null, retry_at real, token integer not null, strikes integer not null, "
    "agent text not null, why text not null) without rowid",
    "create table needs(need text, task text, primary key(need, task)) without rowid",
)


_INDEXES = {
    "by_agent": "tasks(agent) where agent<>''",
    "pick": "tasks(state, unmet, priority desc, added, id)",
}


class Row(NamedTuple):
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


_COLUMNS = ", ".join(Row._fields)
_STATES = {state.value: state for state in State}


def _row(values: tuple[Any, ...]) -> Row:
    id_, state, title, priority, added, role, paths, needs, *rest = values
    return Row(id_, _STATES[state], title, priority, added, role, _list(paths), _list(needs), *rest)


def _list(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(json.loads(text))


def _text(values: tuple[str, ...]) -> str:
    return json.dumps(values) if values else "[]"


class Index:
    """The cache in one SQLite file, shared by the processes of a host; None keeps it in memory.

    Safe: processes and threads; a broken or foreign file is deleted and built again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._tree: str | None = None  # of the view that a transaction is open for

    def close(self) -> None:
        with self._mutex:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(
                str(self._path or ":memory:"),
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                _prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _forget(self) -> None:
        self.close()
        if self._path is not None:
            for name in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def at(self, view: View) -> Iterator[sqlite3.Connection]:
        """The database at the view's tip, for the length of a transaction.

        Questions asked inside about the same view share the transaction. Where nothing has to be
        brought forward it only reads, and waits for nobody.
        """
        with self._mutex:
            if self._tree is not None:
                assert self._db is not None and self._tree == view.tree
                yield self._db
                return
            try:
                db = self._begin(view)
            except (sqlite3.DatabaseError, OSError) as error:
                if _is_busy(error):  # others are at work in it: not a reason to delete it
                    self.close()
                    raise HubUnusable(
                        "the state cache is busy", why=str(error), hint=f"fuser -v {self._path}"
                    ) from error
                db = self._begin_anew(view)
            self._tree = view.tree
            try:
                yield db
            except BaseException:
                _roll_back(db)
                raise
            finally:
                self._tree = None
            try:
                db.execute("commit")
            except sqlite3.DatabaseError:  # what was asked is answered; only the cache is not kept
                _roll_back(db)
                self.close()

    def _begin_anew(self, view: View) -> sqlite3.Connection:
        """From scratch: in a new file, or in memory where none can be written (a full disk)."""
        try:
            self._forget()
            return self._begin(view)
        except (sqlite3.DatabaseError, OSError):
            if self._path is None:
                raise
            self.close()
            self._path = None
            return self._begin(view)

    def _begin(self, view: View) -> sqlite3.Connection:
        db = self._open()
        db.execute("begin")
        if _tree_of(db) == view.tree:
            return db
        db.execute("rollback")
        db.execute("begin immediate")
        try:
            self._bring(db, view)
        except BaseException:
            _roll_back(db)
            raise
        return db

    def first_ready(self, view: View, wanted: Callable[[Row], bool]) -> Row | None:
        """The first ready task in (priority, age, id) order that `wanted` accepts."""
        with self.at(view) as db:
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
        with self.at(view) as db:
            found = db.execute(f"select {_COLUMNS} from tasks where id=?", (task,)).fetchone()
            return _row(found) if found else None

    def live(self, view: View) -> list[Row]:
        """Tasks with a live or queued claim, by id."""
        with self.at(view) as db:
            # Named, or the planner walks all tasks by id to save itself the sort of a few.
            cursor = db.execute(
                f"select {_COLUMNS} from tasks indexed by by_agent where agent<>'' order by id"
            )
            return [_row(found) for found in cursor]

    def rows(self, view: View, state: State | None = None) -> list[Row]:
        """Every task, or those in one state, in pick order."""
        where, values = ("where state=?", (state.value,)) if state else ("", ())
        with self.at(view) as db:
            cursor = db.execute(
                f"select {_COLUMNS} from tasks {where} order by priority desc, added, id", values
            )
            return [_row(found) for found in cursor]

    def ids(self, view: View) -> list[str]:
        """Every task's id, sorted."""
        with self.at(view) as db:
            return [found[0] for found in db.execute("select id from tasks order by id")]

    def needs(self, view: View) -> dict[str, list[str]]:
        """task -> its needs, for tasks that have any."""
        found: dict[str, list[str]] = {}
        with self.at(view) as db:
            for need, task in db.execute("select need, task from needs order by task, need"):
                found.setdefault(task, []).append(need)
        return found

    def counts(self, view: View) -> dict[str, int]:
        """State -> number of tasks; states without tasks are absent."""
        with self.at(view) as db:
            return dict(db.execute("select state, count(*) from tasks group by state"))

    def advance(self, view: View, tree: str, edits: Mapping[str, bytes | None]) -> None:
        """Bring a cache that is at `view` to the tree that an event just made of it.

        The writer has at hand what the next one would have to read and compare under its turn.
        Fails never: where it does nothing, the next question brings the cache forward.
        """
        changes: dict[str, dict[str, str | None]] = {}
        contents: dict[str, bytes] = {}
        for path, content in edits.items():
            folder, task = _folder_and_task(path)
            if folder in _FOLDERS:
                changes.setdefault(task, {})[folder] = None if content is None else path
                if content is not None:
                    contents[path] = content
        with self._mutex:
            db = self._db
            if db is None or self._tree is not None:
                return
            try:
                db.execute("begin immediate")
                if _tree_of(db) == view.tree:
                    self._rewrite(db, view, changes, contents, whole=False)
                    db.execute("insert or replace into meta values('tree', ?)", (tree,))
                db.execute("commit")
            except (sqlite3.Error, GitFault):
                with contextlib.suppress(sqlite3.Error):
                    db.execute("rollback")

    def _bring(self, db: sqlite3.Connection, view: View) -> None:
        old = _tree_of(db)
        if old == view.tree:  # another process was quicker
            return
        try:
            changes = _changes(view, old)
        except GitFault:  # the file is of another hub, or its tree was collected
            old = None
            changes = _changes(view, None)
        if old is None:
            db.execute("delete from tasks")
            db.execute("delete from needs")
            for name in _INDEXES:  # made again below: half the price of filling them row by row
                db.execute(f"drop index if exists {name}")
        oids = [oid for files in changes.values() for oid in files.values() if oid is not None]
        contents: dict[str, bytes] = {}
        if len(oids) >= _BULK:
            contents.update(zip(oids, view.hub.reader.iter_blobs(oids), strict=True))
        self._rewrite(db, view, changes, contents, whole=old is None)
        if old is None:
            _make_indexes(db)
        db.execute("insert or replace into meta values('tree', ?)", (view.tree,))

    def _rewrite(
        self,
        db: sqlite3.Connection,
        view: View,
        changes: dict[str, dict[str, str | None]],
        contents: Mapping[str, bytes],
        whole: bool,
    ) -> None:
        """Replace the rows of the changed tasks; what `contents` lacks is read by its id."""
        needs: list[tuple[str, str]] = []

        def iter_rows() -> Iterator[tuple[object, ...]]:
            for task in sorted(changes):
                oids_of = changes[task] if whole else _all_files(view, task) | changes[task]
                files: dict[str, bytes] = {}
                for folder, oid in oids_of.items():
                    if oid is not None:
                        known = contents.get(oid)
                        if known is None:
                            known = view.hub.reader.read(oid, "blob")
                        files[folder] = known
                row = _derive_row(task, files)
                if row is not None:
                    needs.extend((need, task) for need in row.needs)
                    lists = _text(row.paths), _text(row.needs)
                    yield (task, row.state.value, *row[2:6], *lists, *row[8:])

        if not whole:
            db.executemany("delete from tasks where id=?", [(task,) for task in changes])
            db.executemany("delete from needs where task=?", [(task,) for task in changes])
        db.executemany(
            f"insert into tasks({_COLUMNS}) values({', '.join('?' * len(Row._fields))})",
            iter_rows(),
        )
        db.executemany("insert or ignore into needs values(?,?)", needs)
        _recount(db, None if whole else changes)


def _tree_of(db: sqlite3.Connection) -> str | None:
    """The ledger tree whose rows the database holds."""
    found = db.execute("select value from meta where key='tree'").fetchone()
    return found[0] if found else None


def _make_indexes(db: sqlite3.Connection) -> None:
    for name, what in _INDEXES.items():
        db.execute(f"create index if not exists {name} on {what}")


def _changes(view: View, old: str | None) -> dict[str, dict[str, str | None]]:
    """task -> folder -> blob of what differs between a tree and the view's; None: removed."""
    changes: dict[str, dict[str, str | None]] = {}
    for path, _, new in view.hub.reader.iter_changes(old, view.tree):
        folder, task = _folder_and_task(path)
        if folder in _FOLDERS:
            changes.setdefault(task, {})[folder] = new
    return changes


def _folder_and_task(path: str) -> tuple[str, str]:
    folder, _, rest = path.partition("/")
    return folder, rest.rpartition("/")[2].rpartition(".")[0]


def _all_files(view: View, task: str) -> dict[str, str | None]:
    return {folder: view.blob_id(path(task)) for folder, path in _FOLDERS.items()}


def _prepare(db: sqlite3.Connection) -> None:
    """Settings and tables; when several processes meet an empty file, one of them makes them."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:  # SQLite does not wait by itself for the one moment of this change
        try:
            db.execute("pragma journal_mode=wal")
            break
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    db.execute("pragma synchronous=off")
    if db.execute("pragma user_version").fetchone()[0] == _VERSION:
        return
    db.execute("begin immediate")
    if db.execute("pragma user_version").fetchone()[0] != _VERSION:
        for statement in (*(f"drop table if exists {name}" for name in _TABLES), *_SCHEMA):
            db.execute(statement)
        _make_indexes(db)
        db.execute(f"pragma user_version={_VERSION}")
    db.execute("commit")


def _roll_back(db: sqlite3.Connection) -> None:
    """A transaction that failed may have ended by itself."""
    with contextlib.suppress(sqlite3.Error):
        db.execute("rollback")


def _is_busy(error: Exception) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


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


def _derive_row(task: str, files: Mapping[str, bytes]) -> Row | None:
    """The row of one task from its files by folder; None when it has none but `attempts`."""
    data = files.get("tasks")
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
        raw = files.get("attempts")
        if raw is not None:
            attempts = records.decode(Attempts, raw)
            token, strikes = attempts.token, len(attempts.strikes)
            retry_at = attempts.retry_at.timestamp() if attempts.retry_at else None
        lock, entry = files.get("current_tasks"), files.get("queue")
        done, parked = files.get("done"), files.get("parked")
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
