"""The words that go before a program's own, so that bubblewrap shows it no more than it needs.

Enters: what a program may write, read and reach. Leaves: an argv prefix, or why there is none.
Guards: what is not listed is not there; nothing is run unconfined because it could not be confined.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import site
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from swarm import process
from swarm.config import Config, shown
from swarm.errors import Exit, SwarmError, UsageError

Network = Literal["open", "none"]

# What every program needs to start, and every user of the machine can read.
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix",
)  # fmt: skip
_ALSO_FOR_NETWORK = "/etc/resolv.conf"  # often a link into /run, which is not there
# Below the home: programs that others on PATH are only the door to. None of them keeps a log-in.
_TOOLCHAINS = (
    ".pyenv", ".rbenv", ".nvm", ".volta", ".asdf", ".sdkman", ".rustup", ".bun/bin", ".deno/bin",
    ".local/share/mise", ".local/share/uv/python", ".local/share/pnpm",
)  # fmt: skip
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
# `--unshare-user` for root too: a root of its own has no right over processes outside.
# `--new-session`: the program is in no process group with bwrap, which must outlive a SIGTERM.
_APART = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--cap-drop", "ALL", "--new-session", "--die-with-parent",
)  # fmt: skip
_NO_USERNS = "--disable-userns"  # bubblewrap 0.8 and later
_PROBE = timedelta(seconds=20)
_MOST_LINKS = 40  # on one path, as the kernel has it


class SandboxUnusable(SwarmError):
    """Programs cannot be confined on this machine; nothing was started."""

    exit_code = Exit.USAGE


@dataclass(frozen=True)
class Bwrap:
    """A bubblewrap that was seen to work here."""

    program: str
    apart: tuple[str, ...]  # which namespaces


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one program may touch. Paths are absolute, and spelled as the program will spell them;
    one that is not there is left out.
    """

    cwd: Path
    hidden: tuple[Path, ...]  # empty folders, but for what is listed below them
    read: tuple[Path, ...]
    write: tuple[Path, ...]
    tmpdir: Path  # private to it
    # (where, the folder that is shown there), as for /tmp. Each new and empty: bwrap makes mount
    # points in them, and would follow a link that an agent had left in one.
    empty: tuple[tuple[Path, Path], ...] = ()
    network: Network = "open"


# -- what is there ---------------------------------------------------------------------------------


class Mount(NamedTuple):
    """One place as the program sees it."""

    at: Path  # no part of it is a link
    how: Literal["read", "write", "hide", "cover", "link"]
    source: str = ""  # of read and write when it is not `at`; where a link leads


def words(bwrap: Bwrap, facts: Facts) -> tuple[str, ...]:
    """What goes before the program's own words. Reads links and modes, and changes nothing."""
    mounts = _mounts(facts)
    found = [bwrap.program, *bwrap.apart]
    if facts.network == "none":
        found.append("--unshare-net")
    found += ["--dev", "/dev", "--proc", "/proc"]
    for mount in mounts:
        found += _option(mount)
    # Last, when all mount points below them were made: a write is refused, and not lost.
    for mount in mounts:
        if mount.how == "hide":
            found += ["--remount-ro", str(mount.at)]
    return (*found, "--remount-ro", "/", "--chdir", str(facts.cwd), "--")


def _option(mount: Mount) -> list[str]:
    at, source = str(mount.at), mount.source or str(mount.at)
    match mount.how:
        case "read":
            return ["--ro-bind-try", source, at]
        case "write":
            return ["--bind-try", source, at]
        case "hide":
            return ["--tmpfs", at]
        case "cover":
            return ["--ro-bind", "/dev/null", at]
        case "link":
            return ["--symlink", source, at]


