"""Adapters that somebody loads by a name of their own, for completions that ask for it."""

import asyncio
import re
from pathlib import Path
from typing import Any

from areal_like.serving.embedded.async_engine import AsyncLLMEngine
from areal_like.weights.adapter import read_peft_folder
from areal_like.weights.errors import BadWeights

ADAPTER_NAME = re.compile(r"[\w.-][\w./-]*")
VERSION_NAME = re.compile(r"v\d+")


class NamedAdapters:
    """`model` is the name that the model by itself has."""

    def __init__(self, streams: AsyncLLMEngine, model: str) -> None:
        self._streams, self._model = streams, model
        self._adapters = streams.driver.engine.adapters

    async def load(self, name: str, folder: Path) -> dict[str, Any]:
        """Raises BadWeights where the folder holds none, or none for this model."""
        if not ADAPTER_NAME.fullmatch(name) or name == self._model:
            raise BadWeights(f"name: {name!r} cannot name an adapter; take letters, digits and . _ - / alone")
        if VERSION_NAME.fullmatch(name):
            raise BadWeights(f"name: {name} is how a version of the run's weights is called; take another")
        files = await asyncio.to_thread(read_peft_folder, folder)
        adapter = await asyncio.to_thread(self._adapters.make, files, name, f"adapter {name}", None, str(folder))
        await self._streams.call(lambda: self._adapters.add(adapter))
        return {"name": name, "tensors": len(files.infos)}

    async def unload(self, name: str) -> dict[str, Any]:
        """Raises BadRequest where there is none; what is generated with it goes on to its end."""
        await self._streams.call(lambda: self._adapters.remove(name))
        return {"name": name}
