"""Generation without a server: everything in one call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from areal_like.serving.requests import FinishedGroup, GroupRequest

if TYPE_CHECKING:
    from areal_like.serving.embedded.core.llm_engine import LLMEngine


def generate(engine: "LLMEngine", groups: Sequence[GroupRequest]) -> list[FinishedGroup]:
    """Runs until these are done; the results stand in their order."""
    numbers = [engine.submit(group) for group in groups]
    done: dict[int, FinishedGroup] = {}
    while engine.has_work:
        done.update((finished.ticket, finished) for finished in engine.step())
    missing = [number for number in numbers if number not in done]
    if missing:
        raise RuntimeError(f"{len(missing)} groups wait for others of their step (order) that were never submitted")
    results = [done[number] for number in numbers]
    for finished in results:
        if finished.error is not None:
            raise RuntimeError(f"group {finished.id}: {finished.error}")
    return results