def _mounts(facts: Facts) -> list[Mount]:
    """In the order in which they are made: what is deeper stands over what it lies in."""
    wanted: list[tuple[Path, Mount]] = []

    def want(path: Path, how: Literal["read", "write", "hide"], source: str = "") -> None:
        wanted.append((path, Mount(path, how, source)))

    for name in _SYSTEM:
        want(Path(name), "read")
    for path, shown_there in facts.empty:
        want(path, "write", str(shown_there))
    for path in facts.hidden:
        want(path, "hide")
    for path in facts.read:
        want(path, "read")
    for path in (*facts.write, facts.tmpdir):
        want(path, "write")
    if facts.network == "open":
        want(Path(_ALSO_FOR_NETWORK), "read")

    theirs = [real for path in (*facts.write, facts.tmpdir) if (real := _followed(path)[1])]
    found: dict[Path, Mount] = {}
    links: dict[Path, Mount] = {}
    for path, mount in wanted:
        on_the_way, real = _followed(path)
        if real is None or not _is_there(real, mount):
            continue
        # What lies in a folder that it writes is shown with that, and a link there, which may be
        # its own making, must not choose what else is.
        is_named = mount.how != "hide" and not mount.source
        if is_named and any(
            _is_inside(place, theirs) for place in (real, *(link.at for link in on_the_way))
        ):
            continue
        links |= {link.at: link for link in on_the_way}
        found[real] = mount._replace(at=real)  # a later one wins, as `write` over `read`
    found |= {
        path: link for path, link in links.items() if not _is_shown(path, found, "read", "write")
    }
    for closed in _closed(Path("/etc")) if os.geteuid() == 0 else ():
        found.setdefault(closed, Mount(closed, "hide" if closed.is_dir() else "cover"))
    needed = [m for m in found.values() if m.how != "read" or not _is_shown(m.at, found, "read")]
    return sorted(needed, key=lambda mount: len(mount.at.parts))


def _is_inside(place: Path, folders: Sequence[Path]) -> bool:
    return any(place != folder and place.is_relative_to(folder) for folder in folders)


def _is_there(real: Path, mount: Mount) -> bool:
    return mount.how == "hide" or bool(mount.source) or os.path.lexists(real)


def _followed(path: Path) -> tuple[list[Mount], Path | None]:
    """Every link on the way to a path, and where that ends; None: in a circle of links."""
    links: list[Mount] = []
    real = Path(path.anchor)
    waiting = list(reversed(path.parts[1:]))
    while waiting:
        part = waiting.pop()
        here = real.parent if part == ".." else real / part
        try:
            target = os.readlink(here) if part != ".." else None  # noqa: PTH115
        except OSError:
            target = None
        if target is None:
            real = here
            continue
        if len(links) == _MOST_LINKS:
            return links, None
        links.append(Mount(here, "link", target))
        steps = Path(target)
        if steps.is_absolute():
            real = Path(steps.anchor)
        waiting += reversed(steps.parts[1:] if steps.is_absolute() else steps.parts)
    return links, real


def _is_shown(place: Path, mounts: Mapping[Path, Mount], *hows: str) -> bool:
    """Does it come along with the folder that it lies in?"""
    above = next((folder for folder in place.parents if folder in mounts), None)
    return above is not None and mounts[above].how in hows and not mounts[above].source


