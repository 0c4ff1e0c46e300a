"""The installed vLLM's parser accepts our command lines."""

import pytest

from areal_like.serving.engines.external.command_line import ServerSite
from areal_like.serving.engines.external.flag_check import refused_flags
from areal_like.serving.engines.vllm.command import FLAG_PARSER as PARSER
from areal_like.serving.engines.vllm.command import vllm_command
from tests.support.planning import loaded
from tests.support.vllm_servers import python

ALL_KEYS = (
    *("skip_tokenizer_init=true", "enforce_eager=true", "dtype=float16", "distributed_executor_backend=uni"),
    *("max_num_seqs=17", "block_size=64", "cpu_offload_gb=2.5", "disable_sliding_window=false", "max_model_len=4096"),
    *("enable_chunked_prefill=false", "enable_prefix_caching=false", "gpu_memory_utilization=0.5", "seed=41"),
    "kv_cache_memory_bytes=1000000",
    *("enable_sleep_mode=true", "uvicorn_log_level=error", "trust_remote_code=true", "enable_auto_tool_choice=true"),
    *("tool_call_parser=mistral", "worker_extension_cls=my.Extension"),
)
LOST = ("swap_space=8", "max_seq_len_to_capture=100")
FLAGS = (
    *("--skip-tokenizer-init", "--enforce-eager", "--dtype float16", "--distributed-executor-backend uni"),
    *("--max-num-seqs 17", "--block-size 64", "--cpu-offload-gb 2.5", "--no-disable-sliding-window"),
    *(
        "--max-model-len 4096",
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization 0.5",
        "--kv-cache-memory-bytes 1000000",
    ),
    *("--seed 41", "--enable-sleep-mode", "--uvicorn-log-level error", "--trust-remote-code"),
    *("--enable-auto-tool-choice", "--tool-call-parser mistral", "--model some/model", "--max-logprobs 5"),
    *("--worker-extension-cls my.Extension", "--max-lora-rank 32"),
    '--default-chat-template-kwargs {"enable_thinking": false}',
)


@pytest.mark.shows(*(f"vllm.{key.partition('=')[0]}" for key in ALL_KEYS), "vllm.extra_args")
@pytest.mark.parametrize("on_gpu", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_vllms_own_parser_takes_all_keys_as_flags(tmp_path, on_gpu):
    vllm = python()
    response = ("actor.path=some/model", "rollout=vllm", "actor.use_lora=true", "actor.lora_rank=20")
    template = "+chat_template_args.enable_thinking=false"
    config = loaded(
        "grpo", *response, template, *(f"vllm.{key}" for key in (*ALL_KEYS, *LOST)), "+vllm.extra_args.max_logprobs=5"
    ).config
    start = vllm_command(config, ServerSite(0, "127.0.0.1", 0, "/r", "some/model", on_gpu, 2, 1, (0, 1), vllm))
    if on_gpu:
        assert {flag for flag in FLAGS if f" {flag} " in " ".join([*start.command, ""])} == {*FLAGS}
    assert refused_flags(PARSER, vllm, start.command, start.env, tmp_path) == []
    assert len([*tmp_path.iterdir()]) == 1


def test_an_unknown_flag_of_vllm_is_refused_by_its_key(tmp_path):
    vllm = python()
    command = [vllm, "-m", "x", "--model", "some/model", "--port", "<port>", "--swap-space", "4"]
    ((key, reason),) = refused_flags(PARSER, vllm, command, cache=tmp_path)
    assert key == "vllm.extra_args.swap_space"
    assert "unrecognized" in reason
    assert [*tmp_path.iterdir()] == []
