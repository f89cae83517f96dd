"""The prompt says all that is known, and reads nothing of it as a template."""

from __future__ import annotations

import dataclasses

import pytest

from swarm.errors import UsageError
from swarm.prompt import (
    CheckFacts,
    LastFacts,
    NeedFacts,
    PromptFacts,
    TaskFacts,
    ToldFacts,
    check,
    render,
)

FIRST = PromptFacts(
    task=TaskFacts(id="csv-export", title="Export as CSV", body="One row per invoice.\n"),
    branch="csv-export",
    attempt=1,
    checks=(CheckFacts(name="tests", run="pytest -q"),),
)
AGAIN = dataclasses.replace(
    FIRST,
    attempt=2,
    paths=("src/report/**", "tests/report/**"),
    needs=(NeedFacts(id="money-type", title="A money type", landed="6f20a3d", files=4),),
    last=LastFacts(
        message="Conflict with money-rename.", detail="2 files", conflict=("src/a.py", "src/b.py")
    ),
    rules="Write British English.",
)


def test_a_first_attempt_is_told_the_task_the_rules_and_the_checks() -> None:
    assert render(FIRST) == (
        "Export as CSV\n"
        "\n"
        "One row per invoice.\n"
        "\n"
        "\n"
        "Rules: work in this folder only. Commit when a step is done; do not push."
        " These checks decide:\n"
        "- pytest -q\n"
        'If you cannot go on without an answer: swarm ask "your question".'
        ' To give up: swarm release --reason "why".\n'
    )


def test_a_later_attempt_is_told_why_the_last_was_sent_back() -> None:
    text = render(AGAIN)
    assert "Change only files under: src/report/**, tests/report/**\n" in text
    assert "- money-type: A money type (6f20a3d, 4 files)\n" in text
    assert "Your last attempt was sent back. Conflict with money-rename.\n2 files\n" in text
    assert "An earlier" not in text
    assert "files with conflict markers: src/a.py, src/b.py\n" in text
    assert text.endswith("Write British English.\n")


def test_an_earlier_verdict_stands_below_the_last_end() -> None:
    back = LastFacts(message="tests failed", detail="FAILED test_a")
    text = render(dataclasses.replace(AGAIN, sent_back=back))
    assert text.index("Conflict with") < text.index("An earlier attempt's change was sent back.")
    assert "sent back. tests failed\nFAILED test_a\n" in text


def test_what_people_said_stands_there_with_the_questions() -> None:
    told = (
        ToldFacts(text="Per invoice,\nhalf up.", by="ann", question="Per seat?\nOr per invoice?"),
        ToldFacts(text="Mind the tests.", by="ben"),
    )
    last = LastFacts(message="Per seat? Or per invoice?", asked=True)
    text = render(dataclasses.replace(AGAIN, last=last, told=told))
    assert "Your last attempt ended with a question. Per seat? Or per invoice?\n" in text
    assert "sent back" not in text
    assert (
        "\nWhat people said to you about this task:\n"
        "- You asked: Per seat?\n  Or per invoice?\n"
        "  ann answered: Per invoice,\n  half up.\n"
        "- ben said: Mind the tests.\n"
        "\nRules: "
    ) in text


def test_no_conflict_is_mentioned_where_there_was_none() -> None:
    last = LastFacts(message="tests failed.", detail="1 failed")
    assert "conflict" not in render(dataclasses.replace(AGAIN, last=last))


def test_what_people_and_agents_wrote_is_never_a_template() -> None:
    words = "{{ 7 * 7 }} {% for x in y %} {# gone #} <b>&amp;"
    facts = dataclasses.replace(
        AGAIN,
        task=TaskFacts(id="t", title=words, body=words),
        last=LastFacts(message=words, detail=words, conflict=(words,)),
        checks=(CheckFacts(name="c", run=words),),
        told=(ToldFacts(text=words, by=words, question=words),),
        rules=words,
    )
    assert render(facts).count(words) == 10
    assert "49" not in render(facts)


def test_a_users_template_may_use_every_fact() -> None:
    template = (
        "{{ task.id }} {{ branch }} {{ attempt }} {{ paths | length }} {{ needs[0].id }}"
        " {{ last.message }} {{ told | length }} {{ checks[0].name }} {{ rules }}"
    )
    check(template, name="p")
    said = "csv-export csv-export 2 2 money-type Conflict with money-rename. 0 tests"
    assert render(AGAIN, template) == said + " Write British English.\n"


@pytest.mark.parametrize(
    ("template", "saying"),
    [
        ("ok\n\n{{ titel }}", "p.md:3: unknown name titel"),
        ("{{ taks.title }}", "p.md:1: unknown name taks, did you mean task?"),
        ("{% if false %}\n{{ nope }}{% endif %}", "p.md:2: unknown name nope"),
        ("a\n{{ task.titel }}", "p.md:2: "),
        ("a\n{% if last %}\n{{ last.mesage }}{% endif %}", "p.md:3: "),
        ("{% if x", "p.md:1: "),
        ("a\n{{ 1 / 0 }}", "p.md:2: division by zero"),
        ("a\n{{ task + 1 }}", "p.md:2: unsupported operand"),
        ("a\n{% include '/etc/passwd' %}", "p.md"),
        ("a\n{{ task.title.nope() }}", "p.md:2: "),
        ("{{ task | nofilter }}", "p.md:1: No filter named 'nofilter'"),
    ],
)
def test_a_wrong_template_is_named_with_its_line(template: str, saying: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(template, name="p.md")
    assert refused.value.what.startswith(saying)
    assert refused.value.hint is not None
    assert "task" in refused.value.hint


@pytest.mark.parametrize(
    "attack",
    [
        "{{ task.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ task.title.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(task) }}",
        "{{ range(10**9) | list }}",
        "{{ cycler.__init__.__globals__.os.system('id') }}",
    ],
)
def test_a_template_reaches_nothing_but_its_facts(attack: str) -> None:
    with pytest.raises(UsageError):
        render(FIRST, attack)
