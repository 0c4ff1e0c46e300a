"""The installed SGLang's parser accepts our command lines."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from areal_like.serving.engines.external.command_line import ServerCommand, ServerSite, flag
from areal_like.serving.engines.external.flag_check import refused_flags
from areal_like.serving.engines.sglang.command import FLAG_PARSER as PARSER
from areal_like.serving.engines.sglang.command import sglang_command
from tests.support.planning import BIG_MODEL, loaded
from tests.support.sglang_servers import sglang_python

SWITCHES = [
    *("skip_tokenizer_init", "disable_radix_cache", "disable_cuda_graph_padding", "enable_nccl_nvls"),
    *("disable_outlines_disk_cache", "disable_custom_all_reduce", "disable_overlap_schedule", "enable_mixed_chunk"),
    *("enable_dp_attention", "enable_torch_compile", "enable_p2p_check", "triton_attention_reduce_in_fp32"),
    *("enable_memory_saver", "allow_auto_truncate", "enable_multimodal", "enable_lora", "log_requests"),
    "show_time_cost",
]
VALUES: dict[str, Any] = {
    "random_seed": 7,
    "torch_compile_max_bs": 8,
    "triton_attention_num_kv_splits": 4,
    "num_continuous_decode_steps": 2,
    "attention_backend": "fa3",
    "sampling_backend": "pytorch",
    "context_length": 1024,
    "mem_fraction_static": 0.5,
    "max_running_requests": 9,
    "max_total_tokens": 4096,
    "chunked_prefill_size": 128,
    "max_prefill_tokens": 256,
    "schedule_policy": "lof",
    "schedule_conservativeness": 1.5,
    "cpu_offload_gb": 1,
    "dtype": "float16",
    "kv_cache_dtype": "fp8_e5m2",
    "dp_size": 2,
    "ep_size": 2,
    "max_lora_rank": 8,
    "lora_target_modules": ["q_proj", "v_proj"],
    "lora_paths": ["a=/a", "/b"],
    "max_loaded_loras": 3,
    "max_loras_per_batch": 2,
    "lora_backend": "csgmv",
    "log_level": "error",
    "log_level_http": "error",
    "log_requests_level": 2,
    "decode_log_interval": 5,
}
TRANSLATED: dict[str, tuple[Any, list[str]]] = {
    "disable_cuda_graph": (True, ["--cuda-graph-backend-decode", "disabled"]),
    "cuda_graph_max_bs": (8, ["--cuda-graph-max-bs-decode", "8"]),
    "cuda_graph_bs": ([1, 2], ["--cuda-graph-bs-decode", "1", "2"]),
    "enable_multithread_load": (True, ["--model-loader-extra-config", '{"enable_multithread_load": true}']),
    "extra_args": ({"page_size": 16}, ["--page-size", "16"]),
}


def written(name: str, value: Any) -> str:
    """An override as a user writes it."""
    prefix = "+sglang.extra_args." if name == "extra_args" else f"sglang.{name}="
    if isinstance(value, dict):
        ((flag_name, value),) = value.items()
        prefix += f"{flag_name}="
    return prefix + json.dumps(value).replace('"', "'") if isinstance(value, list) else f"{prefix}{value}"


def server_command(python: str, *overrides: str) -> ServerCommand:
    config = loaded("grpo", *BIG_MODEL, "gconfig.seed=1", *overrides).config
    return sglang_command(config, ServerSite(0, "", 0, "/r", "some/model", True, 2, 1, (), python))


KEYS = [
    *((name, True) for name in SWITCHES),
    *VALUES.items(),
    *((name, response) for name, (response, _) in TRANSLATED.items()),
]


@pytest.mark.shows(*(f"sglang.{name}" for name, _ in KEYS), "sglang.enable_metrics", "sglang.enable_ep_moe")
def test_sglangs_own_parser_takes_all_keys_as_flags(tmp_path: Path):
    python = sglang_python()
    expected = [flag(name, True) for name in SWITCHES] + [flag(name, value) for name, value in VALUES.items()]
    expected += [words for _, words in TRANSLATED.values()]
    expected.append(["--default-chat-template-kwargs", '{"enable_thinking": false}'])
    words = [*(written(name, value) for name, value in KEYS), "+chat_template_args.enable_thinking=false"]
    full = server_command(python, *words).command
    for flags in expected:
        at = [at for at, word in enumerate(full) if word == flags[0]]
        assert [full[one : one + len(flags)] for one in at] == [flags]
    assert refused_flags(PARSER, python, full, {"SGLANG_USE_CPU_ENGINE": "1"}, tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 1  # remembered
    assert (
        "--enable-metrics" in full
        and "--enable-metrics" not in server_command(python, "sglang.enable_metrics=false").command
    )
    moved = server_command(python, *words, "sglang.enable_ep_moe=true", "sglang.ep_size=1").command
    assert moved[moved.index("--ep-size") + 1] == "2"


@pytest.mark.slow
def test_the_installed_parser_names_the_key_of_a_rejected_flag(tmp_path):
    python = sglang_python()
    on_cpu = {"SGLANG_USE_CPU_ENGINE": "1"}
    command = ["x", "--model-path", "m", "--attention-backend", "fa9"]
    ((key, reason),) = refused_flags(PARSER, python, command, on_cpu, tmp_path)
    assert key == "sglang.attention_backend" and "invalid choice: 'fa9'" in reason


@pytest.mark.shows("sglang.enable_nan_detection")
def test_nan_detection_is_a_variable_that_sglang_reads():
    python = sglang_python()
    usual = server_command(python).env
    ((name, value),) = server_command(python, "sglang.enable_nan_detection=true").env.items() - usual.items()
    code = (
        "import runpy, sys; from importlib.util import find_spec; from pathlib import Path;"
        "file = Path(find_spec('sglang').origin).parent / 'srt' / 'environ.py';"
        "print(getattr(runpy.run_path(str(file))['envs'], sys.argv[1]).get())"
    )
    done = subprocess.run([python, "-c", code, name], env={**os.environ, name: value}, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
