"""Every check of a plan, in the order of the text; an engine may have more (`EngineSpec.checks`). A start refuses what
those of CANNOT_START and MISSING find."""

from collections.abc import Iterable

from areal_like.config.allocation import Allocation
from areal_like.config.checks.config_checks import START_CHECKS
from areal_like.config.checks.registry import Check
from areal_like.config.problems import ConfigError, Problem, Stage
from areal_like.config.suggest import nearest
from areal_like.serving.engines.registry import engine_spec
from launcher.checks import (
    agent,
    attached_servers,
    device_memory,
    engines,
    environment_packages,
    evaluation_servers,
    missing,
    name_store,
    oversubscription,
    resumed_data,
    resumed_evaluation,
    resuming,
    rewards,
    row_columns,
    sandbox,
    task_group,
    unread_keys,
    verifiers,
    warnings,
)
from launcher.checks.best_metric import best_metric_problems, late_evaluation_warnings
from launcher.checks.changed_values import changed_value_warnings, earlier_configuration_warnings
from launcher.checks.epochs import data_end_warnings
from launcher.checks.fake_data import fake_data_problems
from launcher.checks.local_processes import names_in_memory, several_nodes
from launcher.checks.model_files import model_file_problems
from launcher.checks.parallel_sizes import parallel_size_problems
from launcher.checks.profiler import profiler_problems
from launcher.checks.training import step_part_problems
from launcher.plan import bench, datasets, hub, ports, staging
from launcher.plan.environment import environment_problems
from launcher.plan.lengths import answer_length_problems
from launcher.plan.processes import ServerCommand
from launcher.plan.reward_model import reward_model_problems

FACTS = {
    "loaded": "the configuration with the origin of each value",
    "config": "its values",
    "values": "its values as a mapping",
    "get": "its values by dotted key, before the configuration is accepted",
    "machine": "the machine where it is loaded",
    "cls": "the class of the experiment",
    "schema": "its keys",
    "own_class": "whether it is a user's",
    "folder": "the folder of the file",
    "foreign": "sections of the file that nothing here reads",
    "serves": "whether only servers are started",
    "host": "the machine of the plan",
    "here": "the same where it is this machine, whose files can be read",
    "directory": "the run directory",
    "directory_problems": "why it cannot be used",
    "allocation": "which engine runs on how many devices",
    "allocation_problems": "why that is impossible",
    "placement": "node and devices of every process",
    "server_start": "the command of the first server",
    "cluster": "what is asked of the cluster",
    "cluster_problems": "why it would refuse",
    "auto": "the value of every `auto`",
    "batch": "sizes of a step",
    "memory": "what the models need",
    "shared": "what the server takes of a GPU that the trainer shares",
    "sent": "what the trainer's GPU has for the copy that is sent",
    "staging": "what the servers' GPUs have for new weights",
    "data": "steps of all epochs, where the rows are counted",
    "ports": "the ports of the processes",
    "plan": "the whole plan; known at a start",
}
"""What checks can ask for by the names of their parameters."""


def allocation_problems(allocation_problems: Iterable[Problem]) -> Iterable[Problem]:
    """Those of a machine other than the one where the configuration was loaded."""
    return allocation_problems


def unsupported_allocation(allocation: Allocation) -> Iterable[Problem]:
    return allocation.cannot_start


def refused_options(server_start: ServerCommand) -> Iterable[Problem]:
    return (Problem(key, reason) for key, reason in server_start.problems)


def cluster_problems(cluster_problems: Iterable[Problem]) -> Iterable[Problem]:
    return cluster_problems


