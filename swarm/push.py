"""What landed, given to the team: a branch of the upstream remote, and a request to merge it.

Enters: a workspace, a branch's name. Leaves: the branch moved forward, a command run.
Guards: never forced, never red; no text of a task is read as a command; a request is made once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from swarm import config as configuration
from swarm import faults, process
from swarm.check import judged
from swarm.errors import SwarmError, TargetRed, UsageError
from swarm.ids import new_nonce
from swarm.ledger.events import Event
from swarm.ledger.records import Done, Push, Upstream, Verdict
from swarm.ledger.store import Draft, refuse
from swarm.ledger.view import View, readable
from swarm.overview.moment import read_moment
from swarm.overview.target import newest_verdict, target_of
from swarm.plumbing import remote as remotes
from swarm.trailers import of_commit, one_line
from swarm.upstream import Fetched, fetch, had_there, record_of, upstream_event
from swarm.workspace import Workspace

KEPT = 20  # branches whose last push is remembered, and as many pushes before those
COMMAND_LIMIT = timedelta(minutes=5)
OUTPUT_CAP = 1 << 20
MOST_LISTED = 200  # tasks in a request's text


@dataclass(frozen=True)
class Delivered:
    """The branch of the remote holds the target's tip; `old` is what it held before."""

    remote: str
    branch: str
    old: str | None  # None: the branch is new
    new: str


@dataclass(frozen=True)
class Refused:
    """The branch could not be moved forward; nothing was pushed."""

    remote: str
    branch: str
    says: str
    is_upstream: bool  # it is the branch that `swarm sync` brings in


def branch_name(work: Workspace, named: str | None) -> str:
    """The branch to push to: the one that was named, else as `[upstream] push_branch` says.

    Raises:
        UsageError: it is no name of a branch, or names a run and there was none.
    """
    pattern = named if named is not None else work.config.upstream.push_branch
    if named is None:
        runs = sorted(work.ledger.view().runs(), key=lambda run: run.started_at)
        if "{run}" in pattern and not runs:
            raise UsageError(
                "there has been no run to name the branch after",
                hint=f"swarm push --branch swarm/{work.config.target}",
            )
        run = runs[-1].run if runs else ""
        pattern = configuration.fill_branch(pattern, run=run, target=work.config.target)
    try:
        return configuration.read_branch(pattern)
    except ValueError as error:
        raise UsageError(f"--branch: {error}", hint="swarm push --branch swarm/work") from error


def deliver(work: Workspace, branch: str) -> Delivered | Refused:
    """Move a branch of the upstream remote forward to the target's tip, and remember it.

    Raises:
        UsageError: the checkout has no such remote.
        TargetRed: a check is known to fail on the tip; nothing was pushed.
        RemoteUnreachable: whether it was pushed is seen by doing it again.

    Safe: killed anywhere, again: a branch that holds the tip already is only remembered.
    """
    settings, hub = work.config.upstream, work.ledger.hub
    moment = read_moment(work)
    target = target_of(moment)
    tip = moment.view.target or hub.tip(target.branch)  # an empty one would delete the branch
    if target.verdict is not None and target.verdict.value == "failed":
        raise TargetRed(
            f"{target.branch} {tip[:7]} is red: {target.verdict.check} failed; nothing was pushed",
            hint="swarm run --allow-red",
        )
    remote = remotes.find_remote(work.checkout, settings.remote)
    old = remotes.tip_of(hub, remote, branch, is_push=True)
    if old is None:
        _forget_request(work, branch)
    answer = remotes.push(hub, remote, tip, branch, old)
    if isinstance(answer, remotes.NotForward):
        is_upstream = branch == (settings.branch or work.config.target)
        return Refused(settings.remote, branch, answer.says, is_upstream)
    faults.reach("push.after_push")
    _remember(work, Push(branch=branch, oid=tip, at=moment.view.now))
    faults.reach("push.after_record")
    return Delivered(settings.remote, branch, answer.old, tip)


def _record(work: Workspace, view: View) -> Upstream:
    settings = work.config.upstream
    return record_of(view, settings.remote, settings.branch or work.config.target)


