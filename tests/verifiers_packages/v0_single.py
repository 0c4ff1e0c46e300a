"""One turn: sums as texts, with a reward, a metric, and a function that compares the episodes of a group."""

import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-untyped]


def right(completion, answer):
    return float(_text(completion) == answer)


def length(completion):
    if _text(completion) == "broken":
        raise RuntimeError("this rubric cannot read it")
    if _text(completion).endswith("nan"):
        return float("nan")
    return None if _text(completion) == "none" else float(len(_text(completion)))


def longest(completions):
    texts = [_text(each) for each in completions]
    return [float(text == max(texts, key=len)) for text in texts]


def _text(completion):
    return completion if isinstance(completion, str) else completion[-1].content


def load_environment(first: int = 10, group_weight: float = 0.0):
    rows = [{"prompt": f"{first + a}+{b}=", "answer": f"{first + a + b:03d}"} for a in range(5) for b in range(4)]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows[:16]),
        eval_dataset=Dataset.from_list(rows[16:]),
        rubric=vf.Rubric([right, length, longest], [1.0, 0.0, group_weight]),
    )
