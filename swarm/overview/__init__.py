"""What is the case now and what was: one record for each thing that people look at.

Enters: a ledger at one moment, and what lies in the state folder. Leaves: records that text and
JSON are both made from. Guards: reads only; every figure has a source and an age; what is not known
is None, never 0.
"""

from swarm.overview.agents import (
    Agent,
    AgentLine,
    Agents,
    Asks,
    EndLine,
    Forgot,
    Holds,
    Ready,
    Refused,
    WouldRun,
    Wrong,
    agent,
    agents,
    asks,
    memory,
    origin_of,
)
from swarm.overview.attempts import AttemptLine, CheckLine, attempt_folder
from swarm.overview.claims import Claims, claims
from swarm.overview.costs import CostLine, Costs, Sum, UsageLine, costs
from swarm.overview.diff import Compared, Conflicted, compare, compare_merged, diff
from swarm.overview.disk import Disk, measure_disk
from swarm.overview.events import event_json
from swarm.overview.live import Live, LiveCheck, LiveSlot, live_path, read_live, write_live
from swarm.overview.merged import Merged, held_since, merged_entry
from swarm.overview.moment import Reading
from swarm.overview.needs import Need, Notice
from swarm.overview.queue import Change, GateNow, Queue, queue
from swarm.overview.slots import SlotNow
from swarm.overview.standing import SHOWN, Standing, shown_state, stand
from swarm.overview.status import (
    Cost,
    Counts,
    Limited,
    QueueLine,
    RunNow,
    Status,
    UpstreamNow,
    Waiting,
    status,
)
from swarm.overview.story import NeedLine, Story, find_task, story
from swarm.overview.target import Target, TargetVerdict
from swarm.overview.tasks import TaskLine, Tasks, tasks

__all__ = [
    "SHOWN",
    "Agent",
    "AgentLine",
    "Agents",
    "Asks",
    "AttemptLine",
    "Change",
    "CheckLine",
    "Claims",
    "Compared",
    "Conflicted",
    "Cost",
    "CostLine",
    "Costs",
    "Counts",
    "Disk",
    "EndLine",
    "Forgot",
    "GateNow",
    "Holds",
    "Limited",
    "Live",
    "LiveCheck",
    "LiveSlot",
    "Merged",
    "Need",
    "NeedLine",
    "Notice",
    "Queue",
    "QueueLine",
    "Reading",
    "Ready",
    "Refused",
    "RunNow",
    "SlotNow",
    "Standing",
    "Status",
    "Story",
    "Sum",
    "Target",
    "TargetVerdict",
    "TaskLine",
    "Tasks",
    "UpstreamNow",
    "UsageLine",
    "Waiting",
    "WouldRun",
    "Wrong",
    "agent",
    "agents",
    "asks",
    "attempt_folder",
    "claims",
    "compare",
    "compare_merged",
    "costs",
    "diff",
    "event_json",
    "find_task",
    "held_since",
    "live_path",
    "measure_disk",
    "memory",
    "merged_entry",
    "origin_of",
    "queue",
    "read_live",
    "shown_state",
    "stand",
    "status",
    "story",
    "tasks",
    "write_live",
]
