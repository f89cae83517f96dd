"""Coming and going: init, uninit, pull.

Enters: a checkout. Leaves: a hub and a configuration beside it, or them taken back.
Guards: the checkout gets new files and one remote, each named; nothing existing is changed.
"""

from __future__ import annotations

from pathlib import Path

import click

from swarm.config import Check, load, starter
from swarm.detect import detect
from swarm.errors import UsageError
from swarm.layout import beside
from swarm.ledger.store import Ledger
from swarm.plumbing import checkout as user
from swarm.plumbing.hub import Hub
from swarm.workspace import opened


@click.command()
@click.option("--no-check", is_flag=True, help="Do not run the checks on the target.")
def init(no_check: bool) -> None:
    """Make a hub beside this repository and find its test command."""
    found = user.look(Path.cwd())
    if found.head is None:
        raise UsageError("this repository has no commit yet", hint="git commit")
    if found.branch is None:
        raise UsageError("HEAD is detached: no branch to land on", hint="git switch main")
    config_file = found.root / "swarm.toml"
    hub_name = f"../{found.root.name}.swarm/hub.git"
    tracked = user.tracked_files(found.root)
    click.echo(
        f"{found.root.name:<9} branch {found.branch} at {found.head[:7]}, {len(tracked)} files"
    )
    if not config_file.exists():
        seen = detect(found.root, tracked)
        checks = [Check(name=c.name, run=c.run, env=dict(c.env), keep=c.keep) for c in seen.checks]
        text = starter(
            target=found.branch,
            hub=hub_name,
            checks=checks,
            setup=seen.setup,
            setup_inputs=seen.setup_inputs,
            keep=seen.keep,
        )
        config_file.write_text(text, "utf-8")
        click.echo("config    swarm.toml             new")
    config = load(found.root)
    layout = beside(found.root, config.hub)
    hub = Hub.create(layout.hub, config.target, found.git_dir, found.head)
    ledger = Ledger(hub, config.target, layout.cache)
    ledger.create()
    click.echo(f"hub       {config.hub}   {config.target} = {hub.tip(config.target)[:7]}")
    (found.root / config.tasks).mkdir(exist_ok=True)
    if user.add_remote(found.root, "swarm", layout.hub, config.target):
        click.echo(f"remote    swarm   added to this checkout, branch {config.target} only")
    ledger.close()


@click.command()
def pull() -> None:
    """Fast-forward this branch to what landed."""
    with opened() as work:
        answer = user.pull(work.checkout, "swarm", work.config.target)
    if isinstance(answer, str):
        raise UsageError("git would not fast-forward", why=answer)
    click.echo(f"{work.config.target}  {answer.old[:7]} -> {answer.new[:7]}")
