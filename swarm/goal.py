"""What an agent is told that turns one goal into task files.

Enters: a goal, and facts about the repository. Leaves: the prompt.
Guards: what people and agents wrote is data and is never read as a template; a name that the
template lacks is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import jinja2
import msgspec

from swarm.errors import UsageError
from swarm.trailers import one_line

MAX_GOAL = 64 << 10  # bytes
MOST_TASKS = 200  # of those that are there already
_MOST_COLUMNS = 200  # of a title


class CheckFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One of `checks`, in the order in which they run."""

    name: str
    run: str
    when: str  # "always", or "asked": only for tasks that name it


class KnownTask(msgspec.Struct, frozen=True, kw_only=True):
    """One of `tasks`: there already."""

    id: str
    title: str
    state: str  # as lists show it, or where it is written


class GoalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Every name that the template uses."""

    goal: str
    folder: str  # of task files, below the worktree
    checks: tuple[CheckFacts, ...] = ()
    roles: tuple[str, ...] = ()  # that slots have
    tasks: tuple[KnownTask, ...] = ()  # the first ones
    more: int = 0  # how many are not listed
    rules: str = ""  # `[prompt] rules`


def read_goal(text: str) -> str:
    """The goal, fit to be handed to an agent.

    Raises:
        UsageError: it is empty, too long, or no text.
    """
    if "\0" in text:
        raise UsageError("the goal holds a NUL character")
    goal = text.encode("utf-8", "replace").decode().strip()
    if not goal:
        raise UsageError(
            "the goal is empty", hint='swarm plan new "What should be reached" --agent claude'
        )
    if len(goal.encode()) > MAX_GOAL:
        raise UsageError(
            f"the goal has more than {MAX_GOAL >> 10} KiB",
            why="write what is longer into a file of the repository, commit it, and name it",
        )
    return goal


def render(facts: GoalFacts) -> str:
    """The prompt, with one newline at its end."""
    source = resources.files("swarm").joinpath("plan.md.j2").read_text("utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    context = {name: getattr(facts, name) for name in GoalFacts.__struct_fields__}
    return environment.from_string(source).render(context).rstrip() + "\n"


def first_tasks(tasks: Sequence[KnownTask]) -> tuple[tuple[KnownTask, ...], int]:
    """Those that are told, each on one line; and how many are not."""
    told = tuple(
        KnownTask(id=task.id, title=one_line(task.title, _MOST_COLUMNS), state=task.state)
        for task in tasks[:MOST_TASKS]
    )
    return told, len(tasks) - len(told)
