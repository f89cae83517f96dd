from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.config import (
    Check,
    Codes,
    Config,
    Problem,
    key_lines,
    listing,
    load,
    parse,
    shown,
    starter,
)
from swarm.errors import Exit, UsageError

EVERY_KEY = """\
format = 1
target = "main"
hub = "../app.swarm/hub.git"
tasks = "tasks"

[run]
slots = 2
agent = "claude"
agents = "claude:3,codex:2"
fallback = "codex"
roles = "build:3, review:1"
permission = "bypass"
sandbox = "none"
home = "user"
keep_going = false
allow_red = false

[limits]
attempt = "30m"
silence = "10m"
start = "60s"
strikes = 3
conflicts = 5
backoff = "10s"
backoff_max = "10m"
grace = "5s"
output = "64MiB"
turns = 80
tokens = 2000000
cost_usd = 2
patience = "2m"
provider = "6h"
task_time = "2h"
task_tokens = 6000000
task_cost_usd = 6.00
task_attempts = 5
run_time = "8h"
run_tokens = 50000000
run_cost_usd = 20.00
run_attempts = 40

[claims]
lease = "15m"
hand_lease = "4h"
overlap = "skip"
duplicates = "warn"

[worktree]
setup = ""
setup_inputs = ["uv.lock"]
setup_timeout = "10m"
teardown = ""
copy = ["config/*.local.toml"]
keep = [".venv", "web/node_modules/"]
share = ["data"]
exclude = ["__pycache__/", "*.pyc", ".pytest_cache/"]
max_file = "10MiB"
sparse = ["services/api"]
max_total = "20GiB"

[env]
pass = ["UV_*", "NPM_TOKEN"]
port_base = 20000
ports = 10
[env.set]
DATABASE_URL = "postgres:///app_{slot}"

[prompt]
template = ".swarm/prompt.md"
rules = ""

[gate]
slots = 1
strategy = "auto"
style = "merge"
every_commit_green = false
review = "none"
protect = ["swarm.toml", ".swarm/**", ".worktreeinclude"]
scope = "warn"
reverted = "hold"
flaky = "land"
max_wait = "1h"

[[checks]]
name = "tests"
run = "uv run pytest -q"
cwd = "./web/"
timeout = "15m"
when = "always"
paths = ["web/**"]
retries = 1
slots = 0
keep = [".venv"]
env = { PYTHONPATH = "src" }
junit = ""
reads = "tree"
env_id = "uv --version"
[checks.codes]
could_not_run = [3]
flaky = [4]

[upstream]
remote = "origin"
branch = ""
push_branch = "swarm/{run}"
every = "15m"
pr = ""

[notify]
command = ""
"""


def problems(text: str | bytes) -> list[str]:
    """Every problem of a file, as `line key text` with single blanks."""
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(UsageError) as refusal:
        parse(data)
    assert refusal.value.exit_code is Exit.USAGE
    assert refusal.value.why is not None
    lines = [" ".join(line.split()) for line in refusal.value.why.splitlines()]
    assert all(line.startswith("swarm.toml:") for line in lines)
    return [line.removeprefix("swarm.toml:") for line in lines]


def test_an_empty_file_is_all_defaults() -> None:
    assert parse(b"") == Config()
    assert parse(b"").limits.attempt == timedelta(minutes=30)
    assert parse(b"").limits.cost_usd is None
    assert parse(b"").checks == ()


def test_every_key_is_read_into_its_type() -> None:
    config = parse(EVERY_KEY.encode())
    assert config.run.agents == (("claude", 3), ("codex", 2))
    assert config.run.roles == (("build", 3), ("review", 1))
    assert config.limits.output == 64 * 1024**2
    assert config.limits.cost_usd == 2.0
    assert config.worktree.keep == (".venv", "web/node_modules")
    assert config.env.pass_ == ("UV_*", "NPM_TOKEN")
    assert config.env.set == {"DATABASE_URL": "postgres:///app_{slot}"}
    assert config.upstream.every == timedelta(minutes=15)
    assert config.checks == (
        Check(
            name="tests",
            run="uv run pytest -q",
            cwd="web",
            paths=("web/**",),
            keep=(".venv",),
            env={"PYTHONPATH": "src"},
            env_id="uv --version",
            codes=Codes(could_not_run=(3,), flaky=(4,)),
        ),
    )


