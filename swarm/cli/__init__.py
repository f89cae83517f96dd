"""The command line. Enters: argv. Leaves: text or JSON and an exit code.

Guards: one error boundary: 1 and up for what a person must act on, 3 for our own faults.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `swarm` and `git-swarm`."""
    from swarm.cli.boundary import run

    sys.exit(run(sys.argv[1:]))
