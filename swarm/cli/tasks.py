"""Tasks as people write them: add, import, edit, list, cancel, reopen; plan check.

Enters: words and files. Leaves: task files and events.
Guards: everything that is wrong is said in one go, and then nothing is started.
"""

from __future__ import annotations

import click


@click.group()
def task() -> None:
    """Add, list and change tasks."""


@click.group("plan")
def plan_group() -> None:
    """Judge the task files."""