def test_the_example_names_every_key_there_is() -> None:
    """Keeps EVERY_KEY, and with it the tests that use it, complete."""

    def missing(kind: type[msgspec.Struct], raw: dict[str, Any]) -> list[str]:
        fields = msgspec.structs.fields(kind)
        gone = [f.encode_name for f in fields if f.encode_name not in raw]
        for f in fields:
            if isinstance(f.type, type) and issubclass(f.type, msgspec.Struct):
                gone += missing(f.type, raw[f.encode_name])
        return gone

    raw = tomllib.loads(EVERY_KEY)
    assert missing(Config, raw) == []
    assert missing(Check, raw["checks"][0]) == []


def test_all_problems_are_named_in_one_go_with_their_lines() -> None:
    text = """\
format = 1
taget = "main"
silence = "10m"
[run]
slots = "2"
home = "usr"
[limits]
attempt = 20
[[checks]]
name = "a"
run = '''
[run]
slots = 3
'''
cwd = "../.."
[[checks]]
name = "a"
run = "x"
  [checks.codes]
  flaky = [300]
[[checks]]
"""
    assert problems(text) == [
        "2 taget no such key; did you mean target?",
        "3 silence no such key here; [limits] has one",
        '5 run.slots want a whole number, got "2"',
        '6 run.home want one of "user", "private", got "usr"',
        "8 limits.attempt want a duration like 20m, got 20",
        '15 checks[1].cwd "../.." leaves the repository',
        '17 checks[2].name "a" is also the check of line 10',
        "20 checks[2].codes.flaky want 1 to 255, got 300",
        "21 checks[3].name is missing",
        "21 checks[3].run is missing",
    ]


