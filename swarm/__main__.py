"""`python -m swarm`."""

from swarm.cli import main

main()
