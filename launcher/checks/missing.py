"""What a run needs and this machine or cluster lacks: devices, packages, keys, files."""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, gpus_per_node, trained_models, uses_api
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem, plural
from areal_like.config.sections.trackers import TRACKERS
from areal_like.models import BUILT_IN, missing_weights_hint, unknown_model
from areal_like.observe.trackers.requirements import missing_requirements
from areal_like.process.run_links import other_roots
from launcher.checks.packages import package_problems
from launcher.checks.parallel_sizes import OVER_NODES
from launcher.plan.gpus import VISIBLE
from launcher.plan.host import HostInfo
from launcher.plan.hub import NAME
from launcher.plan.placement import PlacementPlan
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


PACKAGE_OF = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def missing_devices(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> list[Problem]:
    """Devices that the allocation needs and this machine, one of its nodes, does not have."""
    total, here = allocation.num_gpus, gpus_per_node(config, host.machine)
    place = host.machine.place
    per_node = f"needs {plural(here, 'GPU')} on {place}"
    in_all = f"needs {plural(total, 'GPU')}, {here} of them on {place}" if total > here else per_node
    return [
        Problem(need.key, need.message.replace(per_node, in_all))
        for need in allocation.needs
        if OVER_NODES not in need.message
    ]


def missing_nodes(
    config: "BaseExperimentConfig", allocation: Allocation, placement: PlacementPlan
) -> Iterator[Problem]:
    if not allocation.needs and placement.num_nodes > config.cluster.n_nodes:
        reason = f"the servers do not divide evenly over the nodes; {placement.num_nodes} nodes would be needed"
        yield Problem("cluster.n_nodes", reason)


def misnamed_gpus(allocation: Allocation, config: "BaseExperimentConfig", host: HostInfo) -> Iterator[Problem]:
    """Names in CUDA_VISIBLE_DEVICES by which a process would find fewer GPUs than the plan gives it."""
    if not allocation.num_gpus or config.cluster.type != "local" or not host.gpus:
        return
    names, wanted = [gpu.id for gpu in host.gpus], host.machine.num_gpus
    remedy = "name GPUs as `nvidia-smi -L` does, by number or UUID, or unset it"
    if absent := [gpu.id for gpu in host.gpus if not gpu.exists]:
        yield Problem(VISIBLE, f"names {', '.join(absent)}, and {host.machine.place} has no such GPU; {remedy}")
    if len(names) < wanted:
        yield Problem(VISIBLE, f"names {plural(len(names), 'GPU')} ({', '.join(names)}) instead of {wanted}; {remedy}")


def divided_gpus(allocation: Allocation, host: HostInfo) -> Iterator[Problem]:
    """A process can use one MIG device, and NCCL connects none of them."""
    parts = [gpu.id for gpu in host.gpus if gpu.is_part]
    rollout, actor = allocation.rollout, allocation.actor
    if parts and rollout is not None and rollout.world_size > rollout.data:
        reason = f"one server of {rollout} needs several GPUs, and a process can use only one part of a GPU (MIG), such"
        yield Problem("rollout.backend", f"{reason} as {parts[0]}; write {rollout.backend}:d{len(parts)}")
    if parts and actor is not None and actor.world_size > 1:
        reason = f"{actor} connects several GPUs, and NCCL does not connect parts of GPUs (MIG), such as {parts[0]}"
        yield Problem("actor.backend", f"{reason}; write {actor.backend}:d1")


def unsupported_attention(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> list[Problem]:
    problems = []
    for name, engine in trained_models(config):
        key, attention = f"{name}.attn_impl", engine.attn_impl
        if not allocation.num_gpus and attention in (*PACKAGE_OF, "flex_attention"):
            problems.append(Problem(key, f"{attention} needs a GPU; {key}=sdpa (or auto) runs on a CPU"))
        elif (
            attention in PACKAGE_OF
            and PACKAGE_OF[attention] not in host.packages
            and config.cluster.type == "local"
            and host.is_here
        ):
            reason = (
                f"{attention} needs the package {PACKAGE_OF[attention]}, which is not installed; {key}=auto needs none"
            )
            problems.append(Problem(key, reason))
        elif attention in PACKAGE_OF and engine.dtype == "float32":
            problems.append(
                Problem(key, f"{attention} does not support float32; set {name}.dtype=bfloat16, or use auto")
            )
    return problems


def missing_packages_of_runs(here: HostInfo) -> list[Problem]:
    return package_problems(here.missing)


def missing_pyarrow(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    if generates(config) and config.evaluator.save.as_dataset and find_spec("pyarrow") is None:
        yield Problem("evaluator.save.as_dataset", f"needs the package pyarrow: {pip_command('pyarrow')}")


def missing_login(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """What an upload of answers lacks."""
    if not generates(config) or config.evaluator.save.hf is None:
        return
    if find_spec("pyarrow") is None:
        yield Problem("evaluator.save.hf", f"needs the package pyarrow: {pip_command('pyarrow')}")
    there = run_environment(config, here.directory)
    home = Path(there.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    token = Path(there.get("HF_TOKEN_PATH", home / "token")).expanduser()
    if not there.get("HF_TOKEN") and not token.is_file():
        yield Problem(
            "evaluator.save.hf", "needs a login at the Hugging Face Hub; set HF_TOKEN to a token that may write"
        )


def missing_hub_login(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """What a push to the Environments Hub lacks."""
    if not generates(config) or not config.evaluator.save.env_hub:
        return
    if find_spec("prime_evals") is None:
        yield Problem("evaluator.save.env_hub", f"needs the package prime-evals: {pip_command('prime-evals')}")
    there = run_environment(config, here.directory)
    if not there.get("PRIME_API_KEY") and not _has_prime_key(Path(there.get("HOME", "~")).expanduser()):
        yield Problem(
            "evaluator.save.env_hub",
            "needs a login at the Environments Hub; set PRIME_API_KEY to a key that may write evaluations, or run "
            "`prime login`",
        )


def _has_prime_key(home: Path) -> bool:
    """Whether `prime login` has written one."""
    try:
        content = json.loads((home / ".prime" / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and bool(content.get("api_key"))


def missing_programs(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    if config.cluster.type == "slurm" and shutil.which("sbatch") is None:
        yield Problem("cluster.type", "sbatch is not installed here; start from a machine of the Slurm cluster")


def missing_environment_files(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    for file in config.launcher.env_file:
        if not (here.directory / Path(file).expanduser()).is_file():
            yield Problem("launcher.env_file", f"{file} does not exist")


def missing_models(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    for key, path in _models(config):
        if _is_folder(path) and not (here.directory / Path(path).expanduser()).is_dir():
            yield Problem(key, f"there is no folder {path}")
        if why := unknown_model(path):
            yield Problem(key, f"{path} {why}")
        if path.startswith(BUILT_IN) and (why := missing_weights_hint(path)):
            yield Problem(key, why)


def unwritable_folders(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    roots: dict[str, str | Path] = {"cluster": config.cluster.fileroot, **other_roots(config, here.directory)}
    folders: dict[str, str | Path] = {f"{section}.fileroot": root for section, root in roots.items()}
    names = config.cluster.name_resolve
    if names.type == "nfs" and not names.nfs_record_root.startswith(config.cluster.fileroot):
        folders["cluster.name_resolve.nfs_record_root"] = names.nfs_record_root
    for key, folder in folders.items():
        root = here.directory / Path(folder).expanduser()
        existing = next(parent for parent in (root, *root.absolute().parents) if parent.exists())
        if not os.access(existing, os.W_OK) or not existing.is_dir():
            why = "is a file" if not existing.is_dir() else "is not writable for this user"
            yield Problem(key, f"cannot write into {root}: {existing} {why}; set another folder")


def _models(config: "BaseExperimentConfig") -> list[tuple[str, str]]:
    """Key and path of each model, and of a separate tokenizer."""
    if uses_api(config):
        return []
    models = [(f"{name}.path", engine.path) for name, engine in trained_models(config)]
    tokenizer = config.tokenizer_path
    return models if tokenizer in {path for _, path in models} else [*models, ("tokenizer_path", tokenizer)]


def _is_folder(path: str) -> bool:
    """Whether a path can only be a folder, whether it exists or not."""
    named = not path or path.startswith(BUILT_IN) or NAME.fullmatch(path) is not None
    return path.startswith((".", "/", "~")) or not named


def tracker_problems(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """Packages and keys of trackers, which the launcher needs, also on a cluster. A benchmark sends nothing."""
    there = run_environment(config, here.directory)
    missing = missing_requirements(config.stats_logger, here.packages, there)
    return [problem for tracker, problem in missing if not (config.bench and TRACKERS[tracker].is_remote)]
