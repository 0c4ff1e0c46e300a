"""Datasets whose columns, prompts and rewards are known by name.

An entry has `paths`, the names it is known by (the name on the Hub, or a folder or file in a path; `*` stands for any
text), keys of a dataset section, and below `rl`, `sft` and `rw` what is for rows of that type alone, with the `reward`
and the `workflow` of its answers.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

ROW_KEYS: dict[str, Any] = {
    "fields": {},
    "require": {},
    "as_chat": False,
    "prompt_template": None,
    "system_prompt": None,
    "remove_text": [],
    "multiple_choice": None,
    "answer_from": None,
}
"""Keys of a dataset section that an entry may set, and their defaults."""
ANSWER_KEYS = {"reward": "reward.name", "workflow": "workflow.name"}
"""Further keys of an entry, for rows that are answered."""
TYPES = ("rl", "sft", "rw")
PATHS, NONE = "paths", "none"

BOXED = "Put your final answer within \\boxed{{}}."
MATHEMATICS = {"as_chat": True, "reward": "math"}
CHOICES = {"as_chat": True, "reward": "choice"}
LETTER = "End with the letter of the right choice in \\boxed{{}}."

KNOWN_DATASETS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        "paths": ["openai/gsm8k", "gsm8k"],
        "fields": {"prompt": "question"},
        "rl": {"prompt_template": f"{{prompt}}\n{BOXED}", "answer_from": "hashes", **MATHEMATICS},
    },
    "math": {
        "paths": ["hendrycks_math", "hendrycks-math*", "competition_math", "math-500", "math-lighteval"],
        "fields": {"prompt": "problem", "answer": "solution"},
        "rl": {"prompt_template": f"{{prompt}}\n{BOXED}", "answer_from": "boxed", **MATHEMATICS},
    },
    "boba": {
        "paths": ["inclusionai/areal-boba-data", "areal-boba-data", "areal-boba-106k*", "areal-boba-sft-200*", "boba"],
        "fields": {"answer": "solutions"},
        "remove_text": ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>\n", "<think>"],
        "rl": {"require": {"task": "math"}, **MATHEMATICS},
        "sft": {"fields": {"answer": "solutions.0"}},
    },
    "torl": {
        "paths": ["torl_data", "torl"],
        "fields": {"answer": "reward_model.ground_truth"},
        "rl": MATHEMATICS,
    },
    "countdown": {
        "paths": ["countdown"],
        "fields": {"prompt": "query"},
        "rl": {"reward": "countdown"},
    },
    "hh-rlhf": {"paths": ["anthropic/hh-rlhf", "hh-rlhf"]},
    "mmlu": {
        "paths": ["cais/mmlu", "mmlu"],
        "fields": {"prompt": "question"},
        "multiple_choice": "choices",
        "rl": {"prompt_template": f"{{prompt}}\n{{choices}}\n{LETTER}", **CHOICES},
    },
    "arc": {
        "paths": ["allenai/ai2_arc", "ai2_arc"],
        "fields": {"prompt": "question", "answer": "answerKey"},
        "multiple_choice": "choices.text",
        "answer_from": "letter",
        "rl": {"prompt_template": f"{{prompt}}\n{{choices}}\n{LETTER}", **CHOICES},
    },
}


def find_known(paths: Iterable[str], table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The entries that these paths name, each once."""
    return list(dict.fromkeys(name for path in paths for name in known_as(path, table)))


def known_as(path: str, table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The entry with a name that is the path, or one of its folders or its file. Of several an entry of the user, then
    the longest name; more than one only if that does not decide."""
    named = {name: length for name, entry in table.items() if (length := _named(path.lower(), entry.get(PATHS, ())))}
    found = {name: length for name, length in named.items() if table[name] != KNOWN_DATASETS.get(name)} or named
    return [name for name, length in found.items() if length == max(found.values())]


def _named(path: str, names: Iterable[str]) -> int:
    """The length of the longest name that the path has; 0: it has none."""
    parts = [path, *PurePosixPath(path).parts, PurePosixPath(path).stem]
    lengths = (len(name) for name in names if any(fnmatchcase(part, name.lower()) for part in parts))
    return max(lengths, default=0)


def row_keys(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The keys of a dataset section for rows of a type, with their defaults."""
    own = {**entry, **entry.get(kind, {})}
    return {name: own.get(name, default) for name, default in ROW_KEYS.items()}


def answer_keys(entry: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Dotted key -> name of the reward and the workflow of rows of a type."""
    own = {**entry, **entry.get(kind, {})}
    return {key: own[name] for name, key in ANSWER_KEYS.items() if name in own}