def _closed(folder: Path) -> Iterator[Path]:
    """The topmost places below a folder that not every user can read: only for root they are
    anything but closed without our help.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:  # it went away
            continue
        if stat.S_ISDIR(mode):
            if mode & (stat.S_IROTH | stat.S_IXOTH):
                yield from _closed(Path(entry.path))
            else:
                yield Path(entry.path)
        elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
            yield Path(entry.path)


# -- what a program in a slot may touch ------------------------------------------------------------


class SlotPlaces(NamedTuple):
    """Where a slot lies."""

    tree: Path
    repo: Path
    record: Path  # by which `swarm`, typed in the worktree, knows the claim
    hub: Path


def confine(
    spec: process.Spec,
    config: Config,
    slot: SlotPlaces,
    checkout: Path,
    *,
    environ: Mapping[str, str],
    tmpdir: Path,
    home: Path | None = None,
    read: Sequence[Path] = (),
    write: Sequence[Path] = (),
) -> process.Spec:
    """What is to run in a slot, in the sandbox that the configuration wants; without one as it is.

    Its slot is the program's, the hub is there to read, and nothing else of the state folder, the
    checkout and the user's home is there, but for what is named.

    Args:
        environ: the runner's own: where bwrap is looked for, and what `~` means.
        tmpdir: private to it; what is shown as /tmp and as HOME is made in it, new at each call.
        home: a HOME that is kept, instead of that one.
        read, write: what else.

    Raises:
        SandboxUnusable: see `find`.
        UsageError: see `refuse_holding`.
    """
    run = config.run
    if run.sandbox == "none":
        return spec
    named = Path(spec.env.get("HOME") or "/")
    new = Path(tempfile.mkdtemp(prefix=".box-", dir=tmpdir))
    empty = [(Path("/tmp"), new / "tmp"), (Path("/var/tmp"), new / "tmp")]
    if home is None and named.is_absolute() and not is_below_system(named):
        empty.append((named, new / "home"))
    for _, place in empty:
        place.mkdir(mode=0o700, exist_ok=True)
    hidden = (slot.tree.parent.parent, checkout)
    visible = expanded(run.visible, environ, has_home=home is None)
    writable = expanded(run.writable, environ, has_home=home is None)
    refuse_holding((*read, *write, *visible, *writable), (*hidden, named))
    facts = Facts(
        cwd=spec.cwd,
        hidden=hidden,
        read=(
            *(slot.hub, *borrowed(slot.hub), slot.record, *read),
            *(*own_code(), *tools(spec.env, (*hidden, named))),
            *(toolchains(named) if home is None else ()),
            *(checkout / name for name in config.worktree.share),
            *named_files(spec.argv[:1]),
            *visible,
        ),
        write=(
            *(slot.tree, slot.repo, *write),
            *((home,) if home is not None else ()),
            *writable,
        ),
        tmpdir=tmpdir,
        empty=tuple(empty),
        network=run.network,
    )
    bwrap = find(environ.get("PATH", os.defpath), run.network)
    return replace(spec, argv=(*words(bwrap, facts), *spec.argv), is_boxed=True)


def try_program(
    argv: tuple[str, ...],
    config: Config,
    hub: Path,
    checkout: Path,
    *,
    environ: Mapping[str, str],
    read: Sequence[Path] = (),
    write: Sequence[Path] = (),
) -> str:
    """Run something like `claude --version` as confined as in a slot; "" when it ended well, else
    what it complains of.

    Raises:
        SandboxUnusable: see `find`.
    """
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        tree, tmpdir = Path(folder, "slots/s1"), Path(folder, "tmp")
        tree.mkdir(parents=True)
        tmpdir.mkdir()
        spec = process.Spec(
            argv=argv,
            cwd=tree,
            env={name: environ[name] for name in ("PATH", "HOME") if name in environ},
            stdout=Path(os.devnull),
            output_cap=0,
            mark="",
            grace=timedelta(0),
        )
        place = SlotPlaces(tree, tree.with_suffix(".git"), tree.with_suffix(".json"), hub)
        confined = confine(
            spec, config, place, checkout, environ=environ, tmpdir=tmpdir, read=read, write=write
        )
        return _complaint(process.run_quick(confined.argv, tree, spec.env, _PROBE))


# -- what a program needs beside its own folders ---------------------------------------------------


def own_code() -> tuple[Path, ...]:
    """What `swarm`, typed by an agent, is: the interpreter's folders and its packages."""
    places = [Path(sys.executable)]
    for prefix in (sys.prefix, sys.base_prefix):  # not whole: it may be a checkout, or a home
        places += [Path(prefix, name) for name in ("bin", "lib", "lib64", "ssl", "pyvenv.cfg")]
    for name in ("swarm", "swarm.agents", "swarm.hooks"):
        spec = importlib.util.find_spec(name)
        places += map(Path, (spec and spec.submodule_search_locations) or ())
    user = site.getusersitepackages()
    if user in sys.path:
        places.append(Path(user))
    return tuple(place.absolute() for place in places)


def tools(env: Mapping[str, str], never: Sequence[Path]) -> tuple[Path, ...]:
    """The folders on a program's PATH, and the certificates that its environment names.

    `never`: a folder that holds one of these, as a whole home, is none of tools.
    """
    found = [Path(entry) for entry in env.get("PATH", "").split(os.pathsep)]
    found += [Path(env[name]) for name in _CERTIFICATES if env.get(name)]
    return tuple(
        path
        for path in found
        if path.is_absolute() and not any(_holds(path, place) for place in never)
    )


def _holds(folder: Path, place: Path) -> bool:
    return place.is_relative_to(folder) or place.resolve().is_relative_to(folder.resolve())


