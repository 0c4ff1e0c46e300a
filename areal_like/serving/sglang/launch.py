"""SGLang's own launcher behind our guard: `python -m areal_like.serving.sglang.launch`, and SGLang's flags.

SGLang has a key of its own, but takes it from the command line, where all can read it."""

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
    """SGLang would call its own route /freeze_gc here, without the token; who starts it does that."""


if __name__ == "__main__":  # SGLang's other processes import this module too
    main()
