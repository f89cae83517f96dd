"""The files of the ledger's tree, one frozen struct each, and where each one lies.

Enters: bytes of a blob. Leaves: a typed record, or why it does not decode.
Guards: byte-equal means same record (sorted keys, indented), so a fence compares blob ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from swarm.ids import shard

FORMAT = 1
PERSON = "person"  # the role of tasks that no agent may take: somebody claims them by hand
MANY_STRIKES = 1000  # of a task that is never parked for them
LAYOUT = b"1\n"  # content of the file `format`

Hold = Literal[
    "review",  # `[gate] review = "all"`
    "protected",  # touches a protected path
    "scope",  # touches paths outside the task's own
    "reverted",  # a path goes back to a blob that the target had moved on from
    "large_file",  # a new file over `max_file`
    "secret",  # a file looks like a key, or holds one
    "containment",  # the landing would change what the change did not
    "side_taking",  # a merge commit of the change took one whole side
    "markers",  # conflict markers in what would land
]

Outcome = Literal[
    "landed",
    "check_failed",  # red on a green base, alone too
    "semantic_conflict",  # green alone, red as merged
    "conflict",  # textual
    "check_timed_out",  # slow where the base is fast
    "agent_failed",  # exit, crash or signal
    "over_limit",  # turns, tokens or cost of the attempt or of its task
    "over_budget",  # of the run, whose limits end what works
    "timed_out",  # the attempt's own wall time
    "silent",  # no sign of work
    "no_work",  # nothing that the target lacks
    "unresolved",  # conflict markers or unmerged paths left
    "setup_failed",
    "provider_limit",
    "not_logged_in",
    "stopped",  # a person, or the runner draining
    "expired",
    "asked",
    "given_up",
    "rejected",
    "cancelled",
]

ParkedReason = Literal[
    "strikes", "conflicts", "expiries", "budget", "asked", "not_retryable", "lost"
]
VerdictValue = Literal["passed", "failed", "flaky", "timed_out", "could_not_run"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all ledger files share: a format number; unknown keys are refused."""

    format: Literal[1] = 1


class Lock(Record, frozen=True, kw_only=True):
    """`current_tasks/<task>.lock`: the claim itself. Never changes while the claim lives."""

    task: str
    token: int  # grows by one with each claim of the task
    nonce: str  # makes two identical claims differ
    agent: str  # unique id of the occupant for this attempt
    adapter: str  # "hand" for a claim by hand
    role: str  # the slot's role, "" for any
    slot: str  # s1.. of a loop, h1.. of a claim by hand
    run: str  # "" for a claim by hand
    runner: str  # whose beat keeps it: a run's runner, or hand-<agent>
    host: str
    pid: int  # for people; liveness is the runner's flock and beat
    boot_id: str
    claimed_at: datetime
    claimed_monotonic_seconds: float
    lease_seconds: float
    base: str  # target's tip at the task's first claim
    start: str  # where this attempt's work begins
    merge: str | None  # target's tip that opening merges into `start`, or None


class HoldReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a sealed change waits for a person. An approval fills `approved_at` and stays."""

    reason: Hold
    paths: list[str]
    at: datetime
    approved_at: datetime | None = None
    is_left_out: bool = False  # the paths are in a rescue ref alone; else in what would land


class LeftByAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sealing added for the agent."""

    uncommitted: int  # tracked files that were changed and not committed
    untracked: int  # new files that were never added
    head_was: Literal["branch", "detached"]


class QueueEntry(Record, frozen=True, kw_only=True):
    """`queue/<ab>/<task>.json`: a sealed change that waits for the gate."""

    task: str
    token: int
    nonce: str
    lock: str  # blob id of the lock file at sealing: the byte-for-byte fence
    work: str  # its work ref
    base: str
    start: str
    head: str  # what is merged; later commits are rescued and reported
    commits: int
    files: int
    insertions: int
    deletions: int
    left_by_agent: LeftByAgent
    priority: int
    since: datetime  # first claim: orders by age
    sealed_at: datetime
    hold: list[HoldReason] | None
    is_accepted: bool = False  # by people, where it comes from: nothing holds it here

    @property
    def is_held(self) -> bool:
        """A person's word is missing."""
        return any(h.approved_at is None for h in self.hold or ())

    @property
    def reasons(self) -> list[Hold]:
        """Why it was or is held, each once."""
        return list(dict.fromkeys(h.reason for h in self.hold or ()))


