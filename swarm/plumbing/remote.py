"""The user's own remote, spoken to from the hub in the user's own way.

Enters: a checkout that names the remote, a hub. Leaves: commits in the hub, or on the remote.
Guards: the checkout is read and never written; of the user's configuration only what it takes to
reach the remote is used; nothing is ever forced and nothing ever prompts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swarm.errors import Exit, GitFault, SwarmError, UsageError
from swarm.ids import is_oid
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git, Result
from swarm.plumbing.hub import Hub

TIME_LIMIT = 900.0  # seconds, of one conversation

# Of a user's git configuration: who we are and how to get there. Hooks, filters, signing are not.
_TRANSPORT = re.compile(
    r"(?:credential|http|https|ssh|protocol|gitcredential)\..+"
    r"|core\.(?:sshcommand|gitproxy|askpass)|remote\.[^.]+\.(?:proxy|uploadpack|receivepack)",
    re.IGNORECASE,
)
# Of a user's environment: all but what steers another git, or another swarm.
_GIT_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "GIT_PROXY_COMMAND")


class RemoteUnreachable(SwarmError):
    """The remote did not answer, or would not let us in; nothing was changed."""

    exit_code = Exit.BUSY


@dataclass(frozen=True)
class Remote:
    """Where a remote is and what it takes to reach it. Its text never shows a setting's value."""

    name: str
    url: str = field(repr=False)  # may hold a password
    push_url: str = field(repr=False)
    folder: Path  # relative addresses start here
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    is_unwanted: Callable[[], bool] | None = None  # asked now and then: end the conversation?

    def run(self, hub: Hub, *args: str, ok: tuple[int, ...] = (0,)) -> Result:
        """One git call in the hub that may talk to the remote.

        Raises:
            RemoteUnreachable: git failed; its words, without passwords, say why.
        """
        git = Git(hub.path, config=_PINNED)
        try:
            return git.run(
                *args,
                ok=ok,
                timeout=TIME_LIMIT,
                env=self._environment(),
                cwd=self.folder,
                is_unwanted=self.is_unwanted,
            )
        except GitFault as error:
            raise RemoteUnreachable(
                f"{self.name} cannot be reached: {error.what}",
                why=without_passwords(error.why or "git said nothing"),
                hint=f"git -C {self.folder} ls-remote {self.name}",
            ) from error

    def _environment(self) -> Mapping[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if name in _GIT_KEPT or not name.startswith(("GIT_", "SWARM_"))
        }
        # In the environment: a header with a token must not stand in the list of processes.
        env["GIT_CONFIG_COUNT"] = str(len(self.settings))
        for number, (name, value) in enumerate(self.settings):
            env[f"GIT_CONFIG_KEY_{number}"] = name
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        return env | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


# Auxiliary: addresses like ext:: run programs; only what the user's own git would allow by default.
_PINNED = ("protocol.ext.allow=never", "push.gpgSign=false", "push.followTags=false")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def without_passwords(text: str) -> str:
    """Git's words with whatever stands before the host of an address left out."""
    return _PASSWORD.sub("", text)


def find_remote(
    checkout: Path, name: str, is_unwanted: Callable[[], bool] | None = None
) -> Remote:
    """
    Raises:
        UsageError: the checkout has no such remote.
        GitFault: git cannot read the checkout.
    """
    known = user.remotes(checkout)
    if name not in known:
        listed = ", ".join(sorted(set(known) - {"swarm"}))
        raise UsageError(
            f"this repository has no remote {name}",
            why=f"it has {listed}" if listed else "it has no remote but swarm's own",
            hint=f"git remote add {name} URL"
            if not listed
            else f'in swarm.toml, below [upstream]: remote = "{sorted(set(known) - {"swarm"})[0]}"',
        )
    url, push_url, settings = user.read_remote(checkout, name)
    wanted = tuple((key, value) for key, value in settings if _TRANSPORT.fullmatch(key))
    return Remote(name, url, push_url, checkout, wanted, is_unwanted)


def tip_of(hub: Hub, remote: Remote, branch: str, *, is_push: bool = False) -> str | None:
    """The commit that a branch of the remote holds now; None: there is no such branch.

    Raises:
        RemoteUnreachable: see `Remote.run`.
    """
    url = remote.push_url if is_push else remote.url
    ref = f"refs/heads/{branch}"
    for line in remote.run(hub, "ls-remote", "--", url, ref).lines:
        oid, _, name = line.partition("\t")
        if name == ref and is_oid(oid):
            return oid
    return None


def fetch(hub: Hub, remote: Remote, branch: str) -> str | None:
    """Copy a branch of the remote into the hub, objects checked, no ref moved; its commit.

    None: the remote has no such branch.

    Raises:
        RemoteUnreachable: nothing was taken.
    """
    for _ in range(3):  # it may move between the two conversations
        tip = tip_of(hub, remote, branch)
        if tip is None or hub.is_whole(tip):
            return tip
        fetched = remote.run(
            hub,
            "-c",
            "fetch.fsckObjects=true",
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--no-recurse-submodules",
            "--",
            remote.url,
            tip,
            ok=(0, 1, 128),
        )
        if fetched.code == 0 and hub.is_whole(tip):
            return tip
    raise RemoteUnreachable(
        f"{remote.name} would not give {branch}",
        why=without_passwords(fetched.complaint) or None,
        hint=f"git -C {remote.folder} fetch {remote.name} {branch}",
    )


@dataclass(frozen=True)
class Pushed:
    """The branch of the remote holds the commit now; `old` is what it held, None: it is new."""

    old: str | None


@dataclass(frozen=True)
class NotForward:
    """The branch has commits that ours lacks, or the remote refuses: nothing was pushed."""

    old: str | None
    says: str


def push(hub: Hub, remote: Remote, oid: str, branch: str) -> Pushed | NotForward:
    """Move a branch of the remote forward to a commit of the hub; never forced.

    Raises:
        RemoteUnreachable: whether it was pushed is seen by pushing again.

    Safe: twice is `Pushed` with `old` equal to `oid` the second time.
    """
    old = tip_of(hub, remote, branch, is_push=True)
    if old == oid:
        return Pushed(old)
    if old is not None and not (hub.reader.has(old) and hub.contains(oid, old)):
        return NotForward(old, "it has commits that are not in what would be pushed")
    answer = remote.run(
        hub,
        "push",
        "--porcelain",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        "--",
        remote.push_url,
        f"{oid}:refs/heads/{branch}",
        ok=(0, 1),
    )
    if answer.code == 0:
        return Pushed(old)
    said = [line.split("\t")[-1] for line in answer.lines if line.startswith("!")]
    words = "\n".join([*said, answer.complaint])
    return NotForward(old, without_passwords(words.strip()))
