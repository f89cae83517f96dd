"""The text that an agent is given.

Enters: facts about a task and its last attempt; a template, the user's or the built-in one.
Leaves: the prompt. Guards: an unknown name is an error before any agent starts; what people and
agents wrote is data and is never read as a template.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import resources
from types import TracebackType

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swarm.errors import UsageError

_FILE = "<template>"  # what jinja2 calls a template without a file in tracebacks
# Whatever an expression of a template can raise: the template is wrong then, not this program.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """`task` of a template."""

    id: str
    title: str
    body: str  # as written


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedFacts:
    """One of `needs`: a landed task on which this one builds."""

    id: str
    title: str
    landed: str  # its landing commit, shortened
    files: int  # how many it changed


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFacts:
    """`last`, `sent_back`: how an attempt ended."""

    message: str  # one sentence
    detail: str = ""
    conflict: tuple[str, ...] = ()  # paths with conflict markers
    asked: bool = False  # it ended with a question, which is what stands in the two above


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFacts:
    """One of `told`: what a person said since the task was first worked on; the newest last."""

    text: str
    by: str
    question: str = ""  # of an earlier attempt, which it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One of `checks`, in the order in which they run."""

    name: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """Every name that a template may use."""

    task: TaskFacts
    branch: str  # of the worktree
    attempt: int
    paths: tuple[str, ...] = ()  # globs; empty: anything
    needs: tuple[NeedFacts, ...] = ()
    last: LastFacts | None = None  # None: the first attempt
    sent_back: LastFacts | None = None  # an earlier one that was, when the last one was not
    told: tuple[ToldFacts, ...] = ()
    checks: tuple[CheckFacts, ...] = ()
    rules: str = ""  # `[prompt] rules`


NAMES = tuple(PromptFacts.__dataclass_fields__)

# With everything present, so that no branch of a template is left untried.
_SAMPLE = PromptFacts(
    task=TaskFacts(id="a-task", title="A task", body="Do it."),
    branch="a-task",
    attempt=2,
    paths=("src/**",),
    needs=(NeedFacts(id="a-need", title="A need", landed="0123456", files=1),),
    last=LastFacts(message="tests failed", detail="1 failed", conflict=("src/a.py",)),
    sent_back=LastFacts(message="tests failed", detail="1 failed"),
    told=(ToldFacts(text="Per invoice.", by="ann", question="Per seat?"),),
    checks=(CheckFacts(name="tests", run="true"),),
    rules="Be brief.",
)


def render(facts: PromptFacts, template: str | None = None, *, name: str = "prompt") -> str:
    """The prompt, with one newline at its end.

    Args:
        template: Jinja2 text; None is the built-in one.
        name: of the template's file, for the error.

    Raises:
        UsageError: the template does not parse, uses an unknown name or fails; with its line.
    """
    source = _built_in() if template is None else template
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        tree = environment.parse(source)
        _refuse_unknown(tree, known={*NAMES, *environment.globals}, name=name)
        context = {field: getattr(facts, field) for field in NAMES}
        text = environment.from_string(tree).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise _wrong(name, error.lineno, error.message or "does not parse") from error
    except _FAULTS as error:
        raise _wrong(name, _line_of(error.__traceback__), str(error)) from error
    return text.rstrip() + "\n"


def render_resumed(facts: PromptFacts) -> str:
    """What an agent is told that goes on with its own session."""
    return render(facts, resources.files("swarm").joinpath("resumed.md.j2").read_text("utf-8"))


def check(template: str, *, name: str) -> None:
    """Tries a user's template on facts that reach all of it: done once, before a run starts.

    Raises:
        UsageError: as render.
    """
    render(_SAMPLE, template, name=name)


def _built_in() -> str:
    return resources.files("swarm").joinpath("prompt.md.j2").read_text("utf-8")


def _refuse_unknown(tree: nodes.Template, *, known: set[str], name: str) -> None:
    # StrictUndefined alone would speak up only when the branch that holds the name is taken.
    unknown = meta.find_undeclared_variables(tree) - known
    for node in tree.find_all(nodes.Name):
        if node.name in unknown:
            close = difflib.get_close_matches(node.name, NAMES, n=1)
            meant = f", did you mean {close[0]}?" if close else ""
            raise _wrong(name, node.lineno, f"unknown name {node.name}{meant}")


def _wrong(name: str, line: int | None, why: str) -> UsageError:
    place = name if line is None else f"{name}:{line}"
    return UsageError(f"{place}: {why}", hint="known names: " + " ".join(NAMES))


def _line_of(traceback: TracebackType | None) -> int | None:
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
