"""Real servers of every engine for tests: each started by the command that the launcher would give it, in a run
directory that is as the launcher would write it."""

import functools
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from areal_like.config import engines as config_engines
from areal_like.config.load import load
from areal_like.discovery import open_name_store, parse_entry
from areal_like.discovery.base import NameMissing
from areal_like.models.characters import write_tokenizer
from areal_like.process.identity import SERVER, Identity
from areal_like.process.process_tree import become_subreaper
from areal_like.process.run import Run, StartPoint, open_run
from areal_like.serving.engines import registry
from areal_like.weights.disk import publish_weights
from areal_like.weights.hub_names import HubNames
from areal_like.weights.probe import Probe
from launcher.agent.local import LocalAgent
from launcher.plan.build import build_plan
from launcher.runs.run_files import write_description, write_start_point
from launcher.supervisor.roster import Roster
from tests.ring.start import wait_until_gone
from tests.support.commands import REPOSITORY
from tests.support.tiny_models import tiny_llama, tiny_mixture, tiny_qwen3

OWN = f"{REPOSITORY}/tests/serving/contract"
OWN_SCHEMAS = {
    "plain": f"{OWN}/plain_schema.py:PlainGRPOConfig",
    "stale": f"{OWN}/stale_schema.py:StaleGRPOConfig",
}
"""Engines that come with no package -> the user's class, whose module registers them."""
SECRET = "only-in-tests"
VOCAB, CONTEXT = 60, 512
SHAPE = {"vocab_size": VOCAB, "hidden_size": 64, "head_dim": 32, "max_position_embeddings": CONTEXT}
"""Sizes that all engines support; the vocabulary is not round, so that padding by an engine is noticed."""
LOUD_LAYERS, QUIET_EMBEDDING = 0.3, 0.04
"""Spread of the weights of a tied model: its layers speak over its embedding, or it would only repeat its input."""
FIRST_START_S = 300.0
"""An external engine needs half a minute, and several times that next to other tests."""
NO_SEED = -1
"""Other weights than those of any seed."""
PROBE = [5, 9, 13, 20, 7, 33, 41, 8]

ENGINE_PORT = re.compile(r"^.*starting \S+ on port (\d+)$", re.MULTILINE)
WORDS = {
    "embedded": (f"embedded.context_length={CONTEXT}",),
    "vllm": (f"vllm.max_model_len={CONTEXT}",),
    "sglang": (f"sglang.context_length={CONTEXT}", "sglang.mem_fraction_static=0.2"),
}
"""What a run of so small a model on a machine without a GPU says of its engine."""
LORA = ("actor.use_lora=true", "actor.lora_rank=8")
AT_ONCE = {"vllm": 64, "sglang": 32}
"""Requests that the shared servers run at once; more wait."""
SHARED = {
    "vllm": (f"vllm.max_num_seqs={AT_ONCE['vllm']}", "vllm.enable_prefix_caching=true", *LORA),
    "sglang": (
        *(f"sglang.max_running_requests={AT_ONCE['sglang']}", "+sglang.extra_args.max_total_tokens=16384"),
        *("sglang.disable_radix_cache=false", "actor.weight_update_mode=adapter", *LORA),
    ),
}
"""What servers that all tests share say besides: adapters, which do not affect other requests, and a cache of prompts,
which updates of the weights must empty."""

Models = Callable[[int], PreTrainedModel]
"""Several sets of weights for one shape, by number; 0 is the server's checkpoint."""


@functools.cache
def model(seed: int) -> PreTrainedModel:
    made = tiny_qwen3(seed, **SHAPE, initializer_range=LOUD_LAYERS)
    with torch.no_grad():
        made.model.embed_tokens.weight.mul_(QUIET_EMBEDDING / LOUD_LAYERS)
    return made


@functools.cache
def llama(seed: int) -> PreTrainedModel:
    return tiny_llama(seed, **SHAPE)


@functools.cache
def mixture(seed: int) -> PreTrainedModel:
    """Of experts, which transformers keeps as one tensor."""
    return tiny_mixture(seed, **SHAPE)


