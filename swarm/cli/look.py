"""Looking: status, log."""

from __future__ import annotations

import click

from swarm.output import event_line
from swarm.workspace import opened


@click.command()
def status() -> None:
    """What needs you, what works, what waits."""
    with opened() as work:
        view = work.ledger.view()
        for row in work.ledger.index.rows(view):
            click.echo(f"{row.id:<20} {row.state.value:<9} {row.why}")


@click.command()
def log() -> None:
    """Events, newest first."""
    with opened() as work:
        for logged in work.ledger.iter_log():
            click.echo(event_line(logged, logged.at.strftime("%H:%M:%S")))
