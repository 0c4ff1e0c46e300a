"""What the launcher and the servers know of SGLang."""

from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.number_text import MIB
from areal_like.config.sections.engines.keys import SGLANG as KEYS
from areal_like.serving.engines.sglang.auto_values import AUTOS, shared_gpu_values
from areal_like.serving.engines.sglang.command import FLAG_PARSER, sglang_command
from areal_like.serving.engines.sglang.distribution import DISTRIBUTION
from areal_like.serving.engines.sglang.memory_hints import MEMORY_HINTS
from areal_like.serving.engines.spec import EngineSpec, HttpProbe

if TYPE_CHECKING:
    from areal_like.process.proof_handshake import ProofVerifier
    from areal_like.process.run import Run
    from areal_like.serving.engines.external.external_engine import ExternalEngine


def _connect(address: str, secret: str, run: "Run", folder: Path, proofs: "ProofVerifier | None") -> "ExternalEngine":
    from areal_like.serving.engines.sglang.engine import SGLangEngine

    return SGLangEngine(address, secret, run.config, folder, proofs)


async def _answers_at(server: HttpProbe) -> bool:
    for path in ("/server_info", "/get_server_info"):
        if isinstance(await server.get(path), dict):
            return True
    return False


SPEC = EngineSpec(
    KEYS,
    command=sglang_command,
    connect=_connect,
    answers_at=_answers_at,
    distribution=DISTRIBUTION,
    flag_parser=FLAG_PARSER,
    autos=AUTOS.resolve,
    receives_on_gpu=True,
    takes_token=True,
    memory_hints=MEMORY_HINTS,
    shared_gpu=shared_gpu_values,
    working_bytes=3072 * MIB,
    cannot_keep="which does not report the weight version of each token",
    program_bytes=1024 * MIB,
    cores_per_worker=1.0,
)
