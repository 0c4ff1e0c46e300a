"""The batch script of a run on Slurm: one job, one srun for each role, every task on the node that the plan says.

`srun --distribution=arbitrary` reads the node of each task from a file; what differs between the tasks of a role
(GPUs, ports) is looked up by the task's number.
"""

import re
import shlex
from typing import TYPE_CHECKING, Any

from launcher.plan.environment import OURS, TOKEN
from launcher.plan.plan import PORT, SECRET, Obstacle, Process

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

ROLES = ("server", "rollout", "episodes", "trainer")
LIGHT_CORES, LIGHT_MEMORY_MB = 2, 8192
NOTICE_S = 300
REQUEUE = 75
PER_TASK = ("CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "GROUP_RANK", "AREAL_LIKE_PROCESS", "VLLM_CPU_OMP_THREADS_BIND")
FIRST_PORT, NUM_PORTS = 20000, 20000


def plan_slurm(
    config: "BaseExperimentConfig", processes: tuple[Process, ...], num_nodes: int, gpus_per_node: int, run_dir: str
) -> tuple[dict[str, Any], list[Obstacle]]:
    """The script and what it asks for."""
    tasks = {role: [process for process in processes if process.role == role] for role in ROLES}
    tasks = {role: found for role, found in tasks.items() if found}
    needs = [_node_needs(config, tasks, node) for node in range(num_nodes)]
    resources = {
        "nodes": num_nodes,
        "gpus_per_node": gpus_per_node,
        "cpus_per_node": max(cores for cores, _ in needs),
        "memory_mb_per_node": max(memory for _, memory in needs),
    }
    script = "\n".join([*_header(config, resources, run_dir), *_prelude(config), *_starts(config, tasks), *_ending(), ""])
    return {"type": "slurm", **resources, "script": script}, _image_obstacles(config, tasks)


def _task_needs(config: "BaseExperimentConfig", process: Process) -> tuple[int, int]:
    """Cores and MB of one task; a process on the CPU counts as one with one GPU."""
    limits, units = config.launcher, max(1, len(process.gpus))
    if process.role == "server":
        return units * limits.inference_server_cpus_per_gpu, units * limits.inference_server_mem_per_gpu
    if process.role == "trainer":
        return units * limits.trainer_cpus_per_gpu, units * limits.trainer_mem_per_gpu
    return LIGHT_CORES, LIGHT_MEMORY_MB


def _node_needs(config: "BaseExperimentConfig", tasks: dict[str, list[Process]], node: int) -> tuple[int, int]:
    here = [_task_needs(config, process) for found in tasks.values() for process in found if process.node == node]
    return sum(cores for cores, _ in here) or 1, sum(memory for _, memory in here) or 1024


def _header(config: "BaseExperimentConfig", resources: dict[str, Any], run_dir: str) -> list[str]:
    slurm, gpus = config.launcher.slurm, resources["gpus_per_node"]
    options = {
        "job-name": f"{config.experiment_name}/{run_dir.rpartition('/')[2]}",
        "nodes": resources["nodes"],
        "ntasks-per-node": 1,
        "cpus-per-task": resources["cpus_per_node"],
        "mem": f"{resources['memory_mb_per_node']}M",
        "gres": f"gpu:{gpus}" if gpus else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "time": slurm.time_limit,
        "output": f"{run_dir}/logs/slurm-%j.log",
        "open-mode": "append",
        "signal": f"B:TERM@{NOTICE_S}",
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return ["#!/bin/bash", *lines, "#SBATCH --requeue", ""]


def _prelude(config: "BaseExperimentConfig") -> list[str]:
    extra = config.launcher.slurm.srun_additional_args
    return [
        "# Slurm says TERM five minutes before the end: the roles finish their step and write a checkpoint, and exit",
        f"# code {REQUEUE} then means: put me back into the queue.",
        "mapfile -t nodes < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")",
        f"export FIRST_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))",
        "export MASTER_PORT=$FIRST_PORT",
        f": \"${{{TOKEN}:?the submitting process sets it}}\"",
        "scratch=$(mktemp -d)",
        "pids=()",
        "",
        "start() {  # role, nodes of its tasks, cores and MB of a task, then the command",
        "    local role=$1 places=$2 cores=$3 memory=$4 node; shift 4",
        "    for node in $places; do echo \"${nodes[$node]}\"; done > \"$scratch/$role\"",
        "    SLURM_HOSTFILE=\"$scratch/$role\" srun --overlap --distribution=arbitrary --job-name=\"$role\" \\",
        "        --ntasks=\"$(wc -w <<< \"$places\")\" --nodes=\"$(sort -u \"$scratch/$role\" | wc -l)\" \\",
        f"        --cpus-per-task=\"$cores\" --mem-per-cpu=\"$((memory / cores))M\" {extra} \\",
        "        --output=\"$logs/$role-%t.log\" --open-mode=append --kill-on-bad-exit=1 \"$@\" &",
        "    pids+=($!)",
        "}",
        "",
    ]


def _starts(config: "BaseExperimentConfig", tasks: dict[str, list[Process]]) -> list[str]:
    first = next(iter(tasks.values()))[0]
    lines = [f"logs={shlex.quote(first.log.rpartition('/')[0])}"]
    if "trainer" in tasks:
        lines.append(f"export MASTER_ADDR=\"${{nodes[{tasks['trainer'][0].node}]}}\"")
    for role, found in tasks.items():
        needs = _task_needs(config, found[0])
        places = " ".join(str(process.node) for process in found)
        inside = shlex.quote("\n".join(_task_script(found)))
        container = _container(config, role)
        lines += ["", f"start {role} {shlex.quote(places)} {needs[0]} {needs[1]} \\", f"    {container}bash -c {inside}"]
    return lines


def _task_script(tasks: list[Process]) -> list[str]:
    """What one task does: its own variables, by its number, and then the program."""
    own = [name for name in tasks[0].env if name in PER_TASK and name not in ("RANK", "AREAL_LIKE_PROCESS")]
    lines = []
    for name in own:
        values = [task.env.get(name, "") for task in tasks]
        if len(set(values)) == 1:
            lines.append(f"export {name}={shlex.quote(values[0])}")
        else:
            lines.append(f"values=({' '.join(shlex.quote(value) for value in values)})")
            lines.append(f"export {name}=\"${{values[$SLURM_PROCID]}}\"")
    lines.append(f"export AREAL_LIKE_PROCESS={tasks[0].role}/$SLURM_PROCID")
    if tasks[0].role == "trainer":
        lines.append("export RANK=$SLURM_PROCID")
    elsewhere = (*PER_TASK, *OURS)
    for name, value in tasks[0].env.items():
        if value != SECRET and (name not in elsewhere or name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "AREAL_LIKE_RUN_DIR")):
            lines.append(f"export {name}={shlex.quote(value)}")
    return [*lines, f"exec {_command(tasks)}"]


