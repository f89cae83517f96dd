"""swarm: a git-backed coordinator for coding agents."""

__version__ = "0.1.0"
