"""Three-way merges without a checkout: every kind of conflict, attributes, faults."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.errors import GitFault
from swarm.merge import Attributes, Clean, Conflict, merge_trees
from swarm.plumbing.hub import Hub
from tests.world import World, git

Edit = Callable[[Path], None]
LINES = "".join(f"line {n}\n" for n in range(1, 21))


@dataclass
class Fork:
    """Two sides that grew from one commit, in a hub."""

    repo: Path
    hub: Hub
    base: str
    ours: str
    theirs: str

    def merge(self, folder: Path) -> Clean | Conflict:
        rules = Attributes(self.hub, folder).at(self.hub.reader.tree_of(self.ours))
        return merge_trees(self.hub, self.ours, self.theirs, rules)


_OPEN: list[Hub] = []


@pytest.fixture(autouse=True)
def close_hubs() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def fork(folder: Path, base: Edit, ours: Edit, theirs: Edit) -> Fork:
    """A repository with one base commit and two commits on it, all of them in a hub."""
    repo = folder / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    base(repo)
    first = committed(repo, "base")
    ours(repo)
    our = committed(repo, "ours")
    git(repo, "checkout", "-q", "-b", "theirs", first)
    theirs(repo)
    their = committed(repo, "theirs")
    hub = Hub.create(folder / "hub.git", "main", repo / ".git", our)
    _OPEN.append(hub)
    hub.fetch(repo, their)
    return Fork(repo, hub, first, our, their)


def committed(repo: Path, message: str) -> str:
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", message)
    return git(repo, "rev-parse", "HEAD")


def put(path: str, text: str | bytes) -> Edit:
    """An edit that writes one file."""

    def edit(repo: Path) -> None:
        place = repo / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)

    return edit


def all_of(*edits: Edit) -> Edit:
    def edit(repo: Path) -> None:
        for one in edits:
            one(repo)

    return edit


def gone(path: str) -> Edit:
    return lambda repo: (repo / path).unlink()


def moved(old: str, new: str) -> Edit:
    def edit(repo: Path) -> None:
        (repo / new).parent.mkdir(parents=True, exist_ok=True)
        (repo / old).rename(repo / new)

    return edit


def linked(path: str, to: str) -> Edit:
    def edit(repo: Path) -> None:
        (repo / path).unlink(missing_ok=True)
        (repo / path).symlink_to(to)

    return edit


def executable(path: str) -> Edit:
    return lambda repo: (repo / path).chmod(0o755)


def nothing(repo: Path) -> None:
    pass


TEN = LINES.replace("line 10\n", "line ten\n")
X = LINES.replace("line 10\n", "line X\n")

CONFLICTS: dict[str, tuple[Edit, Edit, Edit, tuple[str, ...]]] = {
    "content": (put("f", LINES), put("f", TEN), put("f", X), ("f",)),
    "add/add": (put("z", "z\n"), put("f", "ours\n"), put("f", "theirs\n"), ("f",)),
    "modify/delete": (put("f", LINES), gone("f"), put("f", X), ("f",)),
    "delete/modify": (put("f", LINES), put("f", X), gone("f"), ("f",)),
    "rename/rename": (put("f", LINES), moved("f", "a"), moved("f", "b"), ("a", "b", "f")),
    "rename/delete": (put("f", LINES), moved("f", "g"), gone("f"), ("g",)),
    "file/directory": (put("z", "z\n"), put("p", "file\n"), put("p/q", "below\n"), ("p~",)),
    "symlink/symlink": (linked("f", "one"), linked("f", "two"), linked("f", "three"), ("f",)),
    "symlink/edit": (put("f", LINES), linked("f", "two"), put("f", X), ("f", "f~")),
    "binary": (put("f", b"\0a"), put("f", b"\0b"), put("f", b"\0c"), ("f",)),
    "mode and content": (
        put("f", LINES),
        all_of(put("f", TEN), executable("f")),
        put("f", X),
        ("f",),
    ),
    "folder renamed, file added in it": (
        all_of(put("d/1", LINES), put("d/2", LINES + "2"), put("d/3", LINES + "3")),
        all_of(moved("d/1", "e/1"), moved("d/2", "e/2"), moved("d/3", "e/3")),
        put("d/4", "four\n"),
        ("e/4",),
    ),
    "newline in the name": (put("a\nb", LINES), put("a\nb", TEN), put("a\nb", X), ("a\nb",)),
    "non-ASCII name": (put("grüße/日本", LINES), put("grüße/日本", TEN), put("grüße/日本", X),
                       ("grüße/日本",)),
    "a name like an option": (put("-f", LINES), put("-f", TEN), put("-f", X), ("-f",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFLICTS)
def test_M1_what_git_cannot_merge_is_a_conflict_that_names_its_paths(
    tmp_path: Path, kind: str
) -> None:
    base, ours, theirs, paths = CONFLICTS[kind]
    both = fork(tmp_path, base, ours, theirs)
    merged = both.merge(tmp_path / "cache")
    assert isinstance(merged, Conflict), "no side is ever taken"
    assert len(merged.paths) == len(paths), merged.paths
    for wanted, got in zip(paths, merged.paths, strict=True):
        # Git renames what is in the way after the side's name, here an object id.
        assert got == wanted or (wanted.endswith("~") and got.startswith(wanted)), merged.paths
    assert any("CONFLICT" in line or "Cannot merge" in line for line in merged.says), merged.says


CLEAN: dict[str, tuple[Edit, Edit, Edit, dict[str, str]]] = {
    "far apart": (
        put("f", LINES),
        put("f", LINES.replace("line 2\n", "two\n")),
        put("f", LINES.replace("line 18\n", "18\n")),
        {"f": LINES.replace("line 2\n", "two\n").replace("line 18\n", "18\n")},
    ),
    "rename against edit": (put("f", LINES), moved("f", "g"), put("f", TEN), {"g": TEN}),
    "mode against content": (put("f", LINES), executable("f"), put("f", TEN), {"f": TEN}),
    "both the same": (put("f", LINES), put("f", TEN), put("f", TEN), {"f": TEN}),
    "only theirs": (put("f", LINES), nothing, put("f", TEN), {"f": TEN}),
    "names that differ in case": (
        put("z", "z\n"),
        put("README", "a\n"),
        put("readme", "b\n"),
        {"README": "a\n", "readme": "b\n"},
    ),
}


@pytest.mark.parametrize("kind", CLEAN)
def test_what_git_can_merge_is_clean(tmp_path: Path, kind: str) -> None:
    base, ours, theirs, files = CLEAN[kind]
    both = fork(tmp_path, base, ours, theirs)
    merged = both.merge(tmp_path / "cache")
    assert isinstance(merged, Clean)
    for path, text in files.items():
        found = both.hub.reader.find(merged.tree, path)
        assert found is not None and both.hub.reader.read(found.oid, "blob").decode() == text


# Attributes


UNION = (
    put("log.txt", "1\n"),
    put("log.txt", "1\nours\n"),
    put("log.txt", "1\ntheirs\n"),
)


def union_at(path: str, rules: str, attributes: str, tmp_path: Path) -> Clean | Conflict:
    """Two sides append to `path`; `attributes` holds `rules` in the base."""
    base = all_of(put(path, "1\n"), put(attributes, rules))
    both = fork(tmp_path, base, put(path, "1\nours\n"), put(path, "1\ntheirs\n"))
    return both.merge(tmp_path / "cache")


@pytest.mark.parametrize(
    ("path", "rules", "attributes"),
    [
        ("log.txt", "*.txt merge=union\n", ".gitattributes"),
        ("docs/a/log.txt", "*.txt merge=union\n", ".gitattributes"),
        ("docs/log.txt", "log.txt merge=union\n", "docs/.gitattributes"),
        ("docs/a/b/log.txt", "*.txt merge=union\n", "docs/.gitattributes"),
        ("docs/a/log.txt", "a/*.txt merge=union\n", "docs/.gitattributes"),
        ("docs/log.txt", "/log.txt merge=union\n", "docs/.gitattributes"),
        ("docs/log.txt", "*.txt\tmerge=union\n", "docs/.gitattributes"),
        ("my docs/log.txt", "*.txt merge=union\n", "my docs/.gitattributes"),
        ("docs[1]/log.txt", "*.txt merge=union\n", "docs[1]/.gitattributes"),
        ("docs/my log.txt", '"my log.txt" merge=union\n', "docs/.gitattributes"),
        ("docs/log.txt", "* -text\nlog.txt merge=union\n", "docs/.gitattributes"),
        ("log.txt", "[attr]both merge=union\n*.txt both\n", ".gitattributes"),
    ],
)
def test_the_targets_attributes_decide_how_a_path_is_merged(
    tmp_path: Path, path: str, rules: str, attributes: str
) -> None:
    merged = union_at(path, rules, attributes, tmp_path)
    assert isinstance(merged, Clean), merged


@pytest.mark.parametrize(
    ("path", "attributes", "rules"),
    [
        ("log.txt", "docs/.gitattributes", "*.txt merge=union\n"),
        ("other/log.txt", "docs/.gitattributes", "*.txt merge=union\n"),
        ("docs/a/log.txt", "docs/.gitattributes", "/log.txt merge=union\n"),
        ("docs/log.txt", "docs/.gitattributes", "a/log.txt merge=union\n"),
    ],
)
def test_attributes_of_a_folder_reach_no_further(
    tmp_path: Path, path: str, attributes: str, rules: str
) -> None:
    assert isinstance(union_at(path, rules, attributes, tmp_path), Conflict)


@pytest.mark.parametrize(
    "line",
    ["!*.md merge=union", "*.md =x", '[attr]a"b text', "*.md -bad\x01",
     "[attr]x", "*.md builtin_x=1", '"*.md merge=union', "\x0c*.md text", "\ufeff# nothing"],
)  # fmt: skip
@pytest.mark.parametrize("attributes", [".gitattributes", "docs/.gitattributes"])
def test_a_line_that_git_complains_about_stops_no_merge(
    tmp_path: Path, line: str, attributes: str
) -> None:
    """Anybody can land one; what git says of it must not look like a fault of the merge."""
    rules = f"{line}\nlog.txt merge=union\n"
    merged = union_at("docs/log.txt", rules, attributes, tmp_path)
    assert isinstance(merged, Clean), merged


@pytest.mark.parametrize("line", [r'"l\157g.txt" merge=union', r'"log\\.txt" merge=union'])
def test_quoted_patterns_are_read_as_git_reads_them(tmp_path: Path, line: str) -> None:
    for folder in ("", "docs/"):
        place = tmp_path / (folder or "root").strip("/")
        place.mkdir()
        assert isinstance(union_at("docs/log.txt", line, f"{folder}.gitattributes", place), Clean)


def test_attributes_that_are_a_link_are_nobodys_rules(tmp_path: Path) -> None:
    base, ours, theirs = UNION
    both = fork(tmp_path, base, ours, theirs)
    attributes = Attributes(both.hub, tmp_path / "cache")
    attributes.at(both.hub.reader.tree_of(both.ours))
    git(both.repo, "checkout", "-q", "main")
    all_of(put("rules", "*.txt merge=union\n"), linked(".gitattributes", "rules"))(both.repo)
    both.ours = committed(both.repo, "a link")
    both.hub.fetch(both.repo, both.ours)
    rules = attributes.at(both.hub.reader.tree_of(both.ours))
    assert isinstance(merge_trees(both.hub, both.ours, both.theirs, rules), Conflict)


def test_a_nested_file_overrides_the_root(tmp_path: Path) -> None:
    base = all_of(
        put("docs/log.txt", "1\n"),
        put(".gitattributes", "*.txt merge=union\n"),
        put("docs/.gitattributes", "*.txt merge=text\n"),
    )
    both = fork(tmp_path, base, put("docs/log.txt", "1\no\n"), put("docs/log.txt", "1\nt\n"))
    assert isinstance(both.merge(tmp_path / "cache"), Conflict)


@pytest.mark.parametrize("rule", ["data.bin binary\n", "data.bin -merge\n"])
def test_what_is_declared_binary_is_never_merged_line_by_line(tmp_path: Path, rule: str) -> None:
    first = all_of(put("data.bin", LINES), put(".gitattributes", rule))
    ours = put("data.bin", LINES.replace("line 2\n", "two\n"))
    theirs = put("data.bin", LINES.replace("line 18\n", "18\n"))
    both = fork(tmp_path, first, ours, theirs)
    assert isinstance(both.merge(tmp_path / "cache"), Conflict)


def test_T17_attributes_of_the_change_itself_count_for_nothing(tmp_path: Path) -> None:
    base, ours, theirs = UNION
    mine = all_of(theirs, put(".gitattributes", "*.txt merge=union\n"))
    both = fork(tmp_path, base, ours, mine)
    assert isinstance(both.merge(tmp_path / "cache"), Conflict)


def test_attributes_follow_the_target_from_tree_to_tree(tmp_path: Path) -> None:
    base, ours, theirs = UNION
    both = fork(tmp_path, base, ours, theirs)
    attributes = Attributes(both.hub, tmp_path / "cache")

    def merge() -> Clean | Conflict:
        rules = attributes.at(both.hub.reader.tree_of(both.ours))
        return merge_trees(both.hub, both.ours, both.theirs, rules)

    assert isinstance(merge(), Conflict)
    git(both.repo, "checkout", "-q", "main")
    put("docs/.gitattributes", "*.md merge=union\n")(both.repo)
    put(".gitattributes", "*.txt merge=union\n")(both.repo)
    both.ours = committed(both.repo, "rules")
    both.hub.fetch(both.repo, both.ours)
    assert isinstance(merge(), Clean)
    gone(".gitattributes")(both.repo)
    both.ours = committed(both.repo, "no rules")
    both.hub.fetch(both.repo, both.ours)
    assert isinstance(merge(), Conflict)


def test_a_merge_driver_of_nobody_is_not_run(tmp_path: Path) -> None:
    """A named driver without a configuration is git's own text merge, never a command."""
    base = all_of(put("f", LINES), put(".gitattributes", "f merge=mine\n"))
    both = fork(tmp_path, base, put("f", TEN), put("f", X))
    git(both.repo, "config", "merge.mine.driver", "touch %A.ran; true")
    assert isinstance(both.merge(tmp_path / "cache"), Conflict)


