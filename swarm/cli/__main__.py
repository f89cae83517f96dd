"""`python -m swarm.cli`."""

from swarm.cli import main

main()