class Strike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One counted failed attempt."""

    token: int
    reason: Outcome


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest saved work of a task."""

    ref: str
    head: str


class Last(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the last attempt ended; what the next one is told."""

    token: int
    outcome: Outcome
    strike: bool
    message: str  # one sentence for people and for the next agent
    detail: str = ""  # what the next agent is told beyond it: output tail, its whole question
    check: str | None = None
    exit_code: int | None = None
    tree: str | None = None  # the tree that was judged
    failing: list[str] = []
    partner: str | None = None  # the landed task with which the change is red
    paths: list[str] = []  # conflicted, unresolved or otherwise named paths
    base_verdict: VerdictValue | None = None
    log: str | None = None  # below the state folder
    ended_at: datetime


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person said to whoever works on a task next."""

    text: str
    by: str
    at: datetime
    token: int  # of the last attempt then: later ones have read it
    question: str | None = None  # of that attempt, which it answers


class Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent says that it used; None: it did not say."""

    cost_usd: float | None = None
    is_priced: bool = False  # the cost is tokens times the adapter's price; else the agent's word
    tokens_input: int | None = None  # all of them, those from a cache too
    tokens_cached: int | None = None  # the part that came from a cache
    tokens_output: int | None = None
    turns: int | None = None

    @property
    def tokens(self) -> int | None:
        """Input and output together; None when either is not known."""
        if self.tokens_input is None or self.tokens_output is None:
            return None
        return self.tokens_input + self.tokens_output


class Charge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one attempt used, written once, when its agent has ended."""

    token: int
    run: str
    adapter: str
    slot: str
    seconds: float  # from the agent's start to its end
    usage: Usage
    session: str | None = None  # the agent's own, by which it can be gone on with
    said: dict[str, float] = {}  # figures as the session said them last, from its own start
    assumed_usd: float = 0.0  # what was reserved for it, when it did not say its cost
    is_free: bool = False  # it was its provider's no: it is no attempt that `task_attempts` counts
    covers: int | None = None  # token of an attempt whose cost came with this one's
    at: datetime


class Attempts(Record, frozen=True, kw_only=True):
    """`attempts/<ab>/<task>.json`: from the first claim on, never deleted."""

    task: str
    token: int  # last one given; never falls
    base: str  # target's tip at the first claim
    since: datetime  # first claim
    strikes: list[Strike] = []
    conflicts: int = 0
    expiries: int = 0  # in a row
    extensions: int = 0  # of the live claim
    retry_at: datetime | None = None  # back-off runs until then
    work: Work | None = None
    last: Last | None = None
    sent_back: Last | None = None  # the last time its change was, when `last` is another end
    told: list[Told] = []  # oldest first; until it has landed
    charges: list[Charge] = []  # one for each attempt whose agent was started; oldest first
    budget_from: int = 0  # `[limits] task_*` count attempts after this one: a person reopened it


class Done(Record, frozen=True, kw_only=True):
    """`done/<ab>/<task>.json`: landed or cancelled."""

    task: str
    result: Literal["landed", "cancelled"]
    token: int
    landed: str | None = None  # the landing commit: decides, never the head
    previous: str | None = None  # its first parent
    head: str | None = None
    tree: str | None = None
    verdicts: list[str] = []  # `<tree>-<check>-<definition12>` of every check that applied
    message: str = ""  # why it was cancelled
    run: str = ""  # whose claim it was; "" for one by hand
    at: datetime


class Parked(Record, frozen=True, kw_only=True):
    """`parked/<ab>/<task>.json`: out of strikes, or cannot go on."""

    task: str
    reason: ParkedReason
    message: str
    question: str | None = None
    strikes: list[Strike] = []
    work: Work | None = None
    at: datetime


class CheckRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One execution of a check's command."""

    exit_code: int | None
    signal: int | None
    seconds: float
    host: str
    at: datetime


class Verdict(Record, frozen=True, kw_only=True):
    """`verdicts/<ab>/<tree>-<check>-<definition12>.json`: what a check says of one exact tree."""

    tree: str  # what was judged: a tree, a digest of declared paths, or a commit
    check: str
    definition: str  # sha256 of the check's canonical definition and environment
    verdict: VerdictValue
    failing: list[str] = []
    tail: str = ""
    why: str = ""  # of could_not_run: which file changed, which program is missing
    runs: list[CheckRun]
    log: str | None = None

    @property
    def key(self) -> str:
        """Its file's name without `.json`."""
        return f"{self.tree}-{self.check}-{self.definition[:12]}"


class Paused(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why nothing lands."""

    why: str
    by: Literal["person", "gate"]
    task: str | None = None  # the fix-main task that may land all the same
    at: datetime


class Gate(Record, frozen=True, kw_only=True):
    """`gate.json`: the gate's own claim, or that it is free, and whether it is paused."""

    token: int
    nonce: str
    runner: str | None  # None: free
    host: str | None
    pid: int | None
    boot_id: str | None
    taken_at: datetime | None
    taken_monotonic_seconds: float | None
    lease_seconds: float | None
    paused: Paused | None = None


def free_gate(token: int, nonce: str, paused: Paused | None = None) -> Gate:
    """A gate that nobody has."""
    return Gate(
        token=token,
        nonce=nonce,
        runner=None,
        host=None,
        pid=None,
        boot_id=None,
        taken_at=None,
        taken_monotonic_seconds=None,
        lease_seconds=None,
        paused=paused,
    )


class LandingChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of the landing in flight."""

    task: str
    token: int
    head: str
    landed: str  # its landing commit
    previous: str  # that commit's first parent
    tree: str
    verdicts: list[str]
    entry: str  # blob id of the queue entry it was built from
    lock: str  # blob id of the lock


class Landing(Record, frozen=True, kw_only=True):
    """`landing.json`: written before the target moves, so that a crash can be settled."""

    gate_token: int
    target: str  # branch name
    old: str
    new: str
    changes: list[LandingChange]
    at: datetime


class Run(Record, frozen=True, kw_only=True):
    """`runs/<run>.json`: limits, reserved, spent."""

    run: str
    runner: str
    host: str
    pid: int
    boot_id: str
    slots: int
    adapter: str
    started_at: datetime
    started_monotonic_seconds: float
    config_digest: str
    state: Literal["running", "draining", "ended"]
    ended_at: datetime | None = None
    why: str = ""  # why it ended
    exit_code: int | None = None  # of the command; None: it has not ended, or was killed
    limits: dict[str, float] = {}  # those of `[limits] run_*` that are set
    reserved: dict[str, float] = {}  # `<task>/<token>` of a live attempt -> USD that it may cost
    spent_usd: float | None = None  # None: no attempt said
    assumed_usd: float = 0.0  # attempts that did not say may have cost: what was reserved for each
    spent_tokens: int | None = None  # the same
    attempts: int = 0  # that were charged
    attempts_unknown: int = 0  # of these: their cost is not known
    attempts_mute: int = 0  # of these: their tokens are not known


class Push(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was pushed to a branch of the upstream remote."""

    branch: str
    oid: str
    at: datetime
    pr: str | None = None  # the last line of `[upstream] pr`, once it said yes; None: to be run


class Upstream(Record, frozen=True, kw_only=True):
    """`upstream.json`: what is known of the user's own remote branch."""

    remote: str
    branch: str
    tip: str | None = None  # the newest commit of it that was taken, or is on its way
    task: str | None = None  # the task that brought it, or brings it
    taken_at: datetime | None = None
    rewritten: str | None = None  # a tip that lacks `tip`: it was rewritten, and was not taken
    pushes: list[Push] = []  # newest last


class TaskHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of `tasks/<ab>/<task>.md`, normalised."""

    id: str
    title: str
    added_at: datetime  # orders by age; an edit keeps it
    needs: list[str] = []
    priority: int = 0
    role: str = ""
    paths: list[str] = []
    checks: list[str] = []
    timeout: str | None = None  # as written: 20m
    strikes: int | None = None
    source: str = ""
    joins_history: bool = False  # lands as a merge that keeps its commits, whatever the style
    undoes: list[str] = []  # landed tasks whose landings it takes back


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the ledger holds it: header and the text as written."""

    header: TaskHeader
    body: str

    @property
    def id(self) -> str:
        """Its folded id."""
        return self.header.id


R = TypeVar("R", bound=msgspec.Struct)


def task_path(task: str) -> str:
    return f"tasks/{shard(task)}/{task}.md"


def lock_path(task: str) -> str:
    return f"current_tasks/{task}.lock"


def queue_path(task: str) -> str:
    return f"queue/{shard(task)}/{task}.json"


def attempts_path(task: str) -> str:
    return f"attempts/{shard(task)}/{task}.json"


def done_path(task: str) -> str:
    return f"done/{shard(task)}/{task}.json"


def parked_path(task: str) -> str:
    return f"parked/{shard(task)}/{task}.json"


def verdict_path(key: str) -> str:
    """`key` is `<judged>-<check>-<definition12>`; sharded by what was judged."""
    return f"verdicts/{shard(key.split('-', 1)[0])}/{key}.json"


def run_path(run: str) -> str:
    return f"runs/{run}.json"


GATE_PATH = "gate.json"
LANDING_PATH = "landing.json"
UPSTREAM_PATH = "upstream.json"
FORMAT_PATH = "format"


class Undecodable(ValueError):
    """A record's bytes are not what its place in the tree says; the message names the fault."""


def encode(record: Record) -> bytes:
    """Indented JSON, keys sorted, newline at the end: equal records are equal blobs.

    What is not UTF-8 (in a file's name that an agent chose) is spelled out, as `\\udce9`.
    """
    return _indented(record) + b"\n"


def _indented(struct: msgspec.Struct) -> bytes:
    try:
        packed = msgspec.json.encode(struct, order="sorted")
    except UnicodeEncodeError:
        packed = msgspec.json.encode(_spelled_out(msgspec.to_builtins(struct)), order="sorted")
    return msgspec.json.format(packed, indent=2)


def _spelled_out(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_spelled_out(item) for item in value]
        case dict():
            return {_spelled_out(key): _spelled_out(item) for key, item in value.items()}
        case _:
            return value


def decode(kind: type[R], data: bytes) -> R:
    """
    Raises:
        Undecodable: not UTF-8 JSON, a missing, unknown or wrongly typed key, another format.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"{kind.__name__.lower()} record: {error}") from error


_FENCE = b"---\n"


def encode_task(task: Task) -> bytes:
    """The task as Markdown: a JSON header (which is YAML) between `---` lines, then the text."""
    body = task.body.encode("utf-8", "backslashreplace")
    return _FENCE + _indented(task.header) + b"\n" + _FENCE + body


def decode_task(data: bytes) -> Task:
    """
    Raises:
        Undecodable: no header, or one that does not decode.
    """
    head, sep, body = data.removeprefix(_FENCE).partition(b"\n" + _FENCE)
    if not data.startswith(_FENCE) or not sep:
        raise Undecodable("task record: no header")
    try:
        return Task(header=decode(TaskHeader, head), body=body.decode())
    except UnicodeDecodeError as error:
        raise Undecodable(f"task record: {error}") from error


def jsonable(record: msgspec.Struct | Sequence[msgspec.Struct]) -> Any:
    """Plain lists and dicts, times as RFC 3339 text: what `--json` prints."""
    return msgspec.to_builtins(record)