# Faults


def loose(hub: Hub, oid: str) -> Path:
    return hub.path / "objects" / oid[:2] / oid[2:]


def unpacked(both: Fork) -> None:
    """Every object of the hub as a file, so that one can be taken away."""
    for pack in sorted((both.hub.path / "objects" / "pack").glob("*.pack")):
        aside = both.repo / pack.name
        shutil.move(pack, aside)
        pack.with_suffix(".idx").unlink()
        with aside.open("rb") as data:
            subprocess.run(
                ["git", f"--git-dir={both.hub.path}", "unpack-objects", "-q"],
                stdin=data,
                check=True,
            )


@pytest.mark.parametrize("what", ["blob", "root tree", "subtree", "commit"])
def test_M2_a_missing_object_is_a_fault_and_never_clean(tmp_path: Path, what: str) -> None:
    base = all_of(put("d/f", LINES), put("x", "x\n"))
    ours = all_of(put("new", "n\n"), put("d/g", "g\n"))
    both = fork(tmp_path, base, ours, put("d/f", TEN))
    unpacked(both)
    find = {
        "blob": f"{both.theirs}:d/f",
        "root tree": f"{both.theirs}^{{tree}}",
        "subtree": f"{both.theirs}:d",
        "commit": both.theirs,
    }
    victim = loose(both.hub, git(both.repo, "rev-parse", find[what]))
    victim.unlink()
    both.hub.reader.close()
    if what == "blob":  # only one side changed it: git need not read it to merge
        git(both.repo, "checkout", "-q", "main")
        put("d/f", X)(both.repo)
        both.ours = committed(both.repo, "ours too")
        both.hub.fetch(both.repo, both.ours)
    with pytest.raises(GitFault):
        both.merge(tmp_path / "cache")


