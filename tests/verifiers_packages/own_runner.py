"""`python own_runner.py REQUEST`: groups of episodes by verifiers' own runner, one after the other; prints
their results as JSON."""

import asyncio
import importlib
import json
import os
import sys
import tempfile


async def main(request):
    sys.path.append(os.path.dirname(__file__))
    os.environ["OWN_RUNNER_KEY"] = request["key"]
    results = [await results_of(request["base_url"], **group) for group in request["groups"]]
    print("results: " + json.dumps(results))


async def results_of(base_url, module, args, row, n):
    loaded = importlib.import_module(module)
    return await (of_environment if hasattr(loaded, "load_environment") else of_taskset)(loaded, base_url, args, row, n)


async def of_environment(module, base_url, args, row, n):
    from verifiers.types import ClientConfig  # type: ignore[import-not-found]

    environment = module.load_environment(**args)
    kind = "openai_completions" if isinstance(row["prompt"], str) else "openai_chat_completions"
    client = ClientConfig(client_type=kind, api_key_var="OWN_RUNNER_KEY", api_base_url=base_url)
    sampling = {"temperature": 0.5, "max_tokens": 600, "extra_body": {"return_token_ids": True}}
    sampling["logprobs"] = 1 if kind == "openai_completions" else True
    done = await environment.generate([row] * n, client, "policy", sampling, on_progress=[])
    return [{"reward": each["reward"], "metrics": each["metrics"]} for each in done["outputs"]]


async def of_taskset(module, base_url, args, row, n):
    from verifiers.v1 import AgentConfig, env_config_type  # type: ignore[import-not-found]
    from verifiers.v1.cli.eval.runner import run_eval  # type: ignore[import-not-found]
    from verifiers.v1.configs.cli.eval import EvalConfig  # type: ignore[import-not-found]

    fields = env_config_type(module.__name__).model_fields
    agents = [name for name, field in fields.items() if isinstance(field.default, AgentConfig)]
    own = {name: value for name, value in args.items() if name in fields}
    own |= {name: {"runtime": {"type": "subprocess"}, **args.get(name, {})} for name in agents}
    taskset = {"id": module.__name__, **{name: value for name, value in args.items() if name not in fields}}
    with tempfile.TemporaryDirectory() as folder:
        config = EvalConfig(
            env={"taskset": taskset, **own},
            client={"type": "eval", "base_url": base_url, "api_key_var": "OWN_RUNNER_KEY"},
            model="policy",
            sampling={"temperature": 0.5, "max_tokens": 600},
            select={"include": {"idx": [str(row["task"]["idx"])]}},
            num_rollouts=n,
            push=False,
            rich=None,
            output_dir=folder,
        )
        traces = [trace for episode in await run_eval(config) for trace in episode.traces]
    results = []
    for trace in traces:
        prefix = f"{trace.agent.name}/" if len(agents) > 1 else ""
        parts = {**trace.metrics, **{name: reward.score for name, reward in trace.rewards.items()}}
        results.append({"reward": trace.reward, "metrics": {f"{prefix}{name}": value for name, value in parts.items()}})
    return results


asyncio.run(main(json.loads(sys.argv[1])))
