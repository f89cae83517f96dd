# Everything needs only python3 (3.11+), git (2.39+) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Where it is set, every process would compile swarm anew: half of the time of a command.
unexport PYTHONDONTWRITEBYTECODE
STAMP  := $(VENV)/.installed

.PHONY: help demo test lint agents test-agents bench clean
help:            ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml
	@echo "$(VENV)     making it (first run only)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)   ## the main job on a small project: 15 tasks, 4 scripted agents, no model
	@$(BIN)/python -m swarm.demo

lint: $(STAMP)   ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

agents: $(STAMP) ## real agent programs for the tests, into a cache; those that cannot be had are skipped
	@$(BIN)/python tests/agents/install.py --ci

test: $(STAMP) lint agents  ## lint, types and the whole test-suite
	@$(BIN)/python -m pytest -n auto -q -m "not full"

test-agents: $(STAMP) ## every real agent program that can be had here, at all its ends: minutes
	@$(BIN)/python tests/agents/install.py --seconds 900
	@$(BIN)/python -m pytest -n 2 -q tests/agents

bench: $(STAMP)  ## ratios against rivals in the same run
	@$(BIN)/python bench/claims.py
	@$(BIN)/python bench/pick.py
	@$(BIN)/python bench/slot.py
	@$(BIN)/python bench/land.py
	@$(BIN)/python bench/hooks.py
	@$(BIN)/python bench/log.py
	@$(BIN)/python bench/supervise.py

clean:           ## forget the environment and the demo
	rm -rf $(VENV) .demo build dist *.egg-info