def test_the_refusal_counts_and_its_hint_opens_the_file_at_the_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^1 problem in swarm\.toml$"):
        parse(b"x = 1")
    folder = tmp_path / "my app"
    folder.mkdir()
    (folder / "swarm.toml").write_text('target = "main"\nx = 1\n')
    with pytest.raises(UsageError) as refused:
        load(folder)
    assert refused.value.hint == f"${{EDITOR:-vi}} +2 '{folder}/swarm.toml'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("format = 2\nnew = 1", "1 format this swarm reads format 1, got 2"),
        ("format = true", "1 format this swarm reads format 1, got true"),
        ("run = 3", "1 run want a table [run], got 3"),
        ("[checks]\nname = 'a'", "1 checks write [[checks]], with two brackets: there may be"),
        ("checks = [1]", "1 checks[1] want a table [checks], got 1"),
        ("target = '-x'", '1 target "-x" cannot be the name of a branch'),
        ("target = 'a..b'", '1 target "a..b" cannot be the name of a branch'),
        ("target = 'refs/heads/a'", '1 target "refs/heads/a" cannot be'),
        ("target = ''", "1 target is empty"),
        ("tasks = '../tasks'", '1 tasks "../tasks" leaves the repository'),
        ("tasks = '.git/tasks'", '1 tasks ".git/tasks" lies in .git'),
        ("[run]\nagents = 'claude'", "2 run.agents want name:count,name:count, got"),
        ("[run]\nagents = 'a:1,a:2'", "2 run.agents names a twice"),
        ("[run]\nagents = 'a:0'", "2 run.agents want name:count"),
        ("[run]\nkeep_going = 1", "2 run.keep_going want true or false, got 1"),
        ("[run]\nslots = 0", "2 run.slots want at least 1, got 0"),
        ("[run]\nslots = true", "2 run.slots want a whole number, got true"),
        ("[limits]\nattempt = '20'", "2 limits.attempt want a duration like 20m, got 20"),
        ("[limits]\nattempt = '0s'", "2 limits.attempt want more than nothing"),
        ("[limits]\nbackoff = '99999999999999h'", "2 limits.backoff longer than a year"),
        ("[limits]\noutput = 64", "2 limits.output want a size like 10MiB, got 64"),
        ("[limits]\noutput = '64MB'", "2 limits.output want a size like 10MiB, got 64MB"),
        ("[limits]\noutput = '99999999999GiB'", "2 limits.output want more than nothing and less"),
        ("[limits]\ncost_usd = nan", "2 limits.cost_usd want more than 0, got NaN"),
        ("[limits]\ncost_usd = '2'", '2 limits.cost_usd want US dollars like 2.50, got "2"'),
        ("[limits]\ntokens = 1" + "0" * 400, "2 limits.tokens want at least 1, got 10000"),
        ("[worktree]\nexclude = ['[a']", '2 worktree.exclude "[a" has a [ without its ]'),
        ("[worktree]\nexclude = 'a'", '2 worktree.exclude want a list like [...], got "a"'),
        ("[worktree]\nkeep = ['**/x']", "2 worktree.keep want a path, not a glob"),
        ("[worktree]\nkeep = ['.']", "2 worktree.keep want a path below the repository"),
        ("[worktree]\nkeep = ['/x']", '2 worktree.keep "/x" leaves the repository'),
        ("[worktree]\nshare = ['a/node_modules']", "2 worktree.share never node_modules"),
        ("[env]\npass = ['A=b']", '2 env.pass "A=b" is no name of a variable'),
        ("[env.set]\nA = 1", "1 env.set A: want text in quotes, got 1"),
        ("[env]\nset.'a b' = ''", '2 env.set "a b" cannot be the name of a variable'),
        ("[upstream]\nremote = '--x'", '2 upstream.remote "--x" cannot be the name of a remote'),
        ("[[checks]]\nname = 'A b'\nrun = 'x'", "2 checks[1].name names are lower-case words"),
        ("[[checks]]\nname = 'a'\nrun = ' '", "3 checks[1].run is empty"),
        ("[[checks]]\nname = 'a'\nrun = 'x\\u0000'", "3 checks[1].run"),
        (
            "[[checks]]\nname='a'\nrun='x'\ncodes={ flaky=[3], could_not_run=[3] }",
            "4 checks[1].codes exit 3 cannot mean both",
        ),
        ("a = 1\na = 2", "2 file not TOML: Cannot overwrite a value"),
        ("a = [\n", "1 file not TOML"),
        ("x = 1" + "0" * 5000, "1 file not TOML"),
        ("x = " + "[" * 5000, "1 file nested too deeply"),
        (b"a = 1\nb = '\xff'", "2 file not UTF-8"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(text: str | bytes, expected: str) -> None:
    if "\\u0000" in str(text):
        text = str(text).replace("'x\\u0000'", '"x\\u0000"')
        expected += " holds a NUL character"
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    "url",
    ["https://x/y.git", "file:///srv/x.git", "git@host:x.git", "host:x", "ssh://h/x", "ext::sh -c"],
)
def test_a_hub_behind_a_url_is_refused(url: str) -> None:
    (found,) = problems(f"hub = '{url}'")
    assert found.startswith("1 hub want a path on this machine; a URL is refused for now")


@pytest.mark.parametrize("path", ["../app.swarm/hub.git", "/srv/hub.git", "./a:b/hub.git"])
def test_a_hub_is_a_path(path: str) -> None:
    assert parse(f"hub = '{path}'".encode()).hub == path


def test_limits_are_lifted_by_an_empty_text() -> None:
    limits = parse(b"[limits]\nattempt = ''\nsilence = ''").limits
    assert limits.attempt is None
    assert limits.silence is None
    assert limits.strikes == 3


def test_a_key_that_steers_terminals_is_shown_escaped() -> None:
    (found,) = problems('"\\u001b[2J" = 1')
    assert "\x1b" not in found
    assert "\\x1b" in found


def test_a_file_over_the_size_limit_is_not_read() -> None:
    with pytest.raises(UsageError) as refusal:
        parse(b"#" * (1 << 20) + b"\n")
    assert refusal.value.why == "swarm.toml   file   larger than 1 MiB"


def test_windows_line_ends_and_a_byte_order_mark_are_read() -> None:
    text = b"\xef\xbb\xbf" + EVERY_KEY.replace("\n", "\r\n").encode()
    assert parse(text) == parse(EVERY_KEY.encode())


def test_load_puts_the_hub_beside_the_checkout(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "swarm.toml").write_text("format = 1\n")
    assert load(app).hub == "../app.swarm/hub.git"
    (app / "swarm.toml").write_text("hub = '/srv/hub.git'\n")
    assert load(app).hub == "/srv/hub.git"


