"""The user's own remote, spoken to from the hub in the user's own way.

Enters: a checkout that names the remote, a hub. Leaves: commits in the hub, or on the remote.
Guards: the checkout is read and never written; of the user's configuration only what it takes to
reach the remote is used; nothing is ever forced, nothing asks on a terminal, no password is shown.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from swarm.config import shown
from swarm.errors import Exit, GitFault, SwarmError, UsageError
from swarm.ids import is_oid
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git, Result
from swarm.plumbing.hub import Hub

TIME_LIMIT = 900.0  # seconds, of one conversation that may carry objects
LOOK_LIMIT = 60.0  # of one that only asks what a branch holds
MOST_SAID = 20  # lines

# Of a user's git configuration: who we are and how to get there. Hooks, filters, signing are not.
_TRANSPORT = re.compile(
    r"(?:credential|http|https|ssh|protocol|gitcredential)\..+"
    r"|core\.(?:sshcommand|gitproxy|askpass)"
    r"|fetch\.fsck\..+",  # what a person lets pass of an old history's flaws
    re.IGNORECASE,
)
_OF_REMOTE = frozenset({"proxy", "proxyauthmethod", "uploadpack", "receivepack", "vcs"})
# What git calls the remote in the hub, whose own configuration may have others.
_NAME = "swarm-upstream"
# Of a user's environment: all but what steers another git, or another swarm.
_GIT_KEPT = re.compile(
    r"GIT_(?:SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|PROXY_COMMAND|ALLOW_PROTOCOL|SSL_\w+|PROXY_SSL_\w+)"
)


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
    trusted: tuple[str, ...] = ()  # `safe.directory`, in order
    is_unwanted: Callable[[], bool] | None = None  # asked now and then: end the conversation?

    def run(
        self, hub: Hub, *args: str, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        """One git call in the hub that may talk to the remote, which it calls `_NAME`.

        Raises:
            RemoteUnreachable: git failed; its words, without passwords, say why.
        """
        git = Git(hub.path, config=_PINNED)
        try:
            with self._trusted() as trusted:
                return git.run(
                    *args,
                    ok=ok,
                    timeout=timeout,
                    env={**self._environment(), **trusted},
                    cwd=self.folder,
                    is_unwanted=self.is_unwanted,
                    ends_with_us=True,
                )
        except GitFault as error:
            raise RemoteUnreachable(
                f"{shown(self.name)} cannot be reached: {error.what}",
                why=words(error.why or "git said nothing"),
                hint=self.hint("ls-remote", self.name),
            ) from error

    def hint(self, *args: str) -> str:
        """The same by the user's own git, to be pasted."""
        return shlex.join(["git", "-C", str(self.folder), *args])

    @contextmanager
    def _trusted(self) -> Iterator[Mapping[str, str]]:
        """A remote in a folder of another user is opened by a git that looks for this setting in
        files alone.
        """
        if not self.trusted:
            yield {}
            return
        with tempfile.NamedTemporaryFile("w", prefix="swarm-", suffix=".gitconfig") as file:
            for path in self.trusted:
                escaped = path.replace("\\", "\\\\").replace('"', '\\"')
                file.write(f'[safe]\n\tdirectory = "{escaped}"\n')
            file.flush()
            yield {"GIT_CONFIG_GLOBAL": file.name}

    def _environment(self) -> Mapping[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if _GIT_KEPT.fullmatch(name) or not name.startswith(("GIT_", "SWARM_"))
        }
        # In the environment: a password or token must not stand in the list of processes.
        settings = [
            *self.settings,
            (f"remote.{_NAME}.url", self.url),
            (f"remote.{_NAME}.pushurl", self.push_url),
        ]
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (name, value) in enumerate(settings):
            env[f"GIT_CONFIG_KEY_{number}"] = name
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        return env | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


# Auxiliary: addresses like ext:: run programs; only what the user's own git would allow by default.
_PINNED = ("protocol.ext.allow=never", "push.gpgSign=false", "push.followTags=false")
_PASSWORD = re.compile(r"(?<=://)[^/\s]+@")


def words(text: str) -> str:
    """What git and the remote said, fit to be shown: without what stands before the host of an
    address, and without what would steer a terminal.
    """
    lines = _PASSWORD.sub("", text).strip().splitlines()
    return "\n".join(shown(line.rstrip(), 300) for line in lines[:MOST_SAID])


def find_remote(checkout: Path, name: str, is_unwanted: Callable[[], bool] | None = None) -> Remote:
    """
    Raises:
        UsageError: the checkout has no such remote.
        GitFault: git cannot read the checkout.
    """
    known = user.remotes(checkout)
    if name not in known:
        others = sorted(set(known) - {"swarm"})
        raise UsageError(
            f"this repository has no remote {shown(name)}",
            why=f"it has {', '.join(map(shown, others[:8]))}"
            if others
            else "it has no remote but swarm's own",
            hint=f'in swarm.toml, below [upstream]: remote = "{shown(others[0])}"'
            if others
            else f"git remote add {shlex.quote(name)} URL",
        )
    url, push_url, settings = user.read_remote(checkout, name)
    prefix = f"remote.{name}."
    wanted: list[tuple[str, str]] = []
    for key, value in settings:
        last = key.removeprefix(prefix)
        if _TRANSPORT.fullmatch(key):
            wanted.append((key, value))
        elif last != key and last in _OF_REMOTE:
            wanted.append((f"remote.{_NAME}.{last}", value))
    trusted = tuple(value for key, value in settings if key == "safe.directory")
    return Remote(name, url, push_url, checkout, tuple(wanted), trusted, is_unwanted)


