"""Environment variables of each process, in addition to the launcher's own. Secrets are placeholders."""

from collections.abc import Container
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.redact import SECRET
from areal_like.process.identity import (
    ATTEMPT,
    GPU_SHARE,
    INCARNATION,
    KEEPS_COPY_ON_GPU,
    PROCESS,
    REWARD,
    RUN_DIR,
    SERVER,
    STAGED_BYTES,
    START_AFTER,
    TOKEN,
    TRAINER,
)
from areal_like.weights.transfer_path import COLLECTIVE_MODES
from launcher.plan.placement import ProcessPlacement
from launcher.plan.plan import PORT

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

RESERVED_VARIABLES = (
    *(TOKEN, PROCESS, RUN_DIR, ATTEMPT, INCARNATION, START_AFTER, GPU_SHARE, STAGED_BYTES, KEEPS_COPY_ON_GPU),
    "CUDA_VISIBLE_DEVICES",
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that only the launcher sets: other values would contradict the plan."""
DEVICE_ORDER = "CUDA_DEVICE_ORDER"
ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Names that torch reads the options of its allocator from; the last two are older."""


def node_address(node: int, num_nodes: int) -> str:
    """Loopback within one node; otherwise a placeholder, as nodes are known only after allocation."""
    return "127.0.0.1" if num_nodes == 1 else f"<node {node}>"


def base_environment(
    config: "BaseExperimentConfig",
    name: str,
    placement: ProcessPlacement,
    run_dir: str,
    allocation: Allocation,
    inherited: Container[str] = (),
) -> dict[str, str]:
    """Variables of every process; the user's override the defaults, except for reserved ones. `inherited`: names of
    variables that the launcher has itself."""
    role = name.partition("/")[0]
    variables = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(placement.threads)}
    variables["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads take cores from other processes
    if placement.visible:
        variables |= _gpu_variables(config, role, allocation, inherited)
    variables |= {key: value for key, value in user_variables(config, role).items() if key not in RESERVED_VARIABLES}
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(placement.visible)}  # also none: no process uses a GPU it was not given
    return variables | shown | {PROCESS: name, RUN_DIR: run_dir, TOKEN: SECRET}


def _gpu_variables(
    config: "BaseExperimentConfig", role: str, allocation: Allocation, inherited: Container[str]
) -> dict[str, str]:
    """GPUs are counted as NVML does. A trainer's allocator grows its blocks instead of splitting them: micro-batches of
    different sizes would leave gaps. It does not where a server on the same GPU opens its memory: for such blocks that
    takes a system call that containers forbid."""
    variables = {} if DEVICE_ORDER in inherited else {DEVICE_ORDER: "PCI_BUS_ID"}
    mode = config.actor.weight_update_mode if isinstance(config, GRPOConfig) else ""
    is_opened = allocation.shared_device and mode in COLLECTIVE_MODES
    if role == TRAINER and not is_opened and not any(name in inherited for name in ALLOCATORS):
        variables[ALLOCATORS[0]] = "expandable_segments:True"
    return variables


def user_variables(config: "BaseExperimentConfig", role: str) -> dict[str, str]:
    """`launcher.env`, then the variables of this role."""
    serving = config.launcher.inference_server_env_vars
    lists = {SERVER: serving, REWARD: serving, TRAINER: config.launcher.trainer_env_vars}
    return {name: str(value) for name, value in config.launcher.env.items()} | parse_list(lists.get(role, ""))


def parse_list(text: str) -> dict[str, str]:
    """`A=1,B=x=y` -> A is "1", B is "x=y"; a part without "=" is ignored here and refused by `environment_problems`."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return {name.strip(): value.strip() for name, value in pairs}


def environment_problems(config: "BaseExperimentConfig") -> list[Problem]:
    """Problems of the user's variables."""
    problems = []
    sources = {"launcher.env": {name: str(value) for name, value in config.launcher.env.items()}}
    for name in ("inference_server_env_vars", "trainer_env_vars"):
        key, text = f"launcher.{name}", getattr(config.launcher, name)
        sources[key] = parse_list(text)
        if any("=" not in part for part in text.split(",") if part.strip()):
            problems.append(Problem(key, "is not of the form A=1,B=2; values with commas belong in launcher.env"))
    for key, variables in sources.items():
        problems += [
            Problem(f"{key}.{name}" if key == "launcher.env" else key, f"{name} is set by the launcher; leave it out")
            for name in variables
            if name in RESERVED_VARIABLES
        ]
    return problems


def trainer_environment(rank: int, world_size: int, placement: ProcessPlacement, master: str) -> dict[str, str]:
    """torchrun's variables."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(placement.local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "MASTER_ADDR": master,
        "MASTER_PORT": PORT,
    }
