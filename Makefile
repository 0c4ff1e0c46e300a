# `make` alone lists what there is. Every target first brings VENV to the versions of constraints.txt.
VENV ?= .venv
PYTHON ?=
CONFIG ?= grpo.yaml
TEST_ARGS ?=
MUTATE ?=

SHELL := /bin/bash
PY := "$(VENV)/bin/python"
export PYTHON
# Another environment than .venv may be shared by several checkouts: this one's code comes first.
export PYTHONPATH := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint format docs mutate-keys night bench vllm-cpu sglang-cpu env-run env-dev

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  VENV=DIR (now $(VENV)) and PYTHON=/path/to/python3 choose the environment and what makes it"

quickstart: env-run ## Start a first run: python -m launcher --config grpo.yaml (CONFIG=sft.yaml for another)
	@$(PY) -m launcher --config "$(CONFIG)"

test: env-dev ## The tests (without the slow ones), and that every live key has one
	@$(PY) -m pytest -q --require-live-keys -m "not slow" --timeout 300 --numprocesses auto --maxprocesses 4 --dist loadgroup $(TEST_ARGS)

lint: env-dev ## ruff check, ruff format --check, mypy
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

format: env-dev ## Put the code into the shape that lint wants
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

docs: env-dev ## Write the generated pages from the configuration classes, the metrics and the markers of the tests
	@$(PY) -m docs.make.pages

mutate-keys: env-dev ## Lists the keys that can be ignored without a test failing (MUTATE="--sample 30" for some)
	@$(PY) -m tests.mutation.mutate_keys $(MUTATE)

night: env-dev ## What takes hours: all slow tests with many examples, all keys ignored in turn; goes on where it ended
	@$(PY) -m tests.night

bench: env-dev ## How long a start, a publication, training and whole runs take; JSON in build/bench/
	@$(PY) tests/bench/bench_config.py
	@$(PY) tests/bench/bench_controller.py
	@$(PY) tests/bench/bench_weights.py
	@$(PY) tests/bench/bench_training.py
	@$(PY) tests/bench/bench_serving.py
	@$(PY) tests/bench/bench_ring.py

vllm-cpu: ## An environment with vLLM for a machine without a GPU, found by rollout=vllm (ENGINES=DIR: elsewhere)
	@.ci/engine vllm

sglang-cpu: ## An environment with SGLang for a machine without a GPU, found by rollout=sglang (ENGINES=DIR: elsewhere)
	@.ci/engine sglang

env-run:
	@.ci/venv "$(VENV)" train

env-dev:
	@.ci/venv "$(VENV)" data,dev,swanlab,sweeps,train,wandb
