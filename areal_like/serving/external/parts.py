"""What an attendant is made of, put together for one engine."""

from typing import Any, NamedTuple

from areal_like.models import model_folder
from areal_like.process.run import Run
from areal_like.serving.external.adapters import Adapters
from areal_like.serving.external.base import EngineInfo, InferenceEngine
from areal_like.serving.external.expected_tensors import ExpectedTensors
from areal_like.serving.external.generation import Generation
from areal_like.serving.external.pauser import Pauser
from areal_like.serving.external.registry import length_key
from areal_like.serving.external.request_queue import RequestQueue
from areal_like.serving.external.served_weights import ServedWeights
from areal_like.serving.external.updates import WeightUpdater
from areal_like.weights.probe import TOLERANCES

DTYPE_ALIASES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
COARSEST = "bfloat16"


class ServerParts(NamedTuple):
    queue: RequestQueue
    pauser: Pauser
    served: ServedWeights
    generation: Generation
    updates: WeightUpdater


def build_parts(run: Run, kind: str, engine: InferenceEngine, info: EngineInfo) -> ServerParts:
    queue, served = RequestQueue(), ServedWeights()
    pauser = Pauser(engine, queue)
    generation = Generation(engine, info, queue, served, length_key(kind))
    folder = model_folder(run.config.actor.path, run.cwd)
    dtype = engine_dtype(getattr(run.config, kind).dtype)
    adapters = Adapters(engine, pauser, served, folder, dtype, run.config.rollout.request_timeout)
    run_id = None if run.serves else run.run_id
    updates = WeightUpdater(engine, generation, queue, pauser, served, ExpectedTensors(folder), adapters, run_id, dtype)
    return ServerParts(queue, pauser, served, generation, updates)


def engine_dtype(said: Any) -> str:
    """The precision of an engine; one that it chooses itself may be the coarsest."""
    name = DTYPE_ALIASES.get(str(said), str(said))
    return name if name in TOLERANCES else COARSEST