def _newest(record: Upstream, branch: str) -> Push | None:
    return next((push for push in reversed(record.pushes) if push.branch == branch), None)


def _remember(work: Workspace, push: Push) -> None:
    """Write what a branch holds."""

    def decide(view: View) -> Draft[None]:
        known = _record(work, view)
        before = _newest(known, push.branch)
        has_request = push.has_request or (before is not None and before.has_request)
        if before is not None and (before.oid, before.has_request) == (push.oid, has_request):
            return refuse(None)
        after = msgspec.structs.replace(push, has_request=has_request, at=view.now)
        says = f"{known.remote}/{push.branch} holds {push.oid[:7]}"
        says += ", and its merge was asked for" if has_request else ""
        return Draft((_pushed(known, after, says),), None)

    work.ledger.append(decide)


def _forget_request(work: Workspace, branch: str) -> None:
    """The branch is not there: when it is new again its merge is asked for again.

    Before the push: killed after it, the next one finds a branch that is there.
    """

    def decide(view: View) -> Draft[None]:
        known = _record(work, view)
        before = _newest(known, branch)
        if before is None or not before.has_request:
            return refuse(None)
        after = msgspec.structs.replace(before, has_request=False, at=view.now)
        return Draft((_pushed(known, after, f"{known.remote}/{branch} is gone"),), None)

    work.ledger.append(decide)


def _pushed(known: Upstream, push: Push, says: str) -> Event:
    """The event that makes this the newest push of its branch."""
    earlier = [p for p in known.pushes if (p.branch, p.oid) != (push.branch, push.oid)]
    pushes = [*earlier, push]
    newest: dict[str, Push] = {}
    for known_push in reversed(pushes):
        newest.setdefault(known_push.branch, known_push)
    kept = list(newest.values())[:KEPT]
    kept += [p for p in pushes if p not in kept][-KEPT:]  # what was squashed may be an older one
    record = msgspec.structs.replace(known, pushes=[p for p in pushes if p in kept])
    facts = {"Swarm-Branch": push.branch, "Swarm-Head": push.oid}
    return upstream_event("pushed", says, record, facts)


# The request


@dataclass(frozen=True)
class Request:
    """What a team is asked to merge."""

    title: str
    body: str  # Markdown


@dataclass(frozen=True)
class Asked:
    """The configured command said yes."""

    output: str


@dataclass(frozen=True)
class AskedBefore:
    """The branch has a request, which shows what was pushed."""


@dataclass(frozen=True)
class NotAsked:
    """The command failed; the branch is pushed all the same."""

    why: str
    output: str


def ask(work: Workspace, delivered: Delivered) -> Asked | AskedBefore | NotAsked:
    """Run `[upstream] pr` for a branch that was pushed; once as long as the branch is there.

    Raises:
        UsageError: no command is configured.

    Safe: killed after the command and before it is remembered, it runs again the next time.
    """
    require_command(work)
    folder = work.layout.runs / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(delivered.branch.encode()).hexdigest()[:16]
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two who ask at once would both be the first
        before = _newest(_record(work, work.ledger.view()), delivered.branch)
        if before is not None and before.has_request:
            return AskedBefore()
        return _ask(work, delivered, folder / f"{name}.md", folder / f"{name}.log")


def _ask(work: Workspace, delivered: Delivered, body: Path, log: Path) -> Asked | NotAsked:
    settings = work.config.upstream
    request = compose(work)
    body.write_text(request.body, "utf-8", "replace")
    facts = {
        "SWARM_BRANCH": delivered.branch,
        "SWARM_TARGET": settings.branch or work.config.target,
        "SWARM_TITLE": request.title,
        "SWARM_BODY_FILE": str(body),
    }
    own = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "SWARM_"))}
    with tempfile.TemporaryDirectory(prefix="swarm-") as tmpdir:
        child = process.start(
            process.Spec(
                argv=("/bin/sh", "-c", configuration.fill_request(settings.pr)),
                cwd=work.checkout,
                env=own | facts | {"TMPDIR": tmpdir},
                stdout=log,
                output_cap=OUTPUT_CAP,
                mark=f"push.{new_nonce()[:12]}",
                time_limit=COMMAND_LIMIT,
                grace=work.config.limits.grace,
            )
        )
        try:
            ended = child.wait()
        except BaseException:
            child.kill_now("interrupted")
            child.wait(30)
            raise
    output = log.read_text("utf-8", "replace")
    if ended is None or ended.exit_code != 0:
        how = "timed out" if ended and ended.timed_out else f"exit code {ended and ended.exit_code}"
        return NotAsked(how, output)
    faults.reach("push.after_request")
    push = Push(
        branch=delivered.branch, oid=delivered.new, at=work.ledger.clock.now(), has_request=True
    )
    _remember(work, push)
    return Asked(output)


