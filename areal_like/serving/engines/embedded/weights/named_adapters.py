"""Adapters that clients load by name, for completions that ask for them."""

import asyncio
import re
from pathlib import Path
from typing import Any

from areal_like.serving.engines.embedded.async_engine import AsyncLLMEngine
from areal_like.weights.adapter import read_peft_folder
from areal_like.weights.errors import BadWeights

ADAPTER_NAME = re.compile(r"[\w.-][\w./-]*")
VERSION_NAME = re.compile(r"v\d+")


class NamedAdapters:
    """`model` is the name of the bare model."""

    def __init__(self, async_engine: AsyncLLMEngine, model: str) -> None:
        self._async_engine, self._model = async_engine, model
        self._adapters = async_engine.engine.adapters

    async def load(self, name: str, folder: Path) -> dict[str, Any]:
        """Raises BadWeights if the folder has no adapter, or none for this model."""
        if not ADAPTER_NAME.fullmatch(name) or name == self._model:
            raise BadWeights(f"name: {name!r} cannot name an adapter; use only letters, digits and . _ - /")
        if VERSION_NAME.fullmatch(name):
            raise BadWeights(f"name: {name} is the name of a version of the run's weights; take another")
        files = await asyncio.to_thread(read_peft_folder, folder)
        adapter = await asyncio.to_thread(self._adapters.make, files, name, f"adapter {name}", None, str(folder))
        await self._async_engine.call(lambda: self._adapters.add(adapter))
        return {"name": name, "tensors": len(files.infos)}

    async def unload(self, name: str) -> dict[str, Any]:
        """Raises BadRequest if there is none; running groups keep it to their end."""
        await self._async_engine.call(lambda: self._adapters.remove(name))
        return {"name": name}
