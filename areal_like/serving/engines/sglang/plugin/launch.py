"""Runs SGLang's launcher with our token guard.

`python -m areal_like.serving.engines.sglang.plugin.launch`, and SGLang's flags. SGLang's own API key is a flag, which
all users of the machine can read."""

import runpy
from typing import Any

FREEZE_FUNCTION = "sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup"


def main() -> None:
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from areal_like.serving.token_guard import RequireToken

    app.add_middleware(RequireToken)
    HookRegistry.register(FREEZE_FUNCTION, _do_nothing, HookType.REPLACE)
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)


def _do_nothing(*_: Any) -> None:
    """SGLang would call its route /freeze_gc here, without the token; the engine's client calls it."""


if __name__ == "__main__":  # SGLang's child processes import this module too
    main()
