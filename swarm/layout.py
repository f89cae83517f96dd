"""Where things lie on disk, beside the user's repository.

Enters: the checkout, or a state folder. Leaves: paths. Guards: every path of ours is below one
folder, so that a delete can prove it stays inside.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Layout(msgspec.Struct, frozen=True):
    """`app.swarm/` beside `app/`."""

    root: Path
    hub: Path  # usually root/hub.git; another bare repository when the configuration says so

    @property
    def slots(self) -> Path:
        """`s1.git`, `s1`, ...: a repository per slot and its worktree."""
        return self.root / "slots"

    @property
    def homes(self) -> Path:
        """A HOME per slot, when the configuration says `private`."""
        return self.root / "homes"

    @property
    def gate(self) -> Path:
        """The same for checks: `g1.git`, `g1`."""
        return self.root / "gate"

    @property
    def runs(self) -> Path:
        """`<runner>.alive`, `<run>/run.json`, `<run>/<task>/<token>/...`."""
        return self.root / "runs"

    @property
    def notified(self) -> Path:
        """What `[notify] command` was told; `notified.lock` beside it is held by who tells."""
        return self.runs / "notified.json"

    @property
    def limits(self) -> Path:
        """Which agent accounts their providers limit, and until when."""
        return self.runs / "limits.json"

    @property
    def checks(self) -> Path:
        """Check output, capped."""
        return self.root / "checks"

    @property
    def cache(self) -> Path:
        """May be deleted at any time."""
        return self.root / "cache"

    def attempt(self, run: str, task: str, token: int) -> Path:
        """The folder of one attempt: prompt, transcript, outcome."""
        return self.runs / (run or "hand") / task / str(token)


def beside(checkout: Path, hub: str) -> Layout:
    """The layout of a checkout whose configuration names `hub` (relative to the checkout)."""
    checkout = checkout.resolve()
    root = checkout.with_name(checkout.name + ".swarm")
    return Layout(root, (checkout / hub).resolve())