def _command(tasks: list[Process]) -> str:
    """The words that all tasks share, and for the others a look-up by number."""
    words = []
    for place, word in enumerate(tasks[0].command):
        column = [task.command[place] for task in tasks]
        if word == PORT:
            words.append("$((FIRST_PORT + 1 + SLURM_PROCID))")
        elif column == [str(index) for index in range(len(tasks))] and len(tasks) > 1:
            words.append("$SLURM_PROCID")
        elif len(set(column)) > 1 and all(item.isdigit() for item in column):
            words.append(f"$(({int(column[0])} + SLURM_PROCID))")
        else:
            words.append("\"$SLURMD_NODENAME\"" if re.fullmatch(r"<node \d+>", word) else shlex.quote(word))
    return " ".join(words)


def _container(config: "BaseExperimentConfig", role: str) -> str:
    slurm = config.launcher.slurm
    image = slurm.inference_server_image if role == "server" else slurm.trainer_image
    if slurm.container_type == "none" or not image:
        return ""
    mounts = "".join(f" --bind {shlex.quote(mount.strip())}" for mount in slurm.mount.split(",") if mount.strip())
    return f"apptainer exec --nv{mounts} {shlex.quote(image)} "


def _image_obstacles(config: "BaseExperimentConfig", tasks: dict[str, list[Process]]) -> list[Obstacle]:
    slurm = config.launcher.slurm
    if slurm.container_type == "none":
        return []
    wanted = {"trainer_image": slurm.trainer_image}
    if "server" in tasks:
        wanted["inference_server_image"] = slurm.inference_server_image
    return [
        Obstacle(
            f"launcher.slurm.{name}",
            "is not set, and launcher.slurm.container_type is apptainer; name an image, or set container_type=none",
        )
        for name, image in wanted.items()
        if not image
    ]


def _ending() -> list[str]:
    return [
        "",
        "trap 'kill -TERM \"${pids[@]}\" 2> /dev/null' TERM",
        "last=${pids[-1]}  # the trainer: when it is done, so is the run",
        "wait -n -p first \"${pids[@]}\"; code=$?",
        f"while ((code > 128)) && kill -0 \"$last\" 2> /dev/null; do wait \"$last\"; code=$?; done  # a trap ends a wait",
        "if [[ ${first:-} && $first != \"$last\" ]]; then echo \"the first step to end was ${first} with code $code\" >&2; fi",
        "kill -TERM \"${pids[@]}\" 2> /dev/null",
        "wait",
        "rm -rf \"$scratch\"",
        f"if ((code == {REQUEUE})); then scontrol requeue \"$SLURM_JOB_ID\"; fi",
        "exit \"$code\"",
    ]
