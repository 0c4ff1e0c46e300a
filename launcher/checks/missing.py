"""What this machine, or the cluster, does not have and a run needs. Said in a plan; refused at a real start."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.capacity import GPUS_KEY
from areal_like.config.allocation.models import gpus_per_node, starts_servers, trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.models import BUILT_IN, built_in_models, missing_weights_hint
from areal_like.observe.trackers.requirements import missing_requirements
from areal_like.process.run_links import other_roots
from launcher.checks.attached import missing_api_key
from launcher.checks.engines import engine_problems
from launcher.checks.model_files import model_file_problems
from launcher.checks.packages import package_problems
from launcher.checks.parallel_sizes import OVER_NODES
from launcher.plan.bench import REMOTE_TRACKERS
from launcher.plan.host import HostInfo
from launcher.plan.hub import NAME, offline_model_problems
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import PlanProblem
from launcher.plan.plural import plural
from launcher.plan.reward_model import reward_model_problems
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


PACKAGE_OF = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def missing_resources(
    config: "BaseExperimentConfig", allocation: Allocation | None, placement: PlacementPlan | None, host: HostInfo
) -> list[PlanProblem]:
    """By kind: devices, programs, files."""
    found = []
    if allocation:
        found += _devices(config, allocation, host)
        if placement and not allocation.needs and placement.num_nodes > config.cluster.n_nodes:
            reason = f"the servers do not divide evenly over the nodes; {placement.num_nodes} nodes would be needed"
            found.append(PlanProblem("cluster.n_nodes", reason))
        found += _attention(config, allocation, host)
        found += _embedded(config, allocation, host)
        if not any(need.key == GPUS_KEY for need in allocation.needs):  # else the engine may be another one in the end
            found += engine_problems(config, allocation, host)
    if not host.is_here:  # what lies on a machine that is only described is not known
        return found
    found += [*package_problems(host.missing), *missing_api_key(config, host), *tracker_problems(config, host)]
    found += _commands(config.cluster.type)
    return found + _files(config, host)


def _devices(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> list[PlanProblem]:
    """What the allocation lacks, apart from what no machine could give. This machine is one of its nodes."""
    total, here = allocation.num_gpus, gpus_per_node(config, host.machine)
    place = host.machine.place
    said = f"needs {plural(here, 'GPU')} on {place}"
    better = f"needs {plural(total, 'GPU')}, {here} of them on {place}" if total > here else said
    return [
        PlanProblem(finding.key, finding.message.replace(said, better))
        for finding in allocation.needs
        if OVER_NODES not in finding.message
    ]


def _attention(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> list[PlanProblem]:
    found = []
    for name, engine in trained_models(config):
        key, wanted = f"{name}.attn_impl", engine.attn_impl
        if not allocation.num_gpus and wanted in (*PACKAGE_OF, "flex_attention"):
            found.append(PlanProblem(key, f"{wanted} needs a GPU; {key}=sdpa (or auto) runs on a CPU"))
        elif (
            wanted in PACKAGE_OF
            and PACKAGE_OF[wanted] not in host.packages
            and config.cluster.type == "local"
            and host.is_here
        ):
            reason = f"{wanted} needs the package {PACKAGE_OF[wanted]}, which is not installed; {key}=auto does without"
            found.append(PlanProblem(key, reason))
        elif wanted in PACKAGE_OF and engine.dtype == "float32":
            found.append(
                PlanProblem(key, f"{wanted} does not compute in float32; set {name}.dtype=bfloat16, or use auto")
            )
    return found


def _embedded(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> list[PlanProblem]:
    """The embedded engine goes where it is told, and would find no GPU there."""
    rollout = allocation.rollout
    if not isinstance(config, GRPOConfig) or rollout is None or rollout.backend != "embedded" or allocation.num_gpus:
        return []
    if config.embedded.device != "cuda" or not starts_servers(config):
        return []
    reason = f"cuda is asked for, and there is no GPU ({host.machine.how}); set embedded.device=auto"
    return [PlanProblem("embedded.device", reason)]


def _commands(cluster: str) -> list[PlanProblem]:
    if cluster == "slurm" and shutil.which("sbatch") is None:
        return [PlanProblem("cluster.type", "sbatch is not found here; start from a machine of the Slurm cluster")]
    return []


def _files(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    found = []
    for file in config.launcher.env_file:
        if not (host.directory / Path(file).expanduser()).is_file():
            found.append(PlanProblem("launcher.env_file", f"{file} does not exist"))
    for key, path in _models(config):
        if _is_folder(path) and not (host.directory / Path(path).expanduser()).is_dir():
            found.append(PlanProblem(key, f"there is no folder {path}"))
        if path.startswith(BUILT_IN) and path.removeprefix(BUILT_IN) not in built_in_models():
            there = ", ".join(BUILT_IN + known for known in built_in_models())
            found.append(PlanProblem(key, f"no {path} comes with the package; there are: {there}"))
        if path.startswith(BUILT_IN) and (why := missing_weights_hint(path)):
            found.append(PlanProblem(key, why))
    found += [
        *offline_model_problems(config, host),
        *reward_model_problems(config, host),
        *model_file_problems(config, host),
    ]
    roots: dict[str, str | Path] = {"cluster": config.cluster.fileroot, **other_roots(config, host.directory)}
    folders: dict[str, str | Path] = {f"{section}.fileroot": said for section, said in roots.items()}
    names = config.cluster.name_resolve
    if names.type == "nfs" and not names.nfs_record_root.startswith(config.cluster.fileroot):
        folders["cluster.name_resolve.nfs_record_root"] = names.nfs_record_root
    for key, said in folders.items():
        root = host.directory / Path(said).expanduser()
        existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        if not os.access(existing, os.W_OK) or not existing.is_dir():
            why = "is a file" if not existing.is_dir() else "is closed to this user"
            found.append(PlanProblem(key, f"nothing can be written into {root}: {existing} {why}; set another folder"))
    return found


def _models(config: "BaseExperimentConfig") -> list[tuple[str, str]]:
    """Key and path of each; a tokenizer of its own counts as one."""
    models = [(f"{name}.path", engine.path) for name, engine in trained_models(config)]
    tokenizer = config.tokenizer_path
    return models if tokenizer in {path for _, path in models} else [*models, ("tokenizer_path", tokenizer)]


def _is_folder(path: str) -> bool:
    """What can be nothing else, whether it is there or not."""
    named = not path or path.startswith(BUILT_IN) or NAME.fullmatch(path) is not None
    return path.startswith((".", "/", "~")) or not named


def tracker_problems(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    """On a cluster as well: metrics are sent by the launcher. A run that measures sends none."""
    there = run_environment(config, host.directory)
    found = missing_requirements(config.stats_logger, host.packages, there)
    return [
        PlanProblem(lack.key, lack.reason) for lack in found if not (config.bench and lack.tracker in REMOTE_TRACKERS)
    ]
