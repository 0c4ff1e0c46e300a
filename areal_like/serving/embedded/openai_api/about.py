"""What a server says of itself to whoever asks."""

import time
from typing import Any

from aiohttp import web

from areal_like import __version__
from areal_like.process.http import json_response
from areal_like.serving.embedded.openai_api.clients import OpenAIServing

GAUGES = {
    "sequences_running": ("running", "Sequences that are being generated."),
    "sequences_set_aside": ("set_aside", "Sequences that have begun and wait for a slot."),
    "groups_waiting": ("waiting", "Prompts that have not begun with all their answers."),
    "weights_version": ("version", "Version of the weights in use; -1 is none of a run's."),
}
COUNTERS = {
    "groups": ("groups", "Prompts that have all their answers."),
    "samples": ("samples", "Answers that are complete."),
    "generated_tokens": ("tokens", "Tokens that were generated."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were computed."),
    "steps": ("steps", "Steps of the engine."),
    "interruptions": ("interrupted", "Sequences that had to give their slot back."),
    "expired_groups": ("expired", "Prompts whose deadline passed."),
    "busy_seconds": ("busy_s", "Seconds in which steps were computed."),
}
"""Name in the text -> name in the engine's statistics, and what it is."""


class AboutRoutes:
    """`/v1/models`, `/version` and `/metrics`."""

    def __init__(self, outside: OpenAIServing) -> None:
        self._outside = outside
        self._began = int(time.time())

    async def models(self, request: web.Request) -> web.Response:
        engine, name = self._outside.engine, self._outside.model
        model = {
            "id": name,
            "object": "model",
            "created": self._began,
            "owned_by": "areal-like",
            "root": name,
            "parent": None,
            "max_model_len": engine.context_length,
        }
        adapters = [
            {**model, "id": one.name, "root": one.folder, "parent": name}
            for one in list(engine.adapters.loaded.values())
        ]
        return json_response({"object": "list", "data": [model, *adapters]})

    async def version(self, request: web.Request) -> web.Response:
        return json_response({"version": __version__})

    async def metrics(self, request: web.Request) -> web.Response:
        """In the text format that Prometheus reads."""
        found = await self._outside.streams.call(self._outside.engine.statistics)
        found["is_paused"] = int(self._outside.streams.driver.is_paused)
        gauges = {**GAUGES, "paused": ("is_paused", "1 while nothing is generated because somebody said so.")}
        lines = [line for name, one in gauges.items() for line in _lines(name, "gauge", one, found)]
        lines += [line for name, one in COUNTERS.items() for line in _lines(f"{name}_total", "counter", one, found)]
        return web.Response(text="\n".join([*lines, ""]), headers={"Content-Type": "text/plain; version=0.0.4"})


def _lines(name: str, kind: str, source: tuple[str, str], found: dict[str, Any]) -> list[str]:
    key, meaning = source
    full = f"areal_like_{name}"
    return [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {found[key]}"]
