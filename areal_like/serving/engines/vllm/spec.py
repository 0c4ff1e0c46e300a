"""What the launcher and the servers know of vLLM."""

from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.number_text import MIB
from areal_like.config.sections.engines.keys import VLLM as KEYS
from areal_like.serving.engines.spec import EngineSpec, HttpProbe
from areal_like.serving.engines.vllm.auto_values import AUTOS, shared_gpu_values
from areal_like.serving.engines.vllm.command import FLAG_PARSER, vllm_command
from areal_like.serving.engines.vllm.distribution import DISTRIBUTION
from areal_like.serving.engines.vllm.memory_hints import MEMORY_HINTS

if TYPE_CHECKING:
    from areal_like.process.proof_handshake import ProofVerifier
    from areal_like.process.run import Run
    from areal_like.serving.engines.external.external_engine import ExternalEngine


def _connect(address: str, secret: str, run: "Run", folder: Path, proofs: "ProofVerifier | None") -> "ExternalEngine":
    from areal_like.serving.engines.vllm.engine import VLLMEngine

    return VLLMEngine(address, secret, run.config, folder, proofs)


async def _answers_at(server: HttpProbe) -> bool:
    models = await server.get("/v1/models")
    cards = models.get("data", []) if isinstance(models, dict) else []
    return "vllm" in {card.get("owned_by") for card in cards if isinstance(card, dict)}


SPEC = EngineSpec(
    KEYS,
    command=vllm_command,
    connect=_connect,
    answers_at=_answers_at,
    distribution=DISTRIBUTION,
    flag_parser=FLAG_PARSER,
    autos=AUTOS.resolve,
    receives_on_gpu=True,
    divides_files=True,
    takes_token=True,
    memory_hints=MEMORY_HINTS,
    shared_gpu=shared_gpu_values,
    working_bytes=2048 * MIB,
    program_bytes=768 * MIB,
    cores_per_worker=1.0,
)
