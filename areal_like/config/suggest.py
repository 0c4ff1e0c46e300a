"""The right name for a wrong one: by spelling, by section, and by what the same thing is called elsewhere."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from areal_like.config.aliases import ALIASES

SYNONYMS = {
    "learning_rate": "actor.optimizer.lr",
    "rollout_n": "gconfig.n_samples",
    "num_generations": "gconfig.n_samples",
    "rollouts_per_example": "gconfig.n_samples",
    "n_rollouts": "gconfig.n_samples",
    "num_samples": "gconfig.n_samples",
    "max_completion_length": "gconfig.max_new_tokens",
    "max_completion_tokens": "gconfig.max_new_tokens",
    "max_response_length": "gconfig.max_new_tokens",
    "max_steps": "total_train_steps",
    "total_steps": "total_train_steps",
    "num_train_epochs": "total_train_epochs",
    "total_epochs": "total_train_epochs",
    "epochs": "total_train_epochs",
    "model_name_or_path": "actor.path",
    "model_path": "actor.path",
    "train_batch_size": "train_dataset.batch_size",
    "per_device_train_batch_size": "train_dataset.batch_size",
    "kl_coef": "actor.kl_ctl",
    "kl_loss_coef": "actor.kl_ctl",
    "clip_ratio": "actor.eps_clip",
    "clip_ratio_low": "actor.eps_clip",
    "clip_ratio_high": "actor.eps_clip_higher",
    "epsilon": "actor.eps_clip",
    "epsilon_high": "actor.eps_clip_higher",
    "entropy_coeff": "actor.entropy_coef",
    "max_grad_norm": "actor.optimizer.gradient_clipping",
    "grad_clip": "actor.optimizer.gradient_clipping",
    "max_norm": "actor.optimizer.gradient_clipping",
    "async_level": "rollout.max_head_offpolicyness",
    "max_staleness": "rollout.max_head_offpolicyness",
    "staleness_threshold": "rollout.max_head_offpolicyness",
    "output_dir": "cluster.fileroot",
    "run_name": "trial_name",
    "project_name": "experiment_name",
    "behave_imp_weight_cap": "actor.behav_imp_weight_cap",
    "gamma": "actor.discount",
    "lam": "actor.gae_lambda",
    "save_freq": "saver.freq_steps",
    "test_freq": "evaluator.freq_steps",
    "eval_steps": "evaluator.freq_steps",
    "save_steps": "saver.freq_steps",
    "tensor_parallel_size": "rollout.backend",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
}
CUTOFF = 0.72


def nearest(name: str, candidates: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """Candidates spelt like `name`, best first."""
    scored = sorted(((similarity(name, c), c) for c in candidates), key=lambda pair: (-pair[0], pair[1]))
    return [candidate for score, candidate in scored[:3] if score >= cutoff]


def similarity(left: str, right: str) -> float:
    matcher = SequenceMatcher(None, left.lower().replace("-", "_"), right.lower())
    return matcher.ratio() if matcher.real_quick_ratio() > 0.4 and matcher.quick_ratio() > 0.4 else 0.0


def suggest(path: str, names: Iterable[str]) -> str | None:
    """The key that `path` most likely means, from anywhere in the tree (`names` are all its keys and sections)."""
    candidates = [name for name in names if "[]" not in name]
    known = set(candidates)
    parent, _, leaf = path.rpartition(".")
    for meant in _by_another_name(parent, leaf):
        if meant in known:
            return meant
    best: tuple[float, str] | None = None
    short = (alias for alias, real in ALIASES.items() if real in known)
    for candidate in (*candidates, *short):
        above, _, name = candidate.rpartition(".")
        score = similarity(leaf, name)
        if score < CUTOFF:
            continue
        score += 0.3 * _closeness(parent, above)
        if best is None or score > best[0]:
            best = (score, candidate)
    return None if best is None else ALIASES.get(best[1], best[1])


def _by_another_name(parent: str, leaf: str) -> Iterable[str]:
    """What other systems call it, first in the section where it was written, then where it lives."""
    spelt = nearest(leaf, list(SYNONYMS), 0.88)
    if not spelt:
        return
    meant = SYNONYMS[spelt[0]]
    top, _, below = meant.partition(".")
    if parent and below and parent.split(".")[0] != top:
        yield f"{parent.split('.')[0]}.{below}"
        yield f"{parent}.{meant.rpartition('.')[2]}"
    yield meant


def _closeness(left: str, right: str) -> float:
    """1 for the same section, less the further two sections are apart."""
    if left == right:
        return 1.0
    a, b = left.split("."), right.split(".")
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    if shared:
        return shared / max(len(a), len(b))
    return 0.5 * similarity(left, right)


def did_you_mean(path: str, names: Iterable[str]) -> str:
    """`; did you mean actor.optimizer.lr (short: actor.lr)?`, or nothing."""
    meant = suggest(path, names)
    if meant is None:
        return ""
    short = next((alias for alias, real in ALIASES.items() if real == meant), None)
    return f"; did you mean {meant}" + (f" (short: {short})" if short else "") + "?"
