"""Runs SGLang's launcher with our token guard, our receiver and our checksums of weights. SGLang's child processes
import this module too.

`python -m areal_like.serving.engines.sglang.plugin.launch`, and SGLang's flags. SGLang's own API key is a flag, which
all users of the machine can read."""

import multiprocessing
import os
import runpy
from collections.abc import Callable
from typing import Any

from areal_like.process.identity import take_token
from areal_like.serving.engines.sglang.plugin.calls import BACKEND

FREEZE_FUNCTION = "sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup"
PROCESSES_FUNCTION = "sglang.srt.entrypoints.engine._set_envs_and_config"
CHECKSUM_FUNCTION = "sglang.srt.utils.weight_checker._hash_tensor"
CALL_METHOD = (
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.init_weights_update_group"
)
RECEIVE_METHOD = (
    "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.receive_weights_from_distributed"
)


def main() -> None:
    take_token()
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from areal_like.serving.token_guard import RequireToken

    app.add_middleware(RequireToken)
    HookRegistry.register(FREEZE_FUNCTION, _do_nothing, HookType.REPLACE)
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        HookRegistry.register(PROCESSES_FUNCTION, _fork_processes, HookType.AFTER)
        _register()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)


def _do_nothing(*_: Any) -> None:
    """SGLang would call its route /freeze_gc here, without the token; the engine's client calls it."""


def _fork_processes(*_: Any, **__: Any) -> None:
    """SGLang would start its child processes anew, and each of them would import all of SGLang again. Without a GPU
    they can be forked: no other thread runs yet, and nothing has been computed."""
    multiprocessing.set_start_method("fork", force=True)


def _register() -> None:
    """SGLang applies it when the child process starts its scheduler."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for place, hook in ((CHECKSUM_FUNCTION, _checksum), (CALL_METHOD, _call), (RECEIVE_METHOD, _receive)):
        HookRegistry.register(place, hook, HookType.AROUND)


def _checksum(of_sglang: Callable[[Any], str], tensor: Any) -> str:
    """SGLang's own on a GPU."""
    if tensor.device.type != "cpu":
        return of_sglang(tensor)
    import torch

    from areal_like.serving.engines.sglang.checksums import checksum

    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return checksum(str(tensor.dtype).removeprefix("torch."), tensor.shape, content)


def _call(of_sglang: Callable[..., Any], manager: Any, request: Any) -> Any:
    """A call of our worker."""
    if request.backend != BACKEND:
        return of_sglang(manager, request)
    from sglang.srt.managers.io_struct import InitWeightsUpdateGroupReqOutput

    from areal_like.serving.engines.sglang.plugin.worker import call_worker

    results = call_worker(manager, request.group_name, request.master_address)
    return InitWeightsUpdateGroupReqOutput(success=True, message=results)


def _receive(of_sglang: Callable[..., Any], updater: Any, **given: Any) -> Any:
    """What our worker has staged."""
    if not given["group_name"].startswith(BACKEND):
        return of_sglang(updater, **given)
    from areal_like.serving.engines.sglang.plugin.worker import take_staged

    staged = take_staged(given["group_name"])
    if staged is None:
        raise ValueError(f"{given['group_name']} is not staged")
    return staged


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    _register()
