"""The user's own checkout, looked at with the user's own git configuration.

Enters: a folder. Leaves: branch, commit, what is not committed, ignored files to copy.
Guards: reads only; the few writes (a remote, a fast-forward) are named functions.
"""

from __future__ import annotations

import configparser
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from swarm.errors import GitFault, HubUnusable, UsageError
from swarm.plumbing.git import program

try:
    import git
    from git.exc import ODBError
except ModuleNotFoundError:
    raise
except ImportError as error:  # GitPython starts git when it is imported
    program()
    raise HubUnusable("git does not run", why=str(error), hint="git version") from error

# What GitPython raises for a repository that is damaged, unreadable or not to be read now.
_TROUBLE = (git.GitError, ODBError, configparser.Error, ValueError, OSError)


class Checkout(msgspec.Struct, frozen=True):
    """What a user's checkout is now."""

    root: Path
    git_dir: Path  # of the repository, also for a linked worktree
    branch: str | None  # None: detached
    head: str | None  # None: no commit yet
    dirty: tuple[tuple[str, str], ...]  # (status code, path)


@contextmanager
def _repository(folder: Path) -> Iterator[git.Repo]:
    """
    Raises:
        UsageError: not in a git repository.
        GitFault: git cannot read it, or ended before it answered.
    """
    try:
        with closing(git.Repo(folder, search_parent_directories=True)) as repo:
            yield repo
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise UsageError(
            f"{folder} is in no git repository", hint="git init && git add -A && git commit"
        ) from error
    except _TROUBLE as error:
        raise GitFault(
            f"git cannot read the checkout {folder}", why=_words(error), hint="git status"
        ) from error


def _words(error: Exception) -> str:
    """Git's own words, without GitPython's frame around them."""
    if not isinstance(error, git.GitCommandError):
        return str(error) or type(error).__name__
    said = str(error.stderr).strip().removeprefix("stderr: ").strip().strip("'").strip()
    if said:
        return said
    command = " ".join(map(str, error.command[:3]))
    status = error.status
    if isinstance(status, int) and status < 0:
        return f"{command} was ended by signal {-status}"
    return f"{command} failed: {status}"


def look(folder: Path, *, with_status: bool = True) -> Checkout:
    """
    Raises:
        UsageError: not in a git repository, or in a bare one.
    """

    with _repository(folder) as found:
        if found.bare or found.working_tree_dir is None:
            raise UsageError(f"{folder} is a bare repository", hint="run it in a checkout")
        root = Path(found.working_tree_dir)
        branch = None if found.head.is_detached else found.head.reference.path[len("refs/heads/") :]
        head = found.head.commit.hexsha if found.head.is_valid() else None
        dirty: list[tuple[str, str]] = []
        if with_status:
            rows = found.git.status("--porcelain", "-z", "--untracked-files=normal").split("\0")
            rows_iter = iter(rows)
            for row in rows_iter:
                if not row:
                    continue
                dirty.append((row[:2], row[3:]))
                if row[0] in "RC":
                    next(rows_iter, None)
        return Checkout(root, Path(found.common_dir).resolve(), branch, head, tuple(dirty))


def tracked_files(folder: Path) -> list[str]:
    """Every tracked path, sorted."""

    with _repository(folder) as found:
        return [path for path in found.git.ls_files("-z").split("\0") if path]


def remotes(folder: Path) -> dict[str, str]:
    """name -> URL."""

    with _repository(folder) as found:
        names = str(found.git.remote()).splitlines()
        return {name: str(found.git.remote("get-url", "--", name)) for name in names}


def has_branch(folder: Path, name: str) -> bool:
    """Is there a local branch of this name?"""

    with _repository(folder) as found:
        return any(head.path == f"refs/heads/{name}" for head in found.heads)


def read_remote(folder: Path, name: str) -> tuple[str, str, list[tuple[str, str]]]:
    """(address to fetch from, address to push to, every setting that is in effect in the checkout).

    Both addresses are as the user's git would use them, `insteadOf` applied; the settings keep
    their order, since some of them add up.
    """

    with _repository(folder) as found:
        url = str(found.git.remote("get-url", "--", name))
        push_url = str(found.git.remote("get-url", "--push", "--", name))
        rows = str(found.git.config("--list", "-z", "--includes")).split("\0")
    told = (row.partition("\n") for row in rows if row)
    # A key without `=` is a switch that is on; as an empty text it would be off.
    return url, push_url, [(key, value if equals else "true") for key, equals, value in told]


def user_name(folder: Path) -> str:
    """`user.name` of git as it is in effect in the checkout, or empty."""

    with _repository(folder) as found:
        return str(found.git.config("--get", "user.name", with_exceptions=False))


def add_remote(folder: Path, name: str, url: Path, branch: str) -> bool:
    """Add our remote, that branch only; False when there is one of that name already."""

    with _repository(folder) as found:
        if name in [remote.name for remote in found.remotes]:
            return False
        found.git.remote("add", "-t", branch, name, str(url))
        return True


def remove_remote(folder: Path, name: str) -> bool:
    """Remove our remote and its tracking refs; False when it is not there."""

    with _repository(folder) as found:
        if name not in [remote.name for remote in found.remotes]:
            return False
        found.git.remote("remove", name)
        return True


class Pulled(msgspec.Struct, frozen=True):
    """A fast-forward of the checkout's branch."""

    old: str
    new: str


def pull(folder: Path, remote: str, branch: str) -> Pulled | str:
    """Fast-forward the checkout when git itself says that it is safe; else git's own words.

    Raises:
        GitFault: the remote could not be read; nothing was changed.

    Safe: git refuses to overwrite uncommitted work and then changes nothing.
    """

    with _repository(folder) as found:
        old = found.head.commit.hexsha
        try:
            found.git.fetch("--quiet", remote, branch)
        except git.GitCommandError as error:
            raise GitFault(f"git cannot fetch {branch} from {remote}", why=_words(error)) from error
        try:
            found.git.merge("--ff-only", "--quiet", "FETCH_HEAD")
        except git.GitCommandError as error:
            return _words(error)
        return Pulled(old, found.head.commit.hexsha)


def ignored_matching(folder: Path, globs: Sequence[str]) -> list[str]:
    """Untracked files that the globs match and that git ignores, by the user's own rules.

    `.worktreeinclude` of the folder adds its lines to `globs`.
    """

    include = folder / ".worktreeinclude"
    if not globs and not include.is_file():
        return []
    with _repository(folder) as found:
        options = [f"--exclude={glob}" for glob in globs]
        if include.is_file():
            options.append(f"--exclude-from={include}")
        listed = found.git.ls_files("--others", "--ignored", "-z", *options).split("\0")
        names = [name for name in listed if name]
        if not names:
            return []
        checked = found.git.execute(
            ["git", "check-ignore", "-z", "--stdin"],
            istream=_stream("\0".join(names)),
            with_exceptions=False,
        )
        kept = {name for name in str(checked).split("\0") if name}
        return [name for name in names if name in kept]


def _stream(text: str) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(os.fsencode(text))
    file.seek(0)
    return file


def user_excludes(folder: Path) -> str:
    """Text of the user's own excludes file, or empty."""

    with _repository(folder) as found:
        named = found.git.config("--get", "--path", "core.excludesFile", with_exceptions=False)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = Path(str(named)) if named else home / "git/ignore"
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