def require_command(work: Workspace) -> None:
    """
    Raises:
        UsageError: no command is configured.
    """
    if not work.config.upstream.pr.strip():
        raise UsageError(
            "no command makes a pull request: [upstream] pr is empty",
            hint='[upstream]\npr = "gh pr create --head {branch} --base {target} --title {title} '
            '--body-file {body_file}"',
        )


def compose(work: Workspace) -> Request:
    """The request's title and text: tasks, checks, costs of what upstream lacks."""
    view, hub = work.ledger.view(), work.ledger.hub
    without = [f"^{oid}" for oid in _there(work, view)]
    steps = hub.git.run("rev-list", "--first-parent", "--reverse", view.target, *without).lines
    landed: list[tuple[str, Done]] = []
    others = 0
    for oid in steps:
        name = of_commit(hub.reader.commit(oid)).trailers.get("Swarm-Task", "")
        done = readable(view.done, name) if name else None
        if done is not None and done.landed == oid:
            landed.append((name, done))
        else:
            others += 1
    tasks = [row for row in landed if not _is_join(view, row[0])]
    title = f"{work.checkout.name}: {len(tasks)} tasks by swarm"
    if len(tasks) == 1:
        title = _title(view, tasks[0][0])
    return Request(one_line(title, 120), "\n".join(_body(work, view, tasks, others)) + "\n")


def _there(work: Workspace, view: View) -> list[str]:
    """Commits beyond which upstream lacks what the target has; as known when it does not answer."""
    try:
        return had_there(work, view, fetch(work))
    except SwarmError:
        known = _record(work, view)
        if known.tip is None or not work.ledger.hub.reader.has(known.tip):
            return []
        return had_there(work, view, Fetched(known.remote, known.branch, known.tip))


def _is_join(view: View, task: str) -> bool:
    found = readable(view.task, task)
    return found is not None and found.header.joins_history


def _title(view: View, task: str) -> str:
    found = readable(view.task, task)
    return one_line(found.header.title, 120) if found is not None else task


def _body(work: Workspace, view: View, tasks: list[tuple[str, Done]], others: int) -> Iterator[str]:
    yield "Each of these landed by itself, after its checks had passed on the merged tree."
    yield ""
    for name, done in tasks[:MOST_LISTED]:
        stat = ""
        if done.previous is not None and done.landed is not None:
            files, plus, minus = view.hub.diff_stat(done.previous, done.landed)
            stat = f", {files} file{'s' if files != 1 else ''} +{plus} -{minus}"
        again = f", attempt {done.token}" if done.token > 1 else ""
        yield f"- {name}: {_title(view, name)} ({(done.landed or '')[:7]}{stat}{again})"
    if len(tasks) > MOST_LISTED:
        yield f"- and {len(tasks) - MOST_LISTED} more"
    if others:
        yield f"- and {others} commit{'s' if others != 1 else ''} that no task landed"
    yield ""
    for check in work.config.checks:
        if check.when == "always":
            key = judged(view.hub, check, view.target)
            _, verdict = newest_verdict(view, view.tree, key, check.name)
            yield f"- check {check.name} on {view.target[:7]}: {_said(verdict)}"
    attempts = sum(done.token for _, done in tasks)
    yield f"- cost: unknown, {attempts} attempt{'s' if attempts != 1 else ''}"


def _said(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    took = f" in {verdict.runs[-1].seconds:.1f}s" if verdict.runs else ""
    return verdict.verdict.replace("_", " ") + took
