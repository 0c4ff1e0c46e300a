"""An engine whose memory does not suffice is reported with the key to change; texts as the engines print them."""

import asyncio
from typing import Any

import pytest

from areal_like.serving.engines.external.engine_log import find_error, with_remedy
from areal_like.serving.engines.external.start import EngineLaunch, EngineProgram
from areal_like.serving.engines.sglang.spec import SPEC as SGLANG
from areal_like.serving.engines.vllm.spec import SPEC as VLLM

ALLOCATION = """
(EngineCore pid=71) ERROR 11-23 05:12:01 [core.py:842] EngineCore failed to start.
(EngineCore pid=71) ERROR 11-23 05:12:01 [core.py:842] Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-23 05:12:01 [core.py:842]   File "gpu_worker.py", line 330, in load_model
(EngineCore pid=71) ERROR 11-23 05:12:01 [core.py:842]     self.model_runner.load_model()
(EngineCore pid=71) ERROR 11-23 05:12:01 [core.py:842] torch.OutOfMemoryError: CUDA out of memory. Tried to \
allocate 594.00 MiB. GPU 0 has a total capacity of 23.57 GiB of which 213.19 MiB is free.
Traceback (most recent call last):
  File "core_client.py", line 77, in __init__
    raise RuntimeError("Engine core initialization failed.")
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
FREE = (
    "ValueError: Free memory on device cuda:0 (9.12/79.11 GiB) on startup is less than desired GPU memory utilization "
    "(0.4, 31.65 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (32768), (3.5 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB)."
)
STATIC = (
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.1. Raise "
    "--mem-fraction-static above 0.412"
)


@pytest.mark.parametrize(
    ("spec", "printed", "error", "remedy"),
    [
        (VLLM, ALLOCATION, "torch.OutOfMemoryError: CUDA out of memory", "lower vllm.kv_cache_memory_bytes"),
        (VLLM, FREE, "Free memory on device", "lower vllm.gpu_memory_utilization, or end that process"),
        (VLLM, TOO_LONG, "max seq len (32768)", "lower vllm.max_model_len, or raise vllm.kv_cache_memory_bytes"),
        (SGLANG, ALLOCATION, "CUDA out of memory", "lower sglang.mem_fraction_static"),
        (SGLANG, STATIC, "leave no GPU memory", "raise sglang.mem_fraction_static"),
        (SGLANG, "RuntimeError: Decode out of memory. Try", "Decode out", "raise sglang.max_total_tokens"),
    ],
)
def test_missing_memory_names_the_key_that_helps(spec, printed, error, remedy):
    text = with_remedy(find_error(printed.splitlines()), spec.memory_hints)
    assert error in text and remedy in text.partition("; ")[2]


def test_other_errors_get_no_remedy():
    assert with_remedy("ValueError: the file is damaged", VLLM.memory_hints) == "ValueError: the file is damaged"


class EndedEngine:
    """An engine's process that ends at once."""

    async def ended(self) -> int:
        return 1

    def failure_text(self, code: int) -> str:
        return f"ended with exit code {code}: torch.OutOfMemoryError: CUDA out of memory"

    def was_killed(self, code: int) -> bool:
        return False


def test_the_failure_of_a_server_has_the_remedy() -> None:
    launch: Any = EngineLaunch(None, EngineProgram("vLLM", [], VLLM.memory_hints), None)  # type: ignore[arg-type]
    failure = asyncio.run(launch._watch(EndedEngine()))
    assert str(failure).startswith(
        "the vLLM engine ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory;"
    )
    assert "lower vllm.kv_cache_memory_bytes" in str(failure)
