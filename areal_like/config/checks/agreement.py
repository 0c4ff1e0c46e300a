"""Rules about several keys together: repeated values are equal, bounds are in order, settings fit each other.

A rule reads the resolved values and yields problems; the message begins with the key that a user would change. The
plan checks what depends on this machine.
"""

from collections.abc import Callable, Iterator
from typing import Any

from areal_like.config.checks.built_in_code import loss_parameters
from areal_like.config.engines import engines
from areal_like.config.experiment import RWConfig
from areal_like.config.problems import Problem
from areal_like.config.schema import Schema
from areal_like.config.sections.data import ROW_LISTS, paths_of
from areal_like.config.sections.generation import MAX_STOP_LENGTH, MAX_STOP_TEXTS, MAX_STOP_TOKENS, MIN_TEMPERATURE
from areal_like.config.suggest import nearest

ValueGetter = Callable[[str], Any]

GROUP_SIZES = ("actor.group_size", "actor.reward_norm.group_size", "actor.adv_norm.group_size")
ROW_FIELDS: dict[str, tuple[str, ...]] = {
    "sft": ("prompt", "answer", "messages", "tools"),
    "rw": ("prompt", "chosen", "rejected", "tools"),
}
"""Columns of a row, by the type of its dataset. Those of `rl` depend on the reward."""
SAMPLING_SECTIONS = ("gconfig", "evaluator.gconfig")
"""Sections with sampling keys."""


def group_sizes(get: ValueGetter, own_class: bool) -> Iterator[Problem]:
    """A user's workflow may return groups of another size, also with a user's class (`own_class`); the built-in ones
    return n_samples."""
    workflow = get("workflow.name")
    if own_class or (workflow is not None and ":" in workflow):
        return
    n_samples = get("gconfig.n_samples")
    for copy in GROUP_SIZES:
        size = get(copy)
        if size is not None and n_samples is not None and size != n_samples:
            message = f"is {size}, but gconfig.n_samples is {n_samples}; they must agree: leave {copy} out"
            yield Problem(copy, message, also=("gconfig.n_samples",))


def served_models(get: ValueGetter) -> Iterator[Problem]:
    path = get("actor.path")
    backend = str(get("rollout.backend") or "auto").replace(".", ":").partition(":")[0].strip()
    allocation = str(get("allocation_mode") or "")
    for keys in engines():
        engine, key = keys.name, keys.model_key
        served = get(key)
        open_choice = backend in ("auto", "") and allocation in ("auto", "heuristic", "")
        used = backend == engine or open_choice or (backend in ("auto", "") and allocation.startswith(engine))
        if path and served and used and served != path:
            message = f"is {served!r}, but actor.path is {path!r}; the servers must serve the model that is trained"
            yield Problem(key, f"{message}: leave {key} out", also=("actor.path",))


def lengths(get: ValueGetter) -> Iterator[Problem]:
    low, high, total = get("gconfig.min_new_tokens"), get("gconfig.max_new_tokens"), get("gconfig.max_tokens")
    if low is not None and high is not None and low > high:
        yield Problem(
            "gconfig.min_new_tokens", f"is {low}, above gconfig.max_new_tokens={high}", also=("gconfig.max_new_tokens",)
        )
    if high is not None and total is not None and high > total:
        message = f"is {high}, above gconfig.max_tokens={total}, which bounds prompt and completion together"
        yield Problem("gconfig.max_new_tokens", message, also=("gconfig.max_tokens",))


def temperatures(get: ValueGetter) -> Iterator[Problem]:
    """Logits divided by a smaller temperature overflow."""
    for section in SAMPLING_SECTIONS:
        if problem := short_temperature(section, get(f"{section}.temperature")):
            yield problem


def short_temperature(section: str, temperature: float | None) -> Problem | None:
    if temperature is None or not 0 < temperature < MIN_TEMPERATURE:
        return None
    greedy = "" if section == "gconfig" else "0 (greedy), or "  # actor.temperature follows gconfig's: above 0
    return Problem(f"{section}.temperature", f"is {temperature:g}; use {greedy}at least {MIN_TEMPERATURE}")


