# One verb each; CI calls the same verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLANT ?=
SIGN ?=
TORCH := torch==2.13.0
# On a terminal pip shows its own progress; elsewhere only what goes wrong.
QUIET := $(shell test -t 2 || echo -q)

.PHONY: help setup onboard test lint format faults bench soak docs snapshots clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# torch first and alone: a local CPU build wins over the default one where pip is offered both
# (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS are honoured by pip itself).
$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[1/3] pip >= 25.1 (dependency groups)"; $(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	@echo "[2/3] $(TORCH): 200 MB as a CPU build, some GB otherwise"; $(BIN)/python -m pip install $(QUIET) "$(TORCH)"
	@echo "[3/3] plumbline and its tools"; $(BIN)/python -m pip install $(QUIET) "$(TORCH)" --group dev -e .
	@touch $@

setup: $(VENV)/.installed ## make .venv and install (torch first)

onboard: setup ## scan the embedded release; PLANT=<fault id> plants one fault, SIGN=example asks nobody
	@$(BIN)/plumbline onboard $(if $(PLANT),--plant $(PLANT)) $(if $(SIGN),--sign $(SIGN))

# One file of tests stays in one process, so what a module shares is made once; more than one thread for each
# process would only make them wait for one another.
test: setup ## run the tests, as many files at once as there are cores (4 at most)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

lint: setup ## ruff, mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: setup ## format and fix
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

faults: setup ## play the whole fault corpus
	@$(BIN)/plumbline faults run --corpus tests/faults

bench: setup ## benchmarks as ratios; writes bench.json
	@$(BIN)/python -m tests.benchmarks

soak: setup ## stop every program at seeded moments and fill its disk, then run it again
	@$(BIN)/python -m tests.soak
	@$(BIN)/python -m tests.approvals.soak
	@$(BIN)/python -m tests.soak.agent_points

docs: setup ## regenerate docs/
	@$(BIN)/python -m tests.docs

snapshots: setup ## rewrite tests/snapshots: each tool as an agent sees it
	@$(BIN)/python -m tests.snapshots

clean: ## remove what the build made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache bench.json