@pytest.mark.parametrize("theirs", ["0" * 40, "nosuch", "HEAD^{tree}"])
def test_a_bad_id_is_a_fault_and_no_conflict(tmp_path: Path, theirs: str) -> None:
    both = fork(tmp_path, put("f", LINES), put("f", TEN), put("f", X))
    both.theirs = theirs
    with pytest.raises(GitFault):
        both.merge(tmp_path / "cache")


def test_a_merge_leaves_nothing_behind_and_needs_no_ref(tmp_path: Path) -> None:
    base, ours, theirs, _ = CONFLICTS["content"]
    both = fork(tmp_path, base, ours, theirs)
    refs = both.hub.refs_below("refs")
    files = {p for p in both.hub.path.rglob("*") if "objects" not in p.parts}
    both.merge(tmp_path / "cache")
    assert both.hub.refs_below("refs") == refs
    assert {p for p in both.hub.path.rglob("*") if "objects" not in p.parts} == files


# Candidates


def test_the_same_inputs_make_the_same_candidate(world: World) -> None:
    """So that whoever builds it again after a crash builds the very commit that was recorded."""
    task = world.add("Deterministic")
    world.agent(task).write("a.txt", "a\n").commit().seal()
    view = world.ledger.view()
    entry = view.entry(task)
    assert entry is not None
    first, second = (candidate_of(world, task) for _ in range(2))
    assert first.commit == second.commit
    assert git(world.layout.hub, "show", "-s", "--format=%P", first.commit).split() == [
        world.main,
        entry.head,
    ]


def candidate_of(world: World, task: str):  # type: ignore[no-untyped-def]
    from swarm.ledger import records
    from swarm.merge import Candidate, build

    world.clock.pass_(seconds=5)
    view = world.ledger.view()
    entry, known = view.entry(task), view.task(task)
    assert entry is not None and known is not None
    built = build(
        world.hub,
        view.target,
        entry,
        view.blob_id(records.queue_path(task)) or "",
        known,
        attributes=Attributes(world.hub, world.layout.cache),
        style="merge",
        checks=[("tests", "d" * 64)],
        adapter="scripted",
        agent="a",
    )
    assert isinstance(built, Candidate)
    return built
