"""Runs vLLM's server, after the run's token was read: the environment of a process can be read by others.

`python -m areal_like.serving.engines.vllm.plugin.launch`, and vLLM's flags."""

import runpy

from areal_like.process.identity import take_token

SERVER = "vllm.entrypoints.openai.api_server"
"""`vllm serve` looks for a distribution of the name vllm, and the one for CPUs has another."""


def main() -> None:
    take_token()
    runpy.run_module(SERVER, run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