def logprobs_of(
    reference: PreTrainedModel, ids: list[int], temperature: float = 1.0, never: Sequence[int] = ()
) -> torch.Tensor:
    """Log-probability of every token after the first, by transformers; `never`: tokens that are excluded."""
    logits = logits_of(reference, ids)[:-1]
    logits[:, list(never)] = -torch.inf
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def logits_of(reference: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """After every token."""
    with torch.no_grad():
        results: torch.Tensor = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return results


@contextmanager
def own_engines_forgotten() -> Iterator[None]:
    """What a user's module registers within is unknown to the tests after it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (config_engines, registry):
            patch.setattr(module, "_registered", dict(module._registered))
        yield


class LiveServer:
    """A server (or several alike) that runs. `version` and `seed` say which weights it was given last."""

    def __init__(
        self, engine: str, root: Path, words: tuple[str, ...] = (), count: int = 1, models: Models = model
    ) -> None:
        self.engine, self.models = engine, models
        self._names: dict[int, HubNames] = {}
        self.version = self.seed = NO_SEED
        self.model_folder = root / "model"
        models(0).save_pretrained(self.model_folder)
        write_tokenizer(self.model_folder, VOCAB)
        response = [
            *("trial_name=t", "rollout.backend=auto", f"allocation_mode={engine}:d{count}+fsdp:d1"),
            *(f"actor.path={self.model_folder}", "actor.dtype=float32", f"cluster.fileroot={root}/runs"),
            *(f"cluster.name_resolve.nfs_record_root={root}/names", f"gconfig.max_tokens={CONTEXT}"),
            f"rollout.setup_timeout={FIRST_START_S:.0f}",
            *(*WORDS.get(engine, ()), *words),
        ]
        with own_engines_forgotten():
            loaded = load(REPOSITORY / "experiments" / "grpo.yaml", response, OWN_SCHEMAS.get(engine))
            plan = build_plan(loaded)
            assert not plan.cannot_start and not plan.needs, (plan.cannot_start, plan.needs)
            directory = Path(plan.run_dir)
            directory.mkdir(parents=True)
            write_description(loaded, plan, f"test{os.getpid()}{engine}{id(self):x}", REPOSITORY, root, 1)
            write_start_point(directory, StartPoint(1, 0, None))
            self.run: Run = open_run(directory)
        self._agent = LocalAgent(self.run, SECRET, write_logs=True)
        self.roster = Roster(plan.processes, self._agent)
        self.start_id = ""
        self.addresses: dict[str, str] = {}
        self._versions = itertools.count(1)

    def start(self, name: str = "server/0") -> float:
        """Waits until it is registered; returns the seconds."""
        began = time.monotonic()
        started = self.roster.start(name, attempt=1)
        with open_name_store(self.run, Identity("test", 0)) as names:
            while time.monotonic() < began + FIRST_START_S:
                exits = self.roster.exits()
                assert not exits, f"{self.engine} did not start ({exits[0].how}):\n{self.log(name)}"
                try:
                    entry = parse_entry(names.get(name))
                except NameMissing:
                    time.sleep(0.05)
                    continue
                if entry.incarnation == started.identity.incarnation:
                    self.addresses[name] = entry.address
                    self.version = self.seed = NO_SEED
                    identity = started.identity
                    self.start_id = f"{self.run.run_id} {name} {identity.attempt}.{identity.incarnation}"
                    return time.monotonic() - began
        raise AssertionError(f"{self.engine} was not ready within {FIRST_START_S:g} s:\n{self.log(name)}")

    def is_alive(self, name: str = "server/0") -> bool:
        self.roster.exits()
        return name in self.roster.running

    def pid(self, name: str = "server/0") -> int:
        return self._agent._alive[name].process.pid

    def kill(self, name: str = "server/0") -> None:
        """Kills it at once, with all descendants."""
        self.roster.kill([name])

    def close(self) -> None:
        self.roster.end()
        self._agent.close()
        shutil.rmtree(self.run.memory, ignore_errors=True)

    def leftovers(self, limit_s: float = 60.0) -> dict[int, str]:
        """Its processes that still exist after this time."""
        return wait_until_gone(self.run.directory, limit_s)

    def log(self, name: str = "server/0") -> str:
        return self.whole_log(name)[-6000:]

    def whole_log(self, name: str = "server/0") -> str:
        newest = sorted(self.run.logs.glob(f"{name.replace('/', '-')}*.log"), key=lambda path: path.stat().st_mtime)
        return newest[-1].read_text(errors="replace") if newest else "(no log)"

    @property
    def engine_address(self) -> str:
        """Of the process of vLLM or SGLang that the server has started."""
        return f"127.0.0.1:{ENGINE_PORT.findall(self.whole_log())[-1]}"

    def tell_changed(self) -> None:
        """A test gave the engine weights past its server."""
        self.seed = NO_SEED

    def published(
        self, seed: int, version: int | None = None, root: Path | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Publishes a version of the weights like a trainer; returns the controller's message."""
        number = self.next_version() if version is None else version
        probe = self.probe(seed)
        folder = publish_weights(root or self.run.weights, number, self.tensors(seed), probe, self.run.run_id)
        response = {"version": number, "folder": str(folder), "probe": probe._asdict(), "transport": "disk"}
        return response | {"meeting": None, "index": None, "mode": "auto"} | changes

    def next_version(self) -> int:
        return next(self._versions)

    def tensors(self, seed: int) -> list[tuple[str, torch.Tensor]]:
        """Tensors as a trainer publishes them: tied ones once, with the names of the model's files."""
        model = self.models(seed)
        names = self._names.setdefault(seed, HubNames(model))  # as a trainer keeps them over its versions
        return list(names.rename((name, tensor.detach()) for name, tensor in model.named_parameters()))

    def probe(self, seed: int) -> Probe:
        return Probe(PROBE, logprobs_of(self.models(seed), PROBE).tolist())


@contextmanager
def started(engine: str, root: Path, *words: str, count: int = 1, models: Models = model) -> Iterator[LiveServer]:
    become_subreaper()  # as the launcher is: what a server leaves behind when it is killed falls to this process
    server = LiveServer(engine, root, words, count, models)
    try:
        for name in server.roster.names(SERVER):
            server.start(name)
        yield server
    finally:
        server.close()
