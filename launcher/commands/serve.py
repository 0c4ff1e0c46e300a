"""`serve`: runs only the inference servers of an experiment, until they are stopped."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.models import display_name
from areal_like.process.command_result import write_result
from areal_like.process.run import Run, listen_address, opens_generation
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.supervisor.discard import discard_unused_run
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.serving_run import ServingRun, lock_serving_run
from launcher.terminal import write_line

TRIAL = "trial_name="
"""Left out of the suggested command: a run needs another name than its servers."""
EXAMPLE_REQUEST = {"prompt": "1+1=", "max_tokens": 8, "temperature": 0}


def serve(loaded: Loaded, plan: Plan, run_id: str, replace: bool = False) -> int:
    """Runs the servers of the plan until they are stopped; returns the command's exit code."""
    serving = lock_serving_run(loaded, plan, run_id, replace, Purpose.SERVE, _check_key)
    if isinstance(serving, int):
        return serving
    locked = serving.locked
    ending = _serve(serving, plan.command)
    if ending.message:
        serving.complain(ending.message)
    if discard_unused_run(locked, ending):
        write_line(f"{locked.run.directory} was removed", sys.stderr)
    else:
        write_result(locked.run.directory, ending.outcome, ending.code, ending.message)
    serving.close(ending)
    return ending.code


def _check_key(config: Any, variables: Mapping[str, str]) -> None:
    """Raises ConfigError where the servers would accept no caller."""
    variable = config.rollout.api_key_var
    if opens_generation(config) or variables.get(variable) or os.environ.get(variable):
        return
    reason = (
        f"the servers would listen on {listen_address(config)} and generate only for callers with a key, and "
        f"{variable} (rollout.api_key_var) is not set; export {variable}=..., or set rollout.open_generation=always "
        "to let every caller generate"
    )
    raise ConfigError([Problem("rollout.open_generation", reason)])


def _serve(serving: ServingRun, command: str) -> RunEnding:
    run, key = serving.locked.run, serving.key
    config = run.config
    serving.say(f"servers of {config.experiment_name}/{config.trial_name} in {run.directory}")

    def announce(addresses: Sequence[str]) -> None:
        for line in announcement(run, addresses, bool(key), command):
            serving.say(line)

    policy = RestartPolicy(config.recover.mode, config.recover.retries)
    return serving.watch(policy, Lifecycle(trains=False, on_addresses=announce))


def announcement(run: Run, addresses: Sequence[str], has_key: bool, command: str) -> list[str]:
    """How to use the servers: an example request, and the command that trains with them."""
    config = run.config
    model, variable = display_name(config.actor.path), config.rollout.api_key_var
    body = json.dumps({"model": model, **EXAMPLE_REQUEST})
    first = addresses[0]
    lines = [f"ready: {', '.join(addresses)}", "", "send a request:"]
    heads = "-H 'Content-Type: application/json'"
    if not run.opens_generation:
        heads += f' -H "Authorization: Bearer ${variable}"'
    lines += [f"  curl http://{first}/v1/completions {heads} -d {shlex.quote(body)}", ""]
    words = [word for word in shlex.split(command) if word not in ("serve", "--replace")]
    run_it = shlex.join(word for word in words if not word.startswith(TRIAL))
    if has_key:
        given = shlex.quote(f"rollout.server_addresses=[{','.join(addresses)}]")
        key = "" if variable == "OPENAI_API_KEY" else f" rollout.api_key_var={variable}"
        lines += [f"train with them, with the same {variable} in the environment:", f"  {run_it} {given}{key}"]
    else:
        lines += [
            f"no run can train with them, because {variable} (rollout.api_key_var) is not set.",
            "Set it to the same value for the servers and for the run:",
            f"  export {variable}=...",
        ]
    return [*lines, "", "Ctrl-C stops them"]
