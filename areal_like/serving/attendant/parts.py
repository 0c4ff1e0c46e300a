"""What an attendant is made of, put together for one engine."""

from typing import Any, NamedTuple

from areal_like.models import model_folder
from areal_like.process.run import Run
from areal_like.serving.attendant.adapters import Adapters
from areal_like.serving.attendant.base import Engine, Facts
from areal_like.serving.attendant.gate import Gate
from areal_like.serving.attendant.generation import Generation
from areal_like.serving.attendant.in_use import InUse
from areal_like.serving.attendant.kinds import length_key
from areal_like.serving.attendant.names import Names
from areal_like.serving.attendant.rest import Rest
from areal_like.serving.attendant.updates import Updates
from areal_like.weights.probe import TOLERANCES

OTHER_NAMES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
COARSEST = "bfloat16"


class Parts(NamedTuple):
    gate: Gate
    rest: Rest
    in_use: InUse
    generation: Generation
    updates: Updates


def put_together(run: Run, kind: str, engine: Engine, facts: Facts) -> Parts:
    gate, in_use = Gate(), InUse()
    rest = Rest(engine, gate)
    generation = Generation(engine, facts, gate, in_use, length_key(kind))
    folder = model_folder(run.config.actor.path, run.cwd)
    dtype = computes_in(getattr(run.config, kind).dtype)
    adapters = Adapters(engine, rest, in_use, folder, dtype, run.config.rollout.request_timeout)
    run_id = None if run.serves else run.run_id
    updates = Updates(engine, generation, gate, rest, in_use, Names(folder), adapters, run_id, dtype)
    return Parts(gate, rest, in_use, generation, updates)


def computes_in(said: Any) -> str:
    """The precision of an engine; one that it chooses itself may be the coarsest."""
    name = OTHER_NAMES.get(str(said), str(said))
    return name if name in TOLERANCES else COARSEST
