"""Sends weights to a server of a test as a trainer does: by broadcast, or as an adapter."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from areal_like.process.errors import HttpError
from areal_like.weights.adapter import publish_adapter, read_peft_folder
from areal_like.weights.collective import BroadcastGroup, BroadcastHost
from areal_like.weights.flat_buckets import FlatWeights, flatten
from areal_like.weights.index import dump_index
from areal_like.weights.probe import Probe
from areal_like.weights.rendezvous import Rendezvous
from tests.support.embedded_adapters import logprobs_by, with_peft, write_adapter
from tests.support.engines import NO_SEED, PROBE
from tests.support.server_session import ServerSession

RENDEZVOUS_TIMEOUT_S = 60.0


async def send(
    one: ServerSession,
    seed: int,
    version: int | None = None,
    damage: Callable[[FlatWeights], None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The next version by a group of the trainer and this server. `damage` is done to what is sent, after its hashes
    were taken."""
    server = one.server
    number = server.next_version() if version is None else version
    flat = flatten(number, server.tensors(seed), server.probe(seed), server.run.run_id)
    if damage is not None:
        damage(flat)
    response = await send_flat(one, flat, **changes)
    server.version, server.seed = number, seed
    return response


async def send_flat(one: ServerSession, flat: FlatWeights, **changes: Any) -> dict[str, Any]:
    processes = (await one.get("/health")).get("processes", 1)
    host = BroadcastHost("127.0.0.1", 0)
    rendezvous = Rendezvous(
        host.host, host.port, f"v{flat.index.version}", "gloo", 1, 1 + processes, RENDEZVOUS_TIMEOUT_S
    )
    probe = flat.index.probe
    body = {
        **{"version": flat.index.version, "folder": None, "probe": None if probe is None else probe._asdict()},
        **{"transport": "collective", "meeting": rendezvous._asdict(), "index": dump_index(flat.index), "mode": "auto"},
        **changes,
    }
    group = host.open(rendezvous)
    sending = asyncio.ensure_future(asyncio.to_thread(_send, group, flat))
    try:
        results: dict[str, Any] = await one.post("/control/update_weights", body)
    except HttpError:
        group.abort("the server refuses the weights")
        await asyncio.gather(sending, return_exceptions=True)
        raise
    finally:
        host.close()
    await sending
    return results


def _send(group: BroadcastGroup, flat: FlatWeights) -> None:
    with group:
        group.join()
        for content in flat.contents:
            group.send(content)


class Adapters:
    """Random adapters of a server's model by number, as peft makes and computes them."""

    def __init__(self, one: ServerSession, root: Path, **settings: Any) -> None:
        self.one, self.root, self.settings = one, root, settings
        self.base = one.server.models(one.server.seed)

    def reference(self, seed: int) -> Any:
        return with_peft(self.base, self._folder(seed))

    def published(self, seed: int, version: int | None = None) -> dict[str, Any]:
        server, folder = self.one.server, self._folder(seed)
        number = server.next_version() if version is None else version
        probe = Probe(PROBE, logprobs_by(self.reference(seed), PROBE))
        tensors = list(load_file(folder / "adapter_model.safetensors").items())
        config = read_peft_folder(folder).config
        made = publish_adapter(server.run.weights, number, tensors, config, probe, server.run.run_id)
        body = {"version": number, "folder": str(made), "probe": probe._asdict(), "transport": "adapter"}
        return body | {"meeting": None, "index": None, "mode": "auto"}

    async def update(self, seed: int) -> dict[str, Any]:
        body = self.published(seed)
        results: dict[str, Any] = await self.one.post("/control/update_weights", body)
        self.one.server.version, self.one.server.seed = body["version"], NO_SEED
        return results

    def _folder(self, seed: int) -> Path:
        folder = self.root / f"adapter-{seed}"
        return folder if folder.is_dir() else write_adapter(folder, self.base, seed, **self.settings)
