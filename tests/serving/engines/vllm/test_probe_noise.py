"""The probe of SmolLM2-135M in bfloat16 on rows of chats, between the trainer's engine and a real vLLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.data.first_tokens import first_tokens
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.rollout.controller.probe_noise import ProbeNoise
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.vllm.engine import VLLMEngine
from areal_like.serving.probe_check import ProbeCheck
from areal_like.training.row_shards import local_tensor
from areal_like.training.weight_publisher import micro_batch_of
from areal_like.weights.disk import publish_weights
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import read_index
from areal_like.weights.probe import PROBE_TOKENS, Probe
from tests.support.training_runs import make_engine, world
from tests.support.vllm_servers import Server, run_with_engine, started, update

pytestmark = [pytest.mark.xdist_group("vllm_alone"), pytest.mark.timeout(900), pytest.mark.slow]
Weights = Mapping[str, torch.Tensor]
LAYER, NEXT = "model.layers.15.", "model.layers.16."
QUESTION = "Natalia sold 24 clips in April, and then 12 more in May. How many clips did Natalia sell altogether?"
ROWS = [{"prompt": [{"role": "user", "content": QUESTION}], "answer": "Natalia sold 24+12 = 36 clips. #### 36"}]


@pytest.fixture
def folder() -> Path:
    try:
        return model_folder("builtin:smollm2-135m")
    except ValueError as missing:
        pytest.skip(str(missing))


def moved(weights: Weights, by: float) -> Weights:
    """As an update of Adam with this learning rate, in a random direction."""
    return {name: (each.float() + by * torch.randn_like(each).sign()).bfloat16() for name, each in weights.items()}


def exchanged(weights: Weights, one: str, other: str) -> Weights:
    return {**weights, one: weights[other], other: weights[one]}


def test_right_weights_are_accepted_and_wrong_ones_refused(tmp_path: Path, folder: Path) -> None:
    """A fixed limit of 0.05 on 16 random tokens refused nearly all of the right ones."""
    torch.manual_seed(1)
    trainer = make_engine(folder, dtype="bfloat16")
    parameters = dict(trainer.model.named_parameters())
    start = {name: tensor.clone() for name, tensor in trainer.export_weights()}

    async def test(vllm: VLLMEngine, server: Server) -> None:
        tokens = first_tokens(ROWS, TextTokenizer(folder), PROBE_TOKENS)
        noise, check, versions = ProbeNoise("bfloat16", {}), ProbeCheck(vllm.info), iter(range(1, 100))

        async def answer(trained: Weights, served: Weights | None) -> tuple[Probe, dict[str, Any], WeightUpdate]:
            """With weights in the trainer and others published; None: none are."""
            for name, parameter in parameters.items():
                local_tensor(parameter.data).copy_(trained[name])
            logprobs = trainer.logprobs([micro_batch_of(tokens, world().device)], 1.0)[0]
            version = next(versions)
            published = publish_weights(tmp_path / "weights", version, (served or trained).items(), None, "run")
            arrival = WeightUpdate(version, read_index(published), published)
            if served is not None:
                await update(vllm, arrival)
            got = await vllm.logprobs(tokens)
            report = {"version": version, "dtype": "bfloat16", "engine": "vllm", "probe_logprobs": got}
            return Probe(tokens, logprobs.tolist(), "bfloat16"), report, arrival

        def accept(probe: Probe, report: dict[str, Any], arrival: WeightUpdate) -> float:
            kind, found = noise.check("server/0", probe, report)
            probe = probe._replace(noise=noise.of(kind))
            check.check(probe, report["probe_logprobs"], arrival.index.tensors)
            return found.mean

        weights: Weights = start
        assert 0.005 < accept(*await answer(weights, weights)) < 0.1
        for by in (1e-6, 1e-5):
            weights = moved(weights, by)
            assert accept(*await answer(weights, weights)) < 0.1
        weights = moved(weights, 1e-5)
        with pytest.raises(BadWeights, match="the server computes with old weights"):
            accept(*await answer(weights, None))
        mixed = [
            exchanged(weights, f"{LAYER}self_attn.q_proj.weight", f"{NEXT}self_attn.q_proj.weight"),
            exchanged(weights, f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"),
            {**weights, f"{LAYER}mlp.down_proj.weight": torch.zeros_like(weights[f"{LAYER}mlp.down_proj.weight"])},
        ]
        for wrong in mixed:
            probe, report, _ = await answer(weights, wrong)
            with pytest.raises(BadWeights, match="with the run's first weights they differed by"):
                noise.check("server/0", probe, report)
            with pytest.raises(BadWeights, match="bfloat16 allows"):  # they are no measure of the noise either
                ProbeNoise("bfloat16", {}).check("server/0", probe, report)

    with started(tmp_path, "vllm.dtype=bfloat16", "actor.dtype=bfloat16", model=folder) as server:
        run_with_engine(server, test, limit_s=600)
