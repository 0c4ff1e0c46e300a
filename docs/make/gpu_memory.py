"""The table of docs/gpu.md that says which models fit on which GPUs, by the plan of each machine. The rest of the page
is written by hand."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.allocation.models import allocate
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.number_text import size_text
from areal_like.serving.engines.registry import engine_spec
from launcher.plan.memory import plan_memory
from launcher.plan.micro_batch_limit import resolved_micro_batches, with_micro_batches
from launcher.plan.rank_memory import usable_bytes
from launcher.plan.shared_gpu import plan_shared_gpu
from launcher.plan.target_machine import TargetMachine

BEGIN, END = "<!-- memory table, written by `make docs` -->", "<!-- end of memory table -->"
EXPERIMENT = Path(__file__).parents[2] / "experiments" / "grpo.yaml"
SHAPES = Path(__file__).parent / "model_shapes.json"
"""Dimensions of models, as published in their config.json."""
NUM_GPUS, SIZES_GIB = (1, 2, 8), (24, 40, 80, 141)
WORDS = ("actor=qwen3_0_6b", "train_dataset.max_length=2048", "gconfig.max_new_tokens=2048", "gconfig.max_tokens=4096")


def render(page: str) -> str:
    """docs/gpu.md with the table as it is now."""
    before, found_begin, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    assert found_begin and found_end, f"the page has no place for the table: {BEGIN}"
    sizes = [f"{size} GiB" for size in SIZES_GIB]
    head = ["model", "GPUs", "trainer ranks", "each holds", *sizes]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *_rows())]
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


class Fit(NamedTuple):
    """What the plan of a machine says of its memory."""

    ranks: int
    rank_bytes: int
    tokens: int
    recomputes: bool
    trainer_fits: bool
    server_fits: bool

    def cell(self) -> str:
        if not self.trainer_fits or not self.server_fits:
            return "-" if not self.trainer_fits else "no room for a server"
        return f"{self.tokens:,}{', recomputed' if self.recomputes else ''}"


def _rows() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as name:
        for model, shape in json.loads(SHAPES.read_text(encoding="utf-8")).items():
            file = Path(name) / "config.json"
            file.write_text(json.dumps(shape), encoding="utf-8")
            for count in NUM_GPUS:
                machines = [_machine(count, size, file) for size in SIZES_GIB]
                loaded = load(EXPERIMENT, [*WORDS, f"actor.path=Qwen/{model}"], None, machines[0].machine)
                fits = [_fit(loaded, machine, size << 30) for machine, size in zip(machines, SIZES_GIB, strict=True)]
                held = size_text(fits[0].rank_bytes)
                yield [model, str(count), str(fits[0].ranks), held, *(fit.cell() for fit in fits)]


def _machine(gpus: int, gib: int, model_config: Path) -> TargetMachine:
    words = f"gpus={gpus},cores={16 * gpus},memory={256 * gpus}G,gpu_memory={gib}G"
    return TargetMachine(words, str(model_config))


def _fit(loaded: Loaded, machine: TargetMachine, gpu_bytes: int) -> Fit:
    """The steps of `build_plan` that concern memory, which is slower."""
    host = machine.host(loaded.config)
    assert host is not None
    allocation, _ = allocate(loaded.config, host.machine)
    assert allocation is not None and allocation.actor is not None and allocation.rollout is not None
    shared = plan_shared_gpu(loaded.config, allocation, host)
    chosen = {each.key: each for each in resolved_micro_batches(loaded, allocation, host, shared.server_bytes)}
    config: Any = with_micro_batches(loaded.config, chosen)
    memory, tokens = plan_memory(config, allocation, host), config.actor.mb_spec.max_tokens_per_mb
    server, rank_bytes = memory.server, memory.trainer_rank_bytes
    assert server is not None and rank_bytes is not None
    spec = engine_spec(allocation.rollout.backend)
    served = server.weight_sets * server.weights + spec.working_bytes + (server.kv_bytes_longest_sample or 0)
    activations = tokens * max(model.activations_per_token for model in memory.trainer)
    return Fit(
        ranks=allocation.actor.world_size,
        rank_bytes=rank_bytes,
        tokens=tokens,
        recomputes=config.actor.gradient_checkpointing,
        trainer_fits=rank_bytes + activations <= usable_bytes(gpu_bytes, shared.server_bytes),
        server_fits=shared.server_bytes > 0 or served <= usable_bytes(gpu_bytes, 0),
    )
