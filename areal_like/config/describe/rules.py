"""What the rules of a key say, as a sentence for help and documents."""

from areal_like.config.checks.key_rules import followed_key
from areal_like.config.fields import KeyRule
from areal_like.config.problems import Stage
from areal_like.config.schema import Key, Section, declarations

KINDS = {
    ("sft", "reward_model"): "in supervised training",
    ("reward_model",): "of a reward model",
    ("grpo",): "in reinforcement learning",
    ("grpo", "reward_model"): "in reinforcement learning and of a reward model",
}


def rule_text(rule: KeyRule, entry: Key | Section) -> str:
    """One sentence for help and documents."""
    if rule.stage is Stage.INVALID:
        fact = followed_key(entry) if isinstance(entry, Key) else ""
        return f"Another value than that of `{fact}` is refused." if fact else "Another value is refused."
    where = f" {kinds_text(rule)}" if rule.kinds else ""
    if rule.stage is Stage.CANNOT_START:
        return f"A start{where} refuses {_refused_values(rule, entry)}: {rule.reason.replace('{}', 'it')}."
    if not rule.unless:
        return f"No effect{where}: {rule.reason}."
    return f"No effect{where} unless `{rule.unless}` {_needed(rule, entry)}."


def kinds_text(rule: KeyRule) -> str:
    return KINDS.get(rule.kinds, f"in {' and '.join(rule.kinds)}")


def _refused_values(rule: KeyRule, entry: Key | Section) -> str:
    choices = entry.choices if isinstance(entry, Key) else None
    default = entry.default if isinstance(entry, Key) else None
    if choices:
        return ", ".join(f"`{each}`" for each in choices if each != default and each not in rule.allowed)
    if isinstance(default, bool):
        return f"`{str(not default).lower()}`"
    return "other values than the default" if isinstance(entry, Key) or not entry.default_null else "it"


def _needed(rule: KeyRule, entry: Key | Section) -> str:
    if rule.unless_is:
        return "is " + " or ".join(f"`{each}`" for each in rule.unless_is)
    declared = declarations(entry.owner).get(rule.unless) if entry.owner is not None else None
    kind = declared[0].name if declared is not None else ""
    return {"bool": "is true", "list": "is not empty", "int": "is above 0", "float": "is above 0"}.get(kind, "is set")