def stops(get: ValueGetter) -> Iterator[Problem]:
    """Limits of the servers."""
    for section in SAMPLING_SECTIONS:
        texts, tokens = get(f"{section}.stop") or [], get(f"{section}.stop_token_ids") or []
        if len(texts) > MAX_STOP_TEXTS:
            yield Problem(
                f"{section}.stop", f"has {len(texts)} texts; servers support at most {MAX_STOP_TEXTS}: remove some"
            )
        longest = max(map(len, texts), default=0)
        if longest > MAX_STOP_LENGTH:
            message = f"has a text of {longest} characters; servers support at most {MAX_STOP_LENGTH}: shorten it"
            yield Problem(f"{section}.stop", message)
        if "" in texts:
            yield Problem(f"{section}.stop", "has an empty text, which would end every answer at once: remove it")
        if len(tokens) > MAX_STOP_TOKENS:
            message = f"has {len(tokens)} token ids; servers support at most {MAX_STOP_TOKENS}: remove some"
            yield Problem(f"{section}.stop_token_ids", message)


def clipping(get: ValueGetter) -> Iterator[Problem]:
    """Of a loss that reads them; with another one they have no effect."""
    reads = loss_parameters(get("actor.loss") or "")
    lower, higher = get("actor.eps_clip"), get("actor.eps_clip_higher")
    if "eps_clip_higher" in reads and lower is not None and higher is not None and higher < lower:
        yield Problem(
            "actor.eps_clip_higher",
            f"is {higher}, below actor.eps_clip={lower}; raise it, or leave it out",
            also=("actor.eps_clip",),
        )
    low, high = get("actor.ratio.mask_low"), get("actor.ratio.mask_high")
    if "ratio" in reads and low is not None and high is not None and low >= high:
        yield Problem(
            "actor.ratio.mask_low", f"is {low}, not below actor.ratio.mask_high={high}", also=("actor.ratio.mask_high",)
        )
    floor, cap = get("actor.behav_imp_weight_floor"), get("actor.behav_imp_weight_cap")
    if "behav_imp_weight_cap" in reads and floor is not None and cap is not None and floor >= cap:
        message = f"is {floor}, not below actor.behav_imp_weight_cap={cap}"
        yield Problem("actor.behav_imp_weight_floor", message, also=("actor.behav_imp_weight_cap",))


def overlong(get: ValueGetter) -> Iterator[Problem]:
    if not get("actor.overlong_reward_penalty"):
        return
    tokens, longest = get("actor.overlong_tokens"), get("actor.max_new_tokens")
    if tokens is not None and longest is not None and tokens > longest:
        message = f"is {tokens}, above actor.max_new_tokens={longest}: every completion would be overlong"
        yield Problem("actor.overlong_tokens", message, also=("actor.max_new_tokens",))


def curriculum(get: ValueGetter) -> Iterator[Problem]:
    for low, high in (
        ("curriculum.hard_border", "curriculum.easy_border"),
        ("curriculum.min_reward", "curriculum.max_reward"),
        ("curriculum.hard_threshold", "curriculum.easy_threshold"),
    ):
        below, above = get(low), get(high)
        if below is not None and above is not None and below > above:
            yield Problem(low, f"is {below}, above {high}={above}", also=(high,))
    sampler, kind = get("curriculum.sampler.name"), get("curriculum.type")
    if sampler is not None and kind not in (None, "none"):
        message = f"is {kind}, and curriculum.sampler.name={sampler} draws the rows; keep one of them"
        yield Problem("curriculum.type", message, also=("curriculum.sampler.name",))
    easy, hard = get("curriculum.easy_fraction"), get("curriculum.hard_fraction")
    if easy is not None and hard is not None and easy + hard > 1:
        yield Problem(
            "curriculum.easy_fraction",
            f"is {easy}, which with curriculum.hard_fraction={hard} is more than the whole batch",
            also=("curriculum.hard_fraction",),
        )


def fields(get: ValueGetter) -> Iterator[Problem]:
    """Each column is reported once: `valid_dataset` follows `train_dataset`."""
    reported: set[str] = set()
    for section in ("train_dataset", "valid_dataset"):
        known, columns = ROW_FIELDS.get(get(f"{section}.type"), ()), get(f"{section}.fields")
        if not known or not columns:
            continue
        for name in sorted(set(columns) - set(known) - reported):
            reported.add(name)
            guess = nearest(name, known)
            hint = f"; did you mean {guess[0]}?" if guess else "."
            yield Problem(
                f"{section}.fields.{name}", f"is not a column of such rows{hint} There are: {', '.join(known)}"
            )


