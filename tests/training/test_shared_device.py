"""A trainer on a GPU that it shares: it waits for the server, and says which key to lower when memory runs out."""

import threading

import pytest
import torch

from areal_like.discovery import announce, open_name_store
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.identity import GPU_SHARE, START_AFTER, TOKEN, Identity
from areal_like.training import main as trainer
from areal_like.training.start_order import wait_for_server
from tests.support.training_runs import make_run

ME, SERVER = Identity("trainer", 0, attempt=2), Identity("server", 0)
ERROR = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.57 GiB of which 1.11 GiB is "
    "free. Process 4 has 22 GiB memory in use."
)


def test_a_trainer_waits_until_the_server_on_its_gpu_is_ready(tmp_path, monkeypatch):
    run = make_run(tmp_path, "grpo", f"cluster.name_resolve.nfs_record_root={tmp_path}/names")
    wait_for_server(run, ME)  # no process to wait for
    monkeypatch.setenv(START_AFTER, "server/0")
    waiting = threading.Thread(target=wait_for_server, args=(run, ME))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    with open_name_store(run, SERVER) as names:
        announce(names, SERVER, "127.0.0.1:7")
        waiting.join(30)
        assert not waiting.is_alive()
        wait_for_server(run, ME)  # it is there already, from an earlier attempt


@pytest.mark.parametrize(("share", "limits"), [("0.55", [0.55]), (None, [])])
def test_a_trainer_takes_no_more_than_its_share_where_new_weights_need_the_rest(share, limits, tmp_path, monkeypatch):
    run = make_run(tmp_path, "grpo", f"cluster.name_resolve.nfs_record_root={tmp_path}/names")
    found: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", found.append)
    monkeypatch.setenv(START_AFTER, "server/0")
    if share is not None:
        monkeypatch.setenv(GPU_SHARE, share)
    with open_name_store(run, SERVER) as names:
        announce(names, SERVER, "127.0.0.1:7")
        wait_for_server(run, ME)
    assert found == limits


def test_the_wait_for_the_server_has_a_limit(tmp_path, monkeypatch):
    words = (f"cluster.name_resolve.nfs_record_root={tmp_path}/names", "rollout.setup_timeout=0.1")
    monkeypatch.setenv(START_AFTER, "server/0")
    monkeypatch.setattr("areal_like.training.start_order.patience_s", lambda config, _: config.rollout.setup_timeout)
    with pytest.raises(TimedOut, match=r"^rollout\.setup_timeout: waited .* for server/0, which shares its GPU"):
        wait_for_server(make_run(tmp_path, "grpo", *words), ME)


def failure_of(tmp_path, monkeypatch, experiment, *words):
    """What the trainer process says where its training runs out of memory."""

    def train(*_):
        raise torch.OutOfMemoryError(ERROR)

    monkeypatch.setenv(TOKEN, "x")
    monkeypatch.setattr(trainer, "_reinforcement", train)
    monkeypatch.setattr(trainer, "_supervised", train)
    monkeypatch.setattr("areal_like.training.start_order.wait_for_server", lambda *_: None)
    monkeypatch.setattr("areal_like.training.world.open_world", lambda *_: None)
    monkeypatch.setattr("areal_like.training.stop.StopRequest.listen", lambda _: None)
    with pytest.raises(Failure) as caught:
        trainer.main(make_run(tmp_path, experiment, *words), ME)
    return str(caught.value)


def test_missing_memory_names_the_keys_to_change(tmp_path, monkeypatch):
    text = failure_of(tmp_path, monkeypatch, "grpo", "actor.mb_spec.max_tokens_per_mb=8192")
    assert text == (
        "actor.mb_spec.max_tokens_per_mb: the GPU has no memory left (CUDA out of memory. Tried to allocate 2.32 GiB); "
        "lower it from 8192, or set actor.gradient_checkpointing=true, or set actor.optimizer.offload=true"
    )
    recomputed = failure_of(tmp_path, monkeypatch, "sft", "model.gradient_checkpointing=true")
    assert recomputed.startswith("model.mb_spec.max_tokens_per_mb: ") and "set it to 8192" in recomputed
    assert "gradient_checkpointing" not in recomputed


def test_missing_memory_on_a_shared_gpu_names_that_of_the_server(tmp_path, monkeypatch):
    monkeypatch.setenv(START_AFTER, "server/0")
    words = ("rollout.backend=vllm:d1", "vllm.gpu_memory_utilization=0.5", "actor.dtype=bfloat16", "actor.path=m")
    text = failure_of(tmp_path, monkeypatch, "grpo", *words)
    assert text.endswith("or lower vllm.gpu_memory_utilization (0.5), as the server shares the GPU")
