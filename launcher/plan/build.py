"""Builds the plan of a run from its configuration. Reads the machine and files, changes nothing."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation, Machine, ParallelStrategy
from areal_like.config.allocation import models as allocate
from areal_like.config.allocation.evaluators import evaluators_on_cpu
from areal_like.config.checks.registry import not_following, run_checks
from areal_like.config.problems import Problem, Stage
from areal_like.config.redact import Redactor
from areal_like.config.sources.library import data_folder
from launcher.checks.engines import engine_infos, is_external
from launcher.checks.epochs import data_steps
from launcher.checks.plan_checks import checks_of, engine_checks
from launcher.checks.unread_keys import unread_file_values
from launcher.clusters.ray import plan_ray
from launcher.clusters.slurm import plan_slurm
from launcher.plan.auto import resolve_auto, resolved_values
from launcher.plan.batch import plan_batch
from launcher.plan.changes import changed_settings, replaced_file_values, settings_over_base, with_places
from launcher.plan.compiled_layers import compiled_layers
from launcher.plan.datasets import resolved_datasets
from launcher.plan.engine_values import resolved_threads
from launcher.plan.host import HostInfo, local_host
from launcher.plan.hub import resolved_models
from launcher.plan.memory import plan_memory
from launcher.plan.micro_batch_limit import resolved_micro_batches, with_micro_batches
from launcher.plan.placement import PlacementPlan, place_processes, placement_request
from launcher.plan.plan import VERSION, Plan, Process, Resolved
from launcher.plan.ports import plan_ports
from launcher.plan.processes import ProcessContext, ServerCommand, plan_processes, server_starts
from launcher.plan.purpose import Purpose
from launcher.plan.reward_model import has_reward_model
from launcher.plan.run_directory import plan_run_directory
from launcher.plan.sent_copy import SentCopy, plan_sent_copy
from launcher.plan.shared_gpu import plan_shared_gpu
from launcher.plan.staging import plan_staging

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded


def build_plan(
    loaded: "Loaded",
    machine: Machine | None = None,
    *,
    host: HostInfo | None = None,
    replace_existing: bool = False,
    purpose: Purpose = Purpose.RUN,
    words: Sequence[str] | None = None,
) -> Plan:
    """`machine` or `host` replaces this machine; `replace_existing` is --replace. `words`: the command that starts it,
    None for that of the configuration."""
    config = loaded.config
    host = host or local_host(machine)
    shown = loaded.redactor
    directory, directory_problems = plan_run_directory(config, loaded.file, host, replace_existing, purpose.trains)
    allocation, allocation_problems = allocate.allocate(config, host.machine, trains=purpose.trains)
    auto = resolve_auto(config, allocation, host, directory)
    trains = purpose.trains and not allocate.only_evaluates(config)
    fetched = (*resolved_models(loaded, host), *resolved_datasets(loaded, host, directory))
    auto |= {each.key: each for each in fetched}
    data = data_steps(loaded, host) if trains else None
    shared = plan_shared_gpu(config, allocation, host)
    micro_batches, compiled, sent = list[Resolved](), list[Resolved](), SentCopy()
    if trains:
        sent = plan_sent_copy(config, allocation, host, shared.server_bytes)
        micro_batches = resolved_micro_batches(loaded, allocation, host, shared.server_bytes, sent.num_bytes)
        compiled = list(compiled_layers(loaded, allocation, host))
    auto |= {each.key: each for each in (*shared.resolved, *micro_batches, *compiled)}
    staging = plan_staging(config, allocation, host, auto, shared.staged_bytes, shared.written)
    auto |= {each.key: each for each in staging.resolved}
    decided = with_micro_batches(config, auto)
    batch, memory = plan_batch(decided, allocation, data), plan_memory(decided, allocation, host)
    memory = memory._replace(words=(*memory.words, *shared.words, *sent.words, *staging.words))
    batch = batch if purpose.trains else batch._replace(words=())
    argv = command_line(loaded, host, replace_existing, purpose)

    placement: PlacementPlan | None = None
    processes: tuple[Process, ...] = ()
    starts: list[ServerCommand] = []
    if allocation is not None:
        placement = _placement(config, allocation, auto, host, purpose)
        if allocate.generates(config) and allocation.rollout is not None:
            threads = resolved_threads(config, allocation, placement)
            auto |= {each.key: each for each in threads}
        nodes = max(placement.num_nodes, 1)
        engines = [each.backend for each in (allocation.rollout, allocation.evaluators) if each is not None]
        has_command = any(map(is_external, engines))
        started_config = _as_started(loaded, auto) if has_command else config
        context = ProcessContext(
            *(started_config, allocation, placement, host, directory.path, nodes, tuple(argv), directory.attempt),
            *(purpose, staging.num_bytes, shared.trainer_share, sent.stays_on_gpu),
        )
        starts = server_starts(context)
        processes = plan_processes(context, starts)
    spans = placement is not None and placement.num_nodes > 1
    ports = plan_ports(config, processes, allocation, spans)
    redacted = tuple(process.redacted(shown) for process in processes)
    cluster, cluster_problems = _cluster(config, redacted, placement, host, directory.path)

    known = {
        **{"loaded": loaded, "config": config, "values": loaded.values, "cls": loaded.cls},
        **{"foreign": [leaf.path for leaf in loaded.foreign], "auto": auto, "data": data},
        **{"host": host, "here": host if host.is_here else None, "directory": directory},
        **{"directory_problems": directory_problems, "allocation_problems": allocation_problems},
        **{"allocation": allocation, "placement": placement, "server_start": starts[0] if starts else None},
        **{"cluster": cluster, "cluster_problems": cluster_problems, "batch": batch, "memory": memory},
        **{"ports": ports, "shared": shared, "staging": staging, "serves": purpose is Purpose.SERVE, "sent": sent},
    }
    checks = checks_of(allocation)
    facts = {name: fact for name, fact in known.items() if fact is not None}
    others = None if allocation is None else allocation.for_evaluations
    own_checks = () if others is None or others.rollout is None else engine_checks(others.rollout.backend)
    own_facts = facts | {"allocation": others} | ({"server_start": starts[-1]} if starts else {})

    def found(*stages: Stage) -> list[Problem]:
        return list(dict.fromkeys([*run_checks(checks, facts, *stages), *run_checks(own_checks, own_facts, *stages)]))

    problems = not_following(found(Stage.CANNOT_START))
    refused = {problem.key for problem in problems}
    missing = [each for each in found(Stage.MISSING) if each.key not in refused]
    hints = found(Stage.NO_EFFECT, Stage.WARNING)
    return Plan(
        version=VERSION,
        experiment=loaded.experiment,
        command=" ".join(shlex.quote(word) for word in shown.command(["python", *argv[1:3], *(words or argv[3:])])),
        file=str(loaded.file),
        run_dir=directory.path,
        run_directory=directory,
        changed=changed_settings(loaded, shown),
        over_base=settings_over_base(loaded, shown, host.machine),
        beaten_body_values=replaced_file_values(loaded, shown),
        unread_body_values=unread_file_values(loaded, allocation),
        allocation=_allocation(config, allocation),
        auto=tuple(auto.values()),
        processes=processes,
        servers=_servers(config, allocation, shown) | engine_infos(config, allocation, host),
        ports=ports,
        batch=batch,
        memory=memory,
        machine=_machine(host),
        cluster={**cluster, "name": config.cluster.cluster_name},
        warnings=tuple(dict.fromkeys(shown.text(hint.text()) for hint in hints)),
        cannot_start=with_places(loaded, problems),
        needs=with_places(loaded, missing),
        redactor=shown,
        short_warnings={
            shown.text(hint.text()): shown.text(replace(hint, message=hint.short).text())
            for hint in hints
            if hint.short
        },
    )


def _machine(host: HostInfo) -> dict[str, Any]:
    return {
        "here": host.is_here,
        "gpus": host.machine.num_gpus,
        "gpu_memory_bytes": host.gpus[0].memory_bytes if host.gpus else None,
        "cores": host.machine.num_cpu_cores,
        "memory_bytes": host.memory_bytes,
    }


def _as_started(loaded: "Loaded", auto: dict[str, Resolved]) -> Any:
    """The configuration with every `auto` resolved: external engines get it on their command line."""
    from areal_like.config.loaded import build_config  # brings yaml

    return build_config(loaded.cls, resolved_values(loaded, auto.values()))


def command_line(loaded: "Loaded", host: HostInfo, replace_existing: bool, purpose: Purpose = Purpose.RUN) -> list[str]:
    """The command that starts this run."""
    argv = [host.python, "-m", "launcher", "--config", _as_named(loaded.file)]
    argv += ["--schema", loaded.schema_name] if loaded.schema_name else []
    argv += ["--replace"] if replace_existing else []
    argv += [] if purpose.trains else [purpose.value]
    return [*argv, *loaded.overrides]


def _as_named(file: Path) -> str:
    """A shipped experiment by its name, unless a file here has the same name."""
    is_shipped = file.resolve().parent == data_folder("experiments").resolve()
    return file.name if is_shipped and not Path(file.name).exists() else str(file)


def _placement(
    config: "BaseExperimentConfig", allocation: Allocation, auto: dict[str, Resolved], host: HostInfo, purpose: Purpose
) -> PlacementPlan:
    episodes = int(purpose in (Purpose.TRY, Purpose.REWARDS))
    if allocate.generates(config) and purpose.trains:
        chosen = auto.get("rollout.num_episode_workers")
        episodes = chosen.value if chosen else int(config.rollout.num_episode_workers)
    servers = allocate.starts_servers(config), allocate.servers_on_cpu(config)
    evaluators = allocation.evaluators
    on_cpu = evaluators is not None and evaluators_on_cpu(config, evaluators)
    has_reward = has_reward_model(config) and purpose is not Purpose.SERVE
    want = placement_request(allocation, *servers, episodes, has_reward, evaluators, on_cpu)
    if purpose is Purpose.REWARDS:  # the reward model has the first GPU, or all cores
        want = want._replace(server_gpus=tuple(size for size in want.server_gpus if size)[:1])
    per_node = allocate.gpus_per_node(config, host.machine)
    return place_processes(want, per_node, host, config.launcher, config.cluster.type == "local")


def _cluster(
    config: "BaseExperimentConfig",
    processes: tuple[Process, ...],
    placement: PlacementPlan | None,
    host: HostInfo,
    run_dir: str,
) -> tuple[dict[str, Any], list[Problem]]:
    if config.cluster.type == "slurm" and placement and processes:
        per_node = allocate.gpus_per_node(config, host.machine)
        return plan_slurm(config, processes, max(placement.num_nodes, config.cluster.n_nodes), per_node, run_dir)
    if config.cluster.type == "ray":
        return plan_ray(config, processes), []
    return {"type": config.cluster.type}, []


def _allocation(config: "BaseExperimentConfig", allocation: Allocation | None) -> dict[str, Any]:
    if allocation is None:
        return {"mode": config.allocation_mode, "rollout": None, "actor": None, "reasons": {}}
    starts = allocate.starts_servers(config)
    return {
        "mode": config.allocation_mode,
        "rollout": _part(allocation.rollout) if starts else None,
        "actor": _part(allocation.actor),
        **({"evaluators": _part(allocation.evaluators)} if allocation.evaluators else {}),
        "ref": _part(allocation.ref),
        "critic": _part(allocation.critic),
        "num_gpus": allocation.num_gpus,
        "shared_device": allocation.shared_device,
        "eval_only": allocation.eval_only,
        "reasons": dict(allocation.reasons),
    }


def _part(parallel: ParallelStrategy | None) -> dict[str, Any] | None:
    if parallel is None:
        return None
    return {"backend": parallel.backend, "dims": parallel.dims, "world_size": parallel.world_size}


def _servers(config: "BaseExperimentConfig", allocation: Allocation | None, shown: Redactor) -> dict[str, Any]:
    """How many servers are started, or the addresses of external ones."""
    if not allocate.generates(config):
        return {"started": 0, "addresses": []}
    addresses = [shown.text(address) for address in config.rollout.server_addresses]
    started = allocation.rollout.data if allocation and allocation.rollout and not addresses else 0
    own = allocation.evaluators if started and allocation else None
    return {"started": started, "addresses": addresses, **({"evaluating": own.data} if own else {})}
