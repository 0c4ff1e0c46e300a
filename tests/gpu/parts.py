"""The parts of the checks, in the order in which they run. Nothing heavy is imported here."""

from typing import NamedTuple


class Part(NamedTuple):
    """`limit_s` is for a process of its own; `where` its module and function."""

    name: str
    where: str
    limit_s: float
    about: str


PARTS = (
    Part("kernels", "kernels:kernels", 150, "which attention kernels there are, their time, and how far they are off"),
    Part("parity", "parity:parity", 200, "log-probabilities and gradients against an independent reference"),
    Part("compiled", "parity:compiled", 300, "the same of compiled layers, and the number of graphs"),
    Part("rehearsal", "rehearsal:rehearsal", 300, "how long the rehearsal of compiled layers takes, cold and again"),
    Part("steps", "steps:steps", 300, "training steps of Qwen3-0.6B's shape"),
    Part("recomputation", "steps:recomputation", 240, "the same with activations kept and recomputed"),
    Part("head", "head:head", 120, "log-probabilities from hidden states alone"),
    Part("layers_7b", "steps:layers_7b", 300, "training steps of eight layers of Qwen2.5-7B's shape"),
    Part("rl_step", "rl_step:rl_step", 300, "a step of reinforcement learning, with its synchronizations"),
    Part("update", "real_runs:update", 500, "weights from trainer to embedded server in runs of Qwen3-0.6B's shape"),
    Part("graphs", "graphs:graphs", 120, "captured decode steps of the embedded engine against plain ones"),
    Part("decode", "decode:decode", 300, "the embedded server with 64 and 256 sequences"),
    Part("first_step", "real_runs:first_step", 240, "from the command to the first step of the quickstart"),
    Part("vllm", "real_runs:vllm", 580, "updates, parity and speed of vLLM"),
    Part("sglang", "real_runs:sglang", 580, "the same of SGLang"),
)


def by_name(names: str | None) -> list[Part]:
    """The parts with these names, in the order of the table; all without a name. Raises ValueError for an unknown
    name."""
    if names is None:
        return list(PARTS)
    wanted = [name.strip() for name in names.split(",")]
    unknown = sorted(set(wanted) - {part.name for part in PARTS})
    if unknown:
        known = ", ".join(part.name for part in PARTS)
        raise ValueError(f"--parts: {', '.join(unknown)} is not a part; there are {known}")
    return [part for part in PARTS if part.name in wanted]