def test_load_without_a_file_hints_at_init(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        load(tmp_path)
    assert refusal.value.hint == "swarm init"


def test_load_of_a_folder_says_why(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").mkdir()
    with pytest.raises(UsageError) as refusal:
        load(tmp_path)
    assert refusal.value.why == "Is a directory"


def test_the_digest_tells_what_is_in_effect() -> None:
    assert parse(b"").digest == parse(b"format = 1 # the default\n[run]\nslots = 2").digest
    assert parse(b"").digest != parse(b"[run]\nslots = 3").digest
    ab = b"[env.set]\nA = '1'\nB = '2'"
    ba = b"[env.set]\nB = '2'\nA = '1'"
    assert parse(ab).digest == parse(ba).digest


def test_key_lines_passes_over_what_only_looks_like_keys() -> None:
    text = '''\
a = """
b = 1
[c]"""  # [d]
e = [ # [f
  "[g]", '"',
  { h = 1 },
]
[ "i j" . k ]
l.m = 1

[[n]]
[[n]]
[[n.o]]
p = '"""'
[n.o.q]
'''
    assert key_lines(text) == {
        ("a",): 1,
        ("e",): 4,
        ("i j",): 8,
        ("i j", "k"): 8,
        ("i j", "k", "l"): 9,
        ("i j", "k", "l", "m"): 9,
        ("n",): 11,
        ("n", 0): 11,
        ("n", 1): 12,
        ("n", 1, "o"): 13,
        ("n", 1, "o", 0): 13,
        ("n", 1, "o", 0, "p"): 14,
        ("n", 1, "o", 0, "q"): 15,
    }


def test_a_listing_is_sorted_and_in_columns() -> None:
    found = [Problem("b", 3, "paths", "x"), Problem("a", 10, "id", "y"), Problem("a", 9, "id", "z")]
    assert listing(found) == "a:9    id      z\na:10   id      y\nb:3    paths   x"
    assert str(Problem("a", 0, "file", "larger than 1 MiB")) == "a   file   larger than 1 MiB"
    assert listing([]) == ""


def test_shown_text_is_cut_and_cannot_steer() -> None:
    assert shown("a\x1b[31m\u202eb\n") == "a\\x1b[31m\\u202eb\\n"
    assert shown("x" * 100, 10) == "xxxxxxx..."


def test_a_starter_without_checks_shows_how_to_write_one() -> None:
    text = starter(target="main", hub="../app.swarm/hub.git", checks=[])
    assert "# [[checks]]" in text
    assert parse(text.encode()) == Config(hub="../app.swarm/hub.git")


printable = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
filled = printable.filter(str.strip)
names = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,3})?", fullmatch=True)
entries = st.lists(
    st.from_regex(r"[a-z.\"' \[]{1,3}[a-z](/[a-z]{2})?", fullmatch=True).filter(
        lambda path: ".." not in path and ".git" not in path and path.strip(".") == path
    ),
    max_size=2,
    unique=True,
).map(tuple)
checks = st.builds(
    Check,
    name=names,
    run=filled,
    cwd=st.sampled_from([".", "web", "a/b"]),
    timeout=st.integers(1, 100_000).map(lambda s: timedelta(seconds=s)),
    when=st.sampled_from(["always", "asked"]),
    paths=st.sampled_from([(), ("web/**", "!web/x")]),
    retries=st.integers(0, 3),
    slots=st.integers(0, 3),
    keep=entries,
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), printable, max_size=2),
    junit=st.sampled_from(["", "out/junit.xml"]),
    reads=st.sampled_from(["tree", "history"]),
    env_id=printable,
    codes=st.sampled_from([Codes(), Codes(could_not_run=(3,)), Codes(flaky=(4, 5))]),
)


@given(st.lists(checks, max_size=3, unique_by=lambda c: c.name), printable, entries)
def test_a_starter_parses_back_to_what_was_found_out(
    found: list[Check], setup: str, keep: tuple[str, ...]
) -> None:
    text = starter(
        target="trunk/x",
        hub="../app.swarm/hub.git",
        checks=found,
        setup=setup,
        setup_inputs=["uv.lock"],
        keep=keep,
    )
    config = parse(text.encode())
    assert config.target == "trunk/x"
    assert config.checks == tuple(found)
    assert config.worktree.setup == setup
    assert config.worktree.setup_inputs == ("uv.lock",)
    assert config.worktree.keep == keep
    assert config.run == Config().run
    assert config.limits == Config().limits
