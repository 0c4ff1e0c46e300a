"""How each inference server is started."""

from typing import TYPE_CHECKING

from areal_like.serving.command_line import ServerCommand as ServerCommand
from areal_like.serving.command_line import ServerSite as ServerSite
from areal_like.serving.command_line import flag as flag

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig


def server_start(backend: str, config: "GRPOConfig", spec: ServerSite) -> ServerCommand:
    """The start of one server of this backend."""
    if backend == "vllm":
        from areal_like.serving.vllm.command import vllm_command

        return vllm_command(config, spec)
    if backend == "sglang":
        from areal_like.serving.sglang.command import sglang_command

        return sglang_command(config, spec)
    if backend == "embedded":
        return embedded_server_start(spec)
    raise ValueError(f"rollout.backend: no server is called {backend!r}; there are embedded, vllm and sglang")


def embedded_server_start(spec: ServerSite) -> ServerCommand:
    """Our own server reads everything from the run's config.yaml and publishes the port that it was given."""
    module = ["-m", "areal_like.serving.embedded", "--run-dir", spec.run_dir, "--index", str(spec.number)]
    return ServerCommand([spec.python, *module])
