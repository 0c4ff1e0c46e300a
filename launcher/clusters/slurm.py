"""The batch script of a run on Slurm: one job, one srun per role, every task on its planned node.

`srun --distribution=arbitrary` reads the node of each task from a file; values that differ between the tasks of a role
(GPUs, ports) are looked up by the task's number. All steps share the job's nodes, as the plan divides them.
"""

import math
import re
import shlex
from typing import TYPE_CHECKING, Any

from areal_like.config.problems import Problem
from areal_like.config.redact import SECRET
from areal_like.process.exit_codes import STOPPED_EARLY
from areal_like.process.identity import CONTROLLER, EPISODES, PROCESS, REWARD, SERVER, TOKEN, TRAINER
from launcher.plan.plan import PORT, Process

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

ROLES = (SERVER, REWARD, CONTROLLER, EPISODES, TRAINER)
LIGHT_CORES, LIGHT_MEMORY_MB = 2, 8192
NOTICE_MARGIN_S = 60
"""Slurm gives notice so much earlier than the grace time of a stop needs."""
PATIENCE_S = 30
FIRST_PORT, NUM_PORTS = 20000, 20000
SCRIPT_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", PROCESS, "RANK")
"""Variables that the script sets itself, as their values are known only inside the job."""

PRELUDE = f"""
# Slurm sends TERM before the time limit: the trainer finishes its step, writes a checkpoint and exits with
# {STOPPED_EARLY}, after which the job is requeued. A step that takes longer than recover.grace_s is abandoned.
: "${{{TOKEN}:?is set by the process that submits this}}"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export FIRST_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))
places=$(mktemp -d)
steps=()

start() {{  # role, cores of a task, nodes of its tasks, command
    local role=$1 cores=$2 numbers=$3 number; shift 3
    for number in $numbers; do echo "${{nodes[$number]}}"; done > "$places/$role"
    SLURM_HOSTFILE="$places/$role" srun --overlap --cpu-bind=none --distribution=arbitrary --job-name="$role" \\
        --ntasks="$(wc -l < "$places/$role")" --nodes="$(sort -u "$places/$role" | wc -l)" --cpus-per-task="$cores" \\
        --output="$logs/$role-%t.log" --open-mode=append @EXTRA@ "$@" &
    steps+=($!)
}}"""

