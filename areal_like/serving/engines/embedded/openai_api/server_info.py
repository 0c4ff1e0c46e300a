"""`/v1/models`, `/version` and `/metrics`."""

import time
from typing import Any

from aiohttp import web

from areal_like import __version__
from areal_like.process.http import json_response
from areal_like.serving.engines.base import ClientAccess
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing

GAUGES = {
    "sequences_running": ("running", "Sequences that are being generated."),
    "sequences_set_aside": ("set_aside", "Sequences that were preempted and wait for a slot."),
    "groups_waiting": ("waiting", "Prompts of which some answers have not started."),
    "weights_version": ("version", "Version of the served weights; -1 is none of a run's."),
    "paused": ("is_paused", "1 while generation is paused."),
}
COUNTERS = {
    "groups": ("groups", "Prompts whose answers are all complete."),
    "samples": ("samples", "Answers that are complete."),
    "generated_tokens": ("tokens", "Generated tokens."),
    "prompt_tokens": ("prompt_tokens", "Computed tokens of prompts."),
    "steps": ("steps", "Steps of the engine."),
    "interruptions": ("interrupted", "Sequences that were preempted."),
    "expired_groups": ("expired", "Prompts whose deadline passed."),
    "busy_seconds": ("busy_s", "Seconds spent in steps of the engine."),
}
"""Metric name -> key in the engine's statistics, and help text."""


class ServerInfoRoutes:
    def __init__(self, serving: OpenAIServing, access: ClientAccess) -> None:
        self._serving, self._access = serving, access
        self._began = int(time.time())

    async def models(self, request: web.Request) -> web.Response:
        engine, name = self._serving.engine, self._serving.model
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
        """In Prometheus' text format."""
        statistics = {**await self._access.statistics(), "is_paused": int(self._access.is_paused)}
        lines = [line for name, source in GAUGES.items() for line in _lines(name, "gauge", source, statistics)]
        for name, source in COUNTERS.items():
            lines += _lines(f"{name}_total", "counter", source, statistics)
        return web.Response(text="\n".join([*lines, ""]), headers={"Content-Type": "text/plain; version=0.0.4"})


def _lines(name: str, kind: str, source: tuple[str, str], statistics: dict[str, Any]) -> list[str]:
    key, help_text = source
    full = f"areal_like_{name}"
    return [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", f"{full} {statistics[key]}"]
