"""The team asked to merge a branch that was pushed: `[upstream] pr`, run once.

Enters: what was delivered. Leaves: the command run, and its last line remembered with the push.
Guards: no text of a task or a branch is read as a command; one pull request at a time for a branch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec

from swarm import config as configuration
from swarm import environment, faults, process
from swarm.check import judged
from swarm.errors import UsageError
from swarm.files import alone
from swarm.ids import new_nonce
from swarm.ledger.records import Done, Verdict
from swarm.ledger.view import View, readable
from swarm.overview.target import newest_verdict
from swarm.push import Delivered, newest_push, remember
from swarm.trailers import of_commit, one_line
from swarm.upstream import known_of
from swarm.workspace import Workspace

COMMAND_LIMIT = timedelta(minutes=5)
OUTPUT_CAP = 1 << 20
MOST_LISTED = 200  # tasks in the text
MOST_SAID = 200  # characters of the command's last line that are kept


class PullRequest(msgspec.Struct, frozen=True):
    """What a team is asked to merge."""

    title: str
    body: str  # Markdown


class Opened(msgspec.Struct, frozen=True):
    """The configured command said yes."""

    says: str  # its last line, most often an address; "" none


class OpenedBefore(msgspec.Struct, frozen=True):
    """The branch has a pull request, which shows what was pushed."""

    says: str  # what the command printed then


class NotOpened(msgspec.Struct, frozen=True):
    """The command failed; the branch is pushed all the same."""

    why: str
    output: str


def open_pr(work: Workspace, delivered: Delivered) -> Opened | OpenedBefore | NotOpened:
    """Run `[upstream] pr` for a branch that was pushed; once until that one is merged.

    Raises:
        UsageError: no command is configured.
        GitFault: an object is missing.

    Safe: killed after the command and before it is remembered, it runs again the next time.
    """
    require_command(work)
    folder = work.layout.runs / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(delivered.branch.encode()).hexdigest()[:16]
    with alone(folder / f"{name}.lock"):  # two at once would both be the first
        before = newest_push(known_of(work, work.ledger.view()), delivered.branch)
        if before is not None and before.pr is not None:
            return OpenedBefore(before.pr)
        return _open(work, delivered, folder / f"{name}.md", folder / f"{name}.log")


def _open(work: Workspace, delivered: Delivered, body: Path, log: Path) -> Opened | NotOpened:
    settings = work.config.upstream
    text = compose(work, delivered.there)
    body.write_text(text.body, "utf-8", "replace")
    facts = {
        "SWARM_BRANCH": delivered.branch,
        "SWARM_TARGET": work.config.upstream_branch,
        "SWARM_TITLE": text.title,
        "SWARM_BODY_FILE": str(body),
    }
    own = environment.for_person(os.environ)
    with tempfile.TemporaryDirectory(prefix="swarm-") as tmpdir:
        child = process.start(
            process.Spec(
                argv=("/bin/sh", "-c", configuration.fill_pr(settings.pr)),
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
        return NotOpened(ended.how if ended is not None else "its end is not known", output)
    faults.reach("push.after_pr")
    said = last_line(output)
    remember(work, delivered.branch, delivered.new, said)
    return Opened(said)


def last_line(output: str) -> str:
    """The last words of a command as one printable line, or empty."""
    rows = (one_line(row, MOST_SAID) for row in reversed(output.splitlines()))
    return next((row for row in rows if row), "")


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


def compose(work: Workspace, there: Sequence[str]) -> PullRequest:
    """Title and text: tasks, checks, costs of what the target has beyond these commits."""
    view, hub = work.ledger.view(), work.ledger.hub
    without = [f"^{oid}" for oid in there]
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
    if len(tasks) == 1:
        title = _title(view, tasks[0][0])
    elif tasks:
        title = f"{work.checkout.name}: {len(tasks)} tasks by swarm"
    else:
        title = f"{work.checkout.name}: {view.target_branch} at {view.target[:7]}"
    return PullRequest(one_line(title, 120), "\n".join(_body(work, view, tasks, others)) + "\n")


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
