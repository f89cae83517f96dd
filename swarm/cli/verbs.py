"""The list of verbs, and where each one lives.

Enters: a verb's name. Leaves: its command. Guards: only the module of the typed verb is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from pathlib import Path

import click

from swarm import __version__
from swarm.errors import SwarmError, UsageError

# verb -> (module below swarm.cli, function), in the order of the help page.
VERBS: dict[str, tuple[str, str]] = {
    "init": ("setup", "init"),
    "uninit": ("setup", "uninit"),
    "task": ("tasks", "task"),
    "plan": ("planning", "plan_group"),
    "agents": ("agents", "agents"),
    "run": ("run", "run"),
    "pull": ("branch", "pull"),
    "push": ("branch", "push"),
    "sync": ("offers", "sync"),
    "revert": ("offers", "revert"),
    "approve": ("steer", "approve"),
    "reject": ("steer", "reject"),
    "tell": ("steer", "tell"),
    "pause": ("steer", "pause"),
    "resume": ("steer", "resume"),
    "stop": ("steer", "stop"),
    "status": ("look", "status"),
    "claims": ("look", "claims"),
    "queue": ("look", "queue"),
    "show": ("look", "show"),
    "costs": ("look", "costs"),
    "log": ("look", "log"),
    "tail": ("look", "tail"),
    "diff": ("look", "diff"),
    "claim": ("hand", "claim"),
    "submit": ("hand", "submit"),
    "release": ("hand", "release"),
    "renew": ("hand", "renew"),
    "ask": ("hand", "ask"),
    "gate": ("gate", "gate"),
    "doctor": ("heal", "doctor"),
    "rescue": ("heal", "rescue"),
}

# What only looks has no more to do once nobody reads it, and a run that nobody follows is stopped.
_ENDS_UNREAD = frozenset(
    {"status", "claims", "queue", "show", "costs", "log", "tail", "diff", "run"}
)
# Told an agent that types them by mistake; what holds an agent back for good is a sandbox.
_FOR_PEOPLE = frozenset(
    {"init", "uninit", "run", "gate", "approve", "reject", "pause", "resume"}
    | {"pull", "push", "sync", "revert"}
)
_IN_HAND_SLOT = re.compile(r"/slots/h[0-9]+(?:/|$)")  # whose claims each command there renews


class Lazy(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module, function = VERBS[name]
        command = getattr(importlib.import_module(f"swarm.cli.{module}"), function)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from swarm.similar import nearest

            near = nearest(args[0], list(VERBS)) if args else None
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near}?", ctx) from error
            raise


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swarm")
@click.option("-C", "folder", type=click.Path(exists=True, file_okay=False), help="Run there.")
def swarm(folder: str | None) -> None:
    """Run several coding agents on one repository; only work that passes your checks lands."""
    verb = click.get_current_context().invoked_subcommand
    if verb in _FOR_PEOPLE and "SWARM_MARK" in os.environ:
        raise UsageError(
            f"swarm {verb} is a person's word, and this is an agent's attempt",
            hint='swarm ask "your question"\nswarm release --reason "why"',
        )
    if verb is not None and verb not in _ENDS_UNREAD:
        from swarm.cli.pipe import outlive_readers

        outlive_readers()
    if folder is not None:
        os.chdir(Path(folder))
    if _IN_HAND_SLOT.search(str(Path.cwd())):
        from swarm.workspace import opened

        with contextlib.suppress(SwarmError), opened() as work:  # renewal fails open
            from swarm.hand import find_stand, renew

            stand = find_stand(work.layout, work.ledger.hub, Path.cwd())
            if stand is not None:
                renew(work, stand)