def tip_of(hub: Hub, remote: Remote, branch: str, *, is_push: bool = False) -> str | None:
    """The commit that a branch of the remote holds now; None: there is no such branch.

    Raises:
        RemoteUnreachable: see `Remote.run`.
        SwarmError: its objects are named by another hash than the hub's.
    """
    ref = f"refs/heads/{branch}"
    asked = replace(remote, url=remote.push_url) if is_push else remote
    for line in asked.run(hub, "ls-remote", "--", _NAME, ref, timeout=LOOK_LIMIT).lines:
        oid, _, name = line.partition("\t")
        if name == ref and is_oid(oid):
            if (len(oid) == 64) != (hub.hash_name == "sha256"):
                raise SwarmError(
                    f"{shown(remote.name)} names its objects by another hash than this repository",
                    why=f"git cannot bring {hub.hash_name} and the other together",
                    hint=remote.hint("remote", "-v"),
                )
            return oid
    return None


def tips_below(hub: Hub, remote: Remote, prefix: str) -> dict[str, str]:
    """What each branch holds whose name begins so, where we push to; in one conversation.

    Raises:
        RemoteUnreachable: see `Remote.run`.
    """
    there = replace(remote, url=remote.push_url)
    rows = there.run(hub, "ls-remote", "--", _NAME, f"refs/heads/{prefix}*", timeout=LOOK_LIMIT)
    pairs = (row.partition("\t") for row in rows.lines)
    return {name.removeprefix("refs/heads/"): oid for oid, _, name in pairs if is_oid(oid)}


def fetch(hub: Hub, remote: Remote, branch: str) -> str | None:
    """Copy a branch of the remote into the hub, objects checked, no ref moved; its commit.

    None: the remote has no such branch.

    Raises:
        RemoteUnreachable: nothing was taken.
        SwarmError: git's fsck refuses an object of it; nothing was taken.
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
            _NAME,
            tip,
            ok=(0, 1, 128),
        )
        if fetched.code == 0 and hub.is_whole(tip):
            return tip
        if "fsck error" in fetched.complaint:
            raise _malformed(remote, branch, tip, words(fetched.complaint))
    raise RemoteUnreachable(
        f"{shown(remote.name)} would not give {shown(branch)}",
        why=words(fetched.complaint) or None,
        hint=remote.hint("fetch", remote.name, branch),
    )


_FLAW = re.compile(r"object [0-9a-f]+: (\w+): ")


def _malformed(remote: Remote, branch: str, tip: str, why: str) -> SwarmError:
    flaws = list(dict.fromkeys(_FLAW.findall(why)))
    return SwarmError(
        f"{shown(remote.name)}/{shown(branch)} {tip[:7]} holds an object that git's fsck refuses; "
        "nothing was taken",
        why=why,
        hint="\n".join(remote.hint("config", f"fetch.fsck.{flaw}", "warn") for flaw in flaws)
        or remote.hint("fsck"),
    )


class Pushed(msgspec.Struct, frozen=True):
    """The branch of the remote holds the commit now; `old` is what it held, None: it is new."""

    old: str | None


class NotForward(msgspec.Struct, frozen=True):
    """The branch has commits that ours lacks: nothing was pushed."""


class Declined(msgspec.Struct, frozen=True):
    """The remote refuses, by a hook or a rule of its own: nothing was pushed."""

    says: str


def push(
    hub: Hub, remote: Remote, oid: str, branch: str, old: str | None
) -> Pushed | NotForward | Declined:
    """Move a branch of the remote forward to a commit of the hub; never forced.

    `old` is what `tip_of` said of it a moment ago.

    Raises:
        RemoteUnreachable: whether it was pushed is seen by pushing again.

    Safe: twice is `Pushed` with `old` equal to `oid` the second time.
    """
    if old == oid:
        return Pushed(old)
    if old is not None and not (hub.is_whole(old) and hub.contains(oid, old)):
        return NotForward()
    answer = remote.run(
        hub,
        "push",
        "--porcelain",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        "--",
        _NAME,
        f"{oid}:refs/heads/{branch}",
        ok=(0, 1),
    )
    if answer.code == 0:
        return Pushed(old)
    said = [line.split("\t")[-1] for line in answer.lines if line.startswith("!")]
    why = words("\n".join([*said, answer.complaint]))
    if not said or "[remote failure]" in said[0]:
        raise RemoteUnreachable(
            f"{shown(remote.name)} did not say whether it took {shown(branch)}",
            why=why,
            hint=remote.hint("ls-remote", remote.name),
        )
    return NotForward() if said[0].startswith("[rejected]") else Declined(why)