def revisions(get: ValueGetter) -> Iterator[Problem]:
    """A list has one for each path."""
    items = [f"{place}.{index}" for place in ROW_LISTS for index in range(len(get(place) or ()))]
    for section in ("train_dataset", "valid_dataset", *items):
        path, listed = get(f"{section}.path"), get(f"{section}.revision")
        if isinstance(listed, list) and len(listed) != (num_paths := len(paths_of(path or ""))):
            message = f"has {len(listed)} revisions, and {section}.path has {num_paths}; give one for each path"
            yield Problem(f"{section}.revision", message, also=(f"{section}.path",))


def schedule(get: ValueGetter) -> Iterator[Problem]:
    steps = get("total_train_steps")
    for engine in ("actor", "critic", "model"):
        warm, decay = get(f"{engine}.optimizer.warmup_steps"), get(f"{engine}.optimizer.decay_steps")
        for name, value in (("warmup_steps", warm), ("decay_steps", decay)):
            if steps and value is not None and value > steps:
                yield Problem(
                    f"{engine}.optimizer.{name}",
                    f"is {value}, more than total_train_steps={steps}",
                    also=("total_train_steps",),
                )


def padding(get: ValueGetter) -> Iterator[Problem]:
    for engine in ("actor", "ref", "critic", "model"):
        if engine == "ref" and not get("actor.kl_ctl"):
            continue  # it is not loaded
        limit = get(f"{engine}.mb_spec.max_tokens_per_mb")
        if get(f"{engine}.pad_to_maximum") and limit in (None, "auto"):
            yield Problem(
                f"{engine}.mb_spec.max_tokens_per_mb",
                f"is {limit or 'null'}, but {engine}.pad_to_maximum pads to it; set it, or turn the padding off",
                also=(f"{engine}.pad_to_maximum",),
            )


def variables(get: ValueGetter) -> Iterator[Problem]:
    for name in get("launcher.env") or {}:
        if not (name.isascii() and name.isidentifier()):
            yield Problem(
                f"launcher.env.{name}", "is not a name of an environment variable; use letters, digits and `_`"
            )


def resume(get: ValueGetter) -> Iterator[Problem]:
    if get("resume_step") is not None and get("resume") is None:
        yield Problem("resume_step", "names a step, but resume names no run; set resume=RUN", also=("resume",))


def heads(get: ValueGetter, schema: Schema) -> Iterator[Problem]:
    """A policy needs an output head, a value model and a reward model a value head."""
    is_reward_model = issubclass(schema.cls, RWConfig)
    for engine in ("actor", "ref", "model"):
        if get(f"{engine}.is_critic") and not is_reward_model:
            yield Problem(
                f"{engine}.is_critic", "is true, but a model with a value head generates no tokens; leave it out"
            )
    for engine, what in (("critic", "a value model"), ("model", "a reward model")):
        if (engine == "critic" or is_reward_model) and get(f"{engine}.is_critic") is False:
            yield Problem(f"{engine}.is_critic", f"is false, but {what} needs a value head; leave it out")


def lora(get: ValueGetter) -> Iterator[Problem]:
    for engine in ("actor", "critic", "model"):
        if get(f"{engine}.weight_update_mode") == "adapter":
            if not get(f"{engine}.use_lora"):
                yield Problem(
                    f"{engine}.weight_update_mode",
                    f"sends an adapter, but {engine}.use_lora is false; turn it on, or choose disk or collective",
                    also=(f"{engine}.use_lora",),
                )
            elif get(f"{engine}.lora_modules_to_save"):
                yield Problem(
                    f"{engine}.weight_update_mode",
                    "sends only the adapter, which cannot contain "
                    f"{engine}.lora_modules_to_save; choose disk or collective",
                    also=(f"{engine}.lora_modules_to_save",),
                )
            elif get(f"{engine}.init_from_scratch"):
                yield Problem(
                    f"{engine}.weight_update_mode",
                    "sends only the adapter, and servers cannot create a model with random weights "
                    f"({engine}.init_from_scratch); choose disk or collective",
                    also=(f"{engine}.init_from_scratch",),
                )


def separate_adapter(get: ValueGetter) -> Iterator[Problem]:
    trained = [engine for engine in ("actor", "critic", "model") if get(f"{engine}.path") is not None]
    if get("weights.save_adapter_separately") and not any(get(f"{engine}.use_lora") for engine in trained):
        keys = [f"{engine}.use_lora" for engine in trained]
        yield Problem(
            "weights.save_adapter_separately", f"is true, but there is no adapter; set {keys[0]}=true", also=(*keys,)
        )