def refuse_holding(paths: Iterable[Path], never: Sequence[Path]) -> None:
    """
    Raises:
        UsageError: a place that people named holds one of those that have to be hidden.
    """
    for path in paths:
        held = next((place for place in never if _holds(path, place)), None)
        if held is not None:
            raise UsageError(
                f"{path} is too much for a sandbox: it holds {held}",
                hint="visible and writable below [run] in swarm.toml: name what is needed of it",
            )


def toolchains(home: Path) -> tuple[Path, ...]:
    """What is installed in a home to be run."""
    return tuple(home / name for name in _TOOLCHAINS)


def borrowed(hub: Path) -> tuple[Path, ...]:
    """The folders of objects that a hub of the user's own may borrow."""
    objects = hub / "objects"
    try:
        lines = (objects / "info/alternates").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ()
    return tuple(objects / line for line in lines if line and not line.startswith("#"))


def named_files(words: Sequence[str]) -> tuple[Path, ...]:
    """The files among words that a person typed, each by its whole path; no folder."""
    # Not `Path.is_file`, which raises for a word that is too long for a path.
    return tuple(Path(word) for word in words if os.path.isabs(word) and os.path.isfile(word))  # noqa: PTH113, PTH117


def is_below_system(path: Path) -> bool:
    """Is it one of the system's own folders, or in one?"""
    return path.parent == path or any(path.is_relative_to(folder) for folder in _SYSTEM)


def expanded(
    entries: Iterable[str], environ: Mapping[str, str], *, has_home: bool = True
) -> tuple[Path, ...]:
    """Paths as people write them: `~/...`, `$NAME/...` or absolute; without what has no value.

    `has_home`: False where a private HOME is all of a home that is seen.
    """
    found = []
    for entry in entries:
        first, slash, rest = entry.partition("/")
        value = first
        if first == "~":
            value = environ.get("HOME", "") if has_home else ""
        elif first.startswith("$"):
            value = environ.get(first[1:], "")
        if bool(value) != bool(first):
            continue  # `~/x` without a home is not `/x`
        path = Path(value + slash + rest)
        if path.is_absolute() and path.parent != path:
            found.append(path)
    return tuple(found)


# -- whether it works ------------------------------------------------------------------------------


def require(config: Config, environ: Mapping[str, str]) -> None:
    """
    Raises:
        UsageError: a promise that no sandbox is there to keep.
        SandboxUnusable: see `find`.
    """
    run = config.run
    if run.sandbox == "bwrap":
        find(environ.get("PATH", os.defpath), run.network)
    elif run.network == "none":
        raise UsageError(
            'swarm.toml: network = "none" needs a sandbox; nothing was started',
            hint='sandbox = "bwrap"',
        )


@functools.cache
def find(path: str, network: Network = "open") -> Bwrap:
    """The bubblewrap on a PATH, tried once with all that is asked of it.

    Raises:
        SandboxUnusable: it is not there, or this machine does not let it.
    """
    program = shutil.which("bwrap", path=path)
    if program is None:
        raise SandboxUnusable(
            'swarm.toml: sandbox = "bwrap", but bwrap is not on PATH; nothing was started',
            hint=f"apt-get install bubblewrap\n{_WITHOUT}",
        )
    complaint = ""
    for apart in ((*_APART, _NO_USERNS), _APART):
        complaint = _try(program, apart, network)
        if not complaint:
            return Bwrap(program, apart)
    raise SandboxUnusable(
        f'swarm.toml: sandbox = "bwrap", but {program} cannot work here; nothing was started',
        why=complaint,
        hint=f'docs/security.md, "What the host must have"\n{_WITHOUT}',
    )


_WITHOUT = 'sandbox = "none" in swarm.toml: agents then run with your rights'


def _try(program: str, apart: tuple[str, ...], network: Network) -> str:
    """What it complains of; "" when it works."""
    net = ("--unshare-net",) if network == "none" else ()
    call = (program, *apart, *net, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
    return _complaint(process.run_quick((*call, "--", "/bin/true"), Path("/"), {}, _PROBE))


def _complaint(said: process.Quick) -> str:
    if said.exit_code == 0:
        return ""
    text = (said.stderr or said.stdout).decode("utf-8", "replace").strip()
    return shown(text.splitlines()[-1], 300) if text else f"exit code {said.exit_code}"