ENDING = f"""
# srun kills its step on TERM, so scancel sends the signal to the tasks. The last role (the trainer) gets it before the
# others, which it needs to finish its step.
step_of() {{
    squeue --steps --jobs="$SLURM_JOB_ID" --noheader --format='%i %j' | awk -v role="$1" '$2 == role {{print $1}}'
}}
abandon() {{
    sleep @GRACE@
    touch "$places/abandoned"
    scancel --signal=KILL "$(step_of @LAST@)"
}}
stop() {{
    if [[ $stopping ]]; then return; fi
    stopping=yes
    scancel --signal=TERM "$(step_of @LAST@)"
    abandon & patience=$!
}}
trap stop TERM USR1
last=${{steps[-1]}} stopping= patience=
wait -n "${{steps[@]}}"; code=$?
while [[ $stopping ]]; do wait "$last"; code=$?; kill -0 "$last" 2> /dev/null || break; done
if [[ $stopping ]]; then kill "$patience" 2> /dev/null; fi
if [[ -e $places/abandoned ]]; then code={STOPPED_EARLY}; fi  # the newest checkpoint stands
trap '' TERM USR1
scancel --signal=TERM "$SLURM_JOB_ID" 2> /dev/null
(sleep {PATIENCE_S}; scancel --signal=KILL "$SLURM_JOB_ID") &
wait "${{steps[@]}}"
kill $! 2> /dev/null
rm -rf "$places"
if ((code == {STOPPED_EARLY})); then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def plan_slurm(
    config: "BaseExperimentConfig", processes: tuple[Process, ...], num_nodes: int, gpus_per_node: int, run_dir: str
) -> tuple[dict[str, Any], list[Problem]]:
    """The script, its resources, and problems."""
    by_role = {role: [process for process in processes if process.role == role] for role in ROLES}
    tasks = {role: some for role, some in by_role.items() if some}
    needs = [_node_needs(config, tasks, node) for node in range(num_nodes)]
    resources = {
        "nodes": num_nodes,
        "gpus_per_node": gpus_per_node,
        "cpus_per_node": max(cores for cores, _ in needs),
        "memory_mb_per_node": max(memory for _, memory in needs),
    }
    prelude = PRELUDE.replace("@EXTRA@", config.launcher.slurm.srun_additional_args)
    grace = f"{config.recover.grace_s:g}"
    ending = ENDING.replace("@LAST@", next(reversed(tasks), "")).replace("@GRACE@", grace)
    script = "\n".join([*_header(config, resources, run_dir), prelude, *_starts(config, tasks, run_dir), ending])
    return {"type": "slurm", **resources, "script": script}, _image_problems(config, tasks)


def _task_needs(config: "BaseExperimentConfig", process: Process) -> tuple[int, int]:
    """Cores and MB of one task; a CPU process counts like one with one GPU."""
    limits, units = config.launcher, max(1, len(process.gpus))
    if process.role in (SERVER, REWARD):
        return units * limits.inference_server_cpus_per_gpu, units * limits.inference_server_mem_per_gpu
    if process.role == "trainer":
        return units * limits.trainer_cpus_per_gpu, units * limits.trainer_mem_per_gpu
    return LIGHT_CORES, LIGHT_MEMORY_MB


def _node_needs(config: "BaseExperimentConfig", tasks: dict[str, list[Process]], node: int) -> tuple[int, int]:
    here = [_task_needs(config, process) for some in tasks.values() for process in some if process.node == node]
    return sum(cores for cores, _ in here) or LIGHT_CORES, sum(memory for _, memory in here) or LIGHT_MEMORY_MB


def _header(config: "BaseExperimentConfig", resources: dict[str, Any], run_dir: str) -> list[str]:
    slurm, gpus = config.launcher.slurm, resources["gpus_per_node"]
    options = {
        "job-name": "/".join(run_dir.split("/")[-2:]),
        "nodes": resources["nodes"],
        "cpus-per-task": resources["cpus_per_node"],
        "mem": f"{resources['memory_mb_per_node']}M",
        "gres": f"gpu:{gpus}" if gpus else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "time": slurm.time_limit,
        "output": f"{run_dir}/logs/slurm-%j.log",
        "open-mode": "append",
        "signal": f"B:TERM@{math.ceil(config.recover.grace_s) + NOTICE_MARGIN_S}",
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return ["#!/bin/bash", *lines, "#SBATCH --requeue"]


def _starts(config: "BaseExperimentConfig", tasks: dict[str, list[Process]], run_dir: str) -> list[str]:
    lines = ["", f"logs={shlex.quote(run_dir + '/logs')}"]
    if "trainer" in tasks:
        lines.append(f'export MASTER_ADDR="${{nodes[{tasks["trainer"][0].node}]}}" MASTER_PORT=$FIRST_PORT')
    for role, some in tasks.items():
        places = " ".join(str(process.node) for process in some)
        lines += ["", f"{role}=$(cat << 'TASK'", *_task_script(some), "TASK", ")"]
        cores, _ = _task_needs(config, some[0])
        lines.append(f'start {role} {cores} {shlex.quote(places)} {_container(config, role)}bash -c "${role}"')
    return lines


def _task_script(tasks: list[Process]) -> list[str]:
    """The script of one task: exports its variables, some by task number, then runs the program."""
    lines = [f"export {PROCESS}={tasks[0].role}/$SLURM_PROCID"]
    lines += ["export RANK=$SLURM_PROCID"] if tasks[0].role == "trainer" else []
    for name, value in tasks[0].env.items():
        values = [task.env[name] for task in tasks]
        if name in SCRIPT_VARIABLES or value == SECRET:
            continue
        if len(set(values)) == 1:
            lines.append(f"export {name}={shlex.quote(value)}")
        else:
            lines.append(f"values=({' '.join(shlex.quote(value) for value in values)})")
            lines.append(f'export {name}="${{values[$SLURM_PROCID]}}"')
    return [*lines, f"exec {_command(tasks)}"]


def _command(tasks: list[Process]) -> str:
    """The command; arguments that differ between tasks become a sum with the task's number."""
    words = []
    for place, word in enumerate(tasks[0].command):
        column = [task.command[place] for task in tasks]
        if word == PORT:
            words.append("$((FIRST_PORT + 1 + SLURM_PROCID))")
        elif re.fullmatch(r"<node \d+>", word):
            words.append('"$SLURMD_NODENAME"')
        elif len(set(column)) > 1:
            assert column == [str(int(word) + number) for number in range(len(tasks))], column
            words.append(f"$(({word} + SLURM_PROCID))")
        else:
            words.append(shlex.quote(word))
    return " ".join(words)


def _container(config: "BaseExperimentConfig", role: str) -> str:
    slurm = config.launcher.slurm
    image = slurm.inference_server_image if role in (SERVER, REWARD) else slurm.trainer_image
    if slurm.container_type == "none" or not image:
        return ""
    mounts = "".join(f" --bind {shlex.quote(mount.strip())}" for mount in slurm.mount.split(",") if mount.strip())
    return f"apptainer exec --nv{mounts} {shlex.quote(image)} "


def _image_problems(config: "BaseExperimentConfig", tasks: dict[str, list[Process]]) -> list[Problem]:
    slurm = config.launcher.slurm
    if slurm.container_type == "none":
        return []
    images = {"trainer_image": slurm.trainer_image}
    if "server" in tasks:
        images["inference_server_image"] = slurm.inference_server_image
    remedy = "name an image, or set launcher.slurm.container_type=none"
    reason = f"is not set, and launcher.slurm.container_type is apptainer; {remedy}"
    missing = [f"launcher.slurm.{name}" for name, image in images.items() if not image]
    return [Problem(key, reason, also=("cluster.type",)) for key in missing]
