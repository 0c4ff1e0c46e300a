"""Several turns: a guess is answered with `higher` or `lower`; in a group with environments of one turn."""

import asyncio
import ctypes
import os
import time

import v0_single  # type: ignore[import-not-found]
import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-untyped]

MB = 1_000_000


class Guessing(vf.MultiTurnEnv):
    @vf.stop
    async def is_found(self, state):
        return bool(state["trajectory"]) and _text(state["trajectory"][-1]["completion"]) == state["answer"]

    async def env_response(self, messages, state, **more):
        guess, answer = _text(messages), int(state["answer"])
        match guess:
            case "die":
                os._exit(9)
            case "hang":
                time.sleep(600)
            case "wait":
                await asyncio.sleep(600)
            case "fill":
                state["filled"] = ctypes.create_string_buffer(4000 * MB)
            case "pid":
                return [{"role": "user", "content": f"process {os.getpid()}"}]
            case "error":
                raise vf.InfraError("no sandbox is left")
            case "raise":
                raise KeyError("no such guess")
        return [{"role": "user", "content": "higher" if int(guess) < answer else "lower"}]


def found(completion, answer):
    return float(completion[-1].content == answer)


def aligned(state):
    """Each step has ids and log-probabilities, and begins with the ids of the step before."""
    before: list[int] = []
    for step in state["trajectory"]:
        tokens = step["tokens"]
        assert tokens is not None, "a step has no tokens"
        prompt, sampled = tokens["prompt_ids"], tokens["completion_ids"]
        assert prompt[: len(before)] == before and sampled
        assert tokens["prompt_mask"] == [0] * len(prompt) and tokens["completion_mask"] == [1] * len(sampled)
        assert len(tokens["completion_logprobs"]) == len(sampled) and max(tokens["completion_logprobs"]) < 0
        before = prompt + sampled
    return len(before)


def unreadable(completion):
    if _text(completion).endswith("!"):
        raise RuntimeError("nobody can read it")
    return 0.0


def compared(states):
    """Also episodes with an error are compared."""
    return [float(len(states))] * len(states)


def _text(messages):
    return messages[-1].content


class Journal(vf.Rubric):
    """Notes each episode that it cleans up."""

    def __init__(self, path, *args):
        super().__init__(*args)
        self.path = path

    @vf.cleanup
    async def forget(self, state):
        if self.path:
            with open(self.path, "a") as file:
                file.write(f"{state.get('stop_condition')}\n")


def load_environment(journal: str = ""):
    guessing = Guessing(
        dataset=Dataset.from_list([{"question": f"guess {n}", "answer": f"{n}"} for n in range(3, 8)]),
        rubric=Journal(journal, [found, aligned, unreadable, compared], [1.0, 0.0, 0.0, 0.0]),
        max_turns=4,
    )
    rows = [{"question": f"{n}+1=", "answer": f"{n + 1:03d}"} for n in range(10, 14)]
    data, rubric = Dataset.from_list(rows), vf.Rubric([v0_single.right, v0_single.length])
    scored, unscored = (vf.SingleTurnEnv(dataset=data, rubric=rubric) for _ in range(2))
    group = vf.EnvGroup([guessing, scored, unscored], ["guess", "sum", "unscored"])
    unscored.set_score_rollouts(False)
    return group
