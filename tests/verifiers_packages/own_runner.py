"""`python own_runner.py REQUEST`: groups of episodes by verifiers' own runner, one after the other; prints
their results as JSON."""

import asyncio
import importlib
import json
import os
import sys

from verifiers.types import ClientConfig  # type: ignore[import-not-found]


async def main(request):
    sys.path.append(os.path.dirname(__file__))
    os.environ["OWN_RUNNER_KEY"] = request["key"]
    results = [await results_of(request["base_url"], **group) for group in request["groups"]]
    print("results: " + json.dumps(results))


async def results_of(base_url, module, args, row, n):
    environment = importlib.import_module(module).load_environment(**args)
    kind = "openai_completions" if isinstance(row["prompt"], str) else "openai_chat_completions"
    client = ClientConfig(client_type=kind, api_key_var="OWN_RUNNER_KEY", api_base_url=base_url)
    sampling = {"temperature": 0.5, "max_tokens": 600, "extra_body": {"return_token_ids": True}}
    sampling["logprobs"] = 1 if kind == "openai_completions" else True
    done = await environment.generate([row] * n, client, "policy", sampling, on_progress=[])
    return [{"reward": each["reward"], "metrics": each["metrics"]} for each in done["outputs"]]


asyncio.run(main(json.loads(sys.argv[1])))
