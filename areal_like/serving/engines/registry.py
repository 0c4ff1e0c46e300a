"""External engines by kind: the class that drives each, and its configuration key of the context length."""

from pathlib import Path

from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.run import Run
from areal_like.serving.engines.base import InferenceEngine

LENGTH_KEYS = {"vllm": "max_model_len", "sglang": "context_length"}
"""By kind: the key of its section that limits prompt and answer together."""


def connect(
    kind: str, address: str, secret: str, run: Run, folder: Path, proofs: ProofVerifier | None
) -> InferenceEngine:
    """The client of the engine at `address`. With `proofs` the engine must prove its identity on each connection."""
    if kind == "vllm":
        from areal_like.serving.engines.vllm.engine import VLLMEngine

        return VLLMEngine(address, secret, run.config, folder, proofs)
    if kind == "sglang":
        from areal_like.serving.engines.sglang.engine import SGLangEngine

        return SGLangEngine(address, secret, run.config, folder, run.weights, proofs)
    raise ValueError(f"rollout.backend: no engine is called {kind!r}; there are {', '.join(LENGTH_KEYS)}")


def kind_of(run: Run) -> str:
    """The kind of the servers that the run starts; the key may also contain their number."""
    return str(run.config.rollout.backend).partition(":")[0]


def length_key(kind: str) -> str:
    return f"{kind}.{LENGTH_KEYS[kind]}"
