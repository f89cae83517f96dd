"""Text for people: one function per thing that is shown.

Enters: records and events. Leaves: lines of at most 100 columns.
Guards: text of tasks, agents and repositories never reaches a terminal as control characters.
"""

from swarm.output.agents import render_agent, render_agents, render_forgot, render_ready
from swarm.output.costs import cost_text, render_costs, tokens_text
from swarm.output.diff import compared_lines, conflicted_lines, diff_lines
from swarm.output.events import QUIET, event_line, log_foot, word_of
from swarm.output.lists import merged_text, render_claims, render_queue, render_tasks
from swarm.output.status import render_status
from swarm.output.story import render_story
from swarm.output.summary import standing_lines
from swarm.output.words import (
    WIDTH,
    ago,
    clean,
    clock,
    columns,
    cut,
    plural,
    since_text,
    size_text,
)

__all__ = [
    "QUIET",
    "WIDTH",
    "ago",
    "clean",
    "clock",
    "columns",
    "compared_lines",
    "conflicted_lines",
    "cost_text",
    "cut",
    "diff_lines",
    "event_line",
    "log_foot",
    "merged_text",
    "plural",
    "render_agent",
    "render_agents",
    "render_claims",
    "render_costs",
    "render_forgot",
    "render_queue",
    "render_ready",
    "render_status",
    "render_story",
    "render_tasks",
    "since_text",
    "size_text",
    "standing_lines",
    "tokens_text",
    "word_of",
]