PLAN_CHECKS = (
    Check("a run that can be resumed", Stage.CANNOT_START, resuming.no_run_to_resume),
    Check("benchmarks are new runs", Stage.CANNOT_START, bench.bench_problems),
    Check("changes that fit the checkpoint", Stage.CANNOT_START, resuming.resume_problems),
    Check("a model of the checkpoint's shape", Stage.CANNOT_START, resuming.model_problems),
    Check("the tokenizer of the checkpoint", Stage.CANNOT_START, resumed_data.tokenizer_problems),
    Check("the rows of the checkpoint", Stage.CANNOT_START, resumed_data.other_row_problems),
    Check("the same evaluation", Stage.CANNOT_START, resumed_evaluation.other_evaluation_problems),
    Check("folders of a resumed run", Stage.CANNOT_START, resuming.moved_folder_problems),
    *START_CHECKS,
    Check("an allocation for the machine", Stage.CANNOT_START, allocation_problems),
    Check("engines that can be started", Stage.CANNOT_START, unsupported_allocation),
    Check("kinds of servers for evaluations", Stage.CANNOT_START, evaluation_servers.evaluator_problems),
    Check("sizes that divide the models", Stage.CANNOT_START, parallel_size_problems),
    Check("parts of a step", Stage.CANNOT_START, step_part_problems),
    Check("room for prompts", Stage.CANNOT_START, answer_length_problems),
    Check("update mode of the engine", Stage.CANNOT_START, engines.update_mode_problems),
    Check("options of the engine", Stage.CANNOT_START, refused_options),
    Check("addresses of judges", Stage.CANNOT_START, rewards.judge_address_problems),
    Check("the metric of the best checkpoint", Stage.CANNOT_START, best_metric_problems),
    Check("random tokens", Stage.CANNOT_START, fake_data_problems),
    Check("profiles", Stage.CANNOT_START, profiler_problems),
    Check("variables of the processes", Stage.CANNOT_START, environment_problems),
    Check("addresses of servers", Stage.CANNOT_START, attached_servers.address_problems),
    Check("processes on one machine", Stage.CANNOT_START, several_nodes),
    Check("a name store for several processes", Stage.CANNOT_START, names_in_memory),
    Check("port numbers", Stage.CANNOT_START, ports.port_number_problems),
    Check("resources of the cluster", Stage.CANNOT_START, cluster_problems),
    Check("flags that the engine's parser accepts", Stage.CANNOT_START, engines.flag_problems),
    # what is missing here
    Check("a free run directory", Stage.MISSING, resuming.taken_directory),
    Check("devices", Stage.MISSING, missing.missing_devices),
    Check("devices of servers for evaluations", Stage.MISSING, evaluation_servers.missing_evaluator_gpus),
    Check("GPUs by their names", Stage.MISSING, missing.misnamed_gpus),
    Check("GPUs that can be connected", Stage.MISSING, missing.divided_gpus),
    Check("nodes", Stage.MISSING, missing.missing_nodes),
    Check("attention", Stage.MISSING, missing.unsupported_attention),
    Check("the engine's installation", Stage.MISSING, engines.engine_problems),
    Check("packages", Stage.MISSING, missing.missing_packages_of_runs),
    Check("packages of built-in tasks and rewards", Stage.MISSING, rewards.missing_packages),
    Check("environments of verifiers", Stage.MISSING, verifiers.missing_environments),
    Check("packages of text environments", Stage.MISSING, environment_packages.missing_environment_packages),
    Check("puzzles of reasoning-gym", Stage.MISSING, environment_packages.unknown_puzzles),
    Check("the package that writes datasets", Stage.MISSING, missing.missing_pyarrow),
    Check("what an upload of answers needs", Stage.MISSING, missing.missing_login),
    Check("what a push to the Environments Hub needs", Stage.MISSING, missing.missing_hub_login),
    Check("programs of agents that are here", Stage.MISSING, agent.missing_program),
    Check("what agents import", Stage.MISSING, agent.missing_imports),
    Check("keys of judges", Stage.MISSING, rewards.missing_judge_keys),
    Check("a sandbox that works", Stage.MISSING, sandbox.sandbox_problems),
    Check("what a name store in etcd needs", Stage.MISSING, name_store.name_store_problems),
    Check("the key of attached servers", Stage.MISSING, attached_servers.missing_api_key),
    Check("trackers", Stage.MISSING, missing.tracker_problems),
    Check("programs of the cluster", Stage.MISSING, missing.missing_programs),
    Check("files of variables", Stage.MISSING, missing.missing_environment_files),
    Check("models", Stage.MISSING, missing.missing_models),
    Check("models that may not be downloaded", Stage.MISSING, hub.offline_model_problems),
    Check("the reward model", Stage.MISSING, reward_model_problems),
    Check("files of models", Stage.MISSING, model_file_problems),
    Check("folders to write to", Stage.MISSING, missing.unwritable_folders),
    Check("free ports", Stage.MISSING, ports.taken_port_problems),
    Check("data", Stage.MISSING, datasets.data_problems),
    Check("results of an earlier run", Stage.MISSING, row_columns.missing_results),
    Check("cores and memory", Stage.MISSING, oversubscription.capacity_problems),
    Check("cores and memory of a described node", Stage.MISSING, oversubscription.node_capacity_problems),
    # what the user should know
    Check("values of the last attempt", Stage.WARNING, changed_value_warnings),
    Check("the configuration of the last attempt", Stage.WARNING, earlier_configuration_warnings),
    Check("devices that are shared or assumed", Stage.WARNING, warnings.allocation_warnings),
    Check("memory of a device", Stage.WARNING, device_memory.room_warnings),
    Check("room for new weights", Stage.WARNING, staging.staging_warnings),
    Check("memory of micro-batches", Stage.WARNING, device_memory.micro_batch_warnings),
    Check("sequences at once", Stage.WARNING, device_memory.serial_generation_warnings),
    Check("learning rates", Stage.WARNING, warnings.learning_rate_warnings),
    Check("models to download", Stage.WARNING, hub.model_download_warnings),
    Check("models beside the actor", Stage.WARNING, warnings.model_warnings),
    Check("number formats", Stage.WARNING, warnings.precision_warnings),
    Check("sizes of a step", Stage.WARNING, warnings.batch_warnings),
    Check("values that the run does not read", Stage.NO_EFFECT, unread_keys.unread_values),
    Check("keys of other engines", Stage.NO_EFFECT, unread_keys.typed_keys_of_other_engines),
    Check("ppo without a critic", Stage.WARNING, warnings.critic_warnings),
    Check("old samples", Stage.WARNING, warnings.staleness_warnings),
    Check("evaluations that begin late", Stage.WARNING, late_evaluation_warnings),
    Check("negative rewards", Stage.WARNING, warnings.group_mean_warnings),
    Check("the reward of a group beside the user's task", Stage.WARNING, task_group.reward_warnings),
    Check("the limit of a task's rows for other rows", Stage.WARNING, task_group.length_warnings),
    Check("servers", Stage.WARNING, warnings.server_warnings),
    Check("lengths of rows", Stage.WARNING, warnings.row_length_warnings),
    Check("options that the engine has lost", Stage.NO_EFFECT, warnings.removed_flags),
    Check("options of the engine to know about", Stage.WARNING, warnings.engine_notes),
    Check("jobs that are requeued", Stage.WARNING, warnings.requeue_warnings),
    Check("Pythons that do not answer", Stage.WARNING, environment_packages.unanswered_pythons),
    Check("what the sandbox does not hold", Stage.WARNING, sandbox.sandbox_weaknesses),
    Check("cores and memory that are shared", Stage.WARNING, oversubscription.capacity_warnings),
    Check("overrides beside bench", Stage.NO_EFFECT, bench.ignored_by_bench),
    Check("data to download", Stage.WARNING, datasets.dataset_download_warnings),
    Check("held-out rows that are training rows", Stage.WARNING, datasets.shared_row_warnings),
    Check("tools that nothing describes", Stage.WARNING, row_columns.undescribed_tools),
    Check("epochs", Stage.WARNING, data_end_warnings),
    Check("folders that stay", Stage.WARNING, resuming.kept_folder_warnings),
)


def checks_of(allocation: Allocation | None) -> tuple[Check, ...]:
    """All, and those of the engine that the servers run."""
    if allocation is None or allocation.rollout is None:
        return PLAN_CHECKS
    return (*PLAN_CHECKS, *engine_checks(allocation.rollout.backend))


def engine_checks(backend: str) -> tuple[Check, ...]:
    """Those that an engine brings."""
    spec = engine_spec(backend)
    for check in spec.checks:
        if unknown := [name for name in check.parameters if name not in FACTS]:
            guess = nearest(unknown[0], list(FACTS))
            hint = f"did you mean {guess[0]}?" if guess else f"there are {', '.join(FACTS)}"
            message = f"the check {check.name!r} of {spec.keys.title} asks for {unknown[0]}, which no plan has; {hint}"
            raise ConfigError([Problem("--schema", message)])
    return spec.checks
