"""Counters of the engine, part of its statistics."""

from dataclasses import dataclass


@dataclass
class EngineCounts:
    groups: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    interrupted: int = 0
    recomputed: int = 0
    busy_s: float = 0.0
