"""`--help`: usage, shipped experiments and groups, or the keys of a section."""

import re
import textwrap
from pathlib import Path

from areal_like.config.engines import default_engine, example_engine
from areal_like.config.names import ALIASES
from areal_like.config.sources.library import data_folder
from launcher.arguments import COMMANDS
from launcher.terminal import bold, width

PLANNED = "Planned"
"""First word of the comment of an option that can be planned but not started yet."""


def show_help(topic: str | bool, schema_class: str | None) -> int:
    """Prints the usage, or what a section, key or group means."""
    if topic is True:
        print(usage_text())
        return 0
    from areal_like.config.describe.help import help_text
    from areal_like.config.experiment import EXPERIMENTS
    from areal_like.config.schema import Schema

    classes = list(dict.fromkeys([EXPERIMENTS["grpo"], EXPERIMENTS["ppo"], *EXPERIMENTS.values()]))
    if schema_class:
        from areal_like.config.sources.user_schema import load_schema

        classes.insert(0, load_schema(schema_class))
    assert isinstance(topic, str)
    schemas = [Schema.of(cls) for cls in classes]
    options = group_lines(topic)
    if not options or topic in schemas[0].sections:
        print(help_text(topic, schemas, bold, width()))
    if options:
        print("\n".join(options))
    return 0


def usage_text() -> str:
    ours, other = default_engine().name, example_engine()
    lines = [
        bold("python -m launcher [COMMAND] [--config] NAME [key=value] [group=option] [flags]"),
        "",
        "Reinforcement learning of language models from one YAML file. Everything is checked before anything starts.",
        "",
        bold("Examples"),
        "  python -m launcher --config grpo.yaml actor.lr=1e-4 --dry-run",
        f"  python -m launcher --config mine.yaml rollout={other} actor=qwen3_0_6b gconfig.n_samples=16",
        "  python -m launcher resume=grpo-addition/r0001",
        "  python -m launcher eval grpo-addition/r0001",
        "  python -m launcher chat grpo-addition/r0001",
        f"  python -m launcher --config grpo.yaml rollout={other} serve",
        "  python -m launcher --config grpo.yaml try",
        f"  python -m launcher --config grpo.yaml --multirun actor.lr=1e-5,1e-4 rollout={ours},{other}",
        "",
        bold("Commands"),
        *(f"  {name:<22} {text}" for name, text in COMMANDS.items()),
        "",
        bold("Flags"),
        "  --config NAME          a path, a file here, or a shipped experiment, with or without .yaml (or NAME alone)",
        "  --dry-run[=full]       print the plan on one screen, or all of it (=json: as data); start nothing",
        "  --for gpus=8,cores=96,memory=1T[,gpu_memory=80G][,nodes=2]",
        "                         with --dry-run: plan for a machine with these resources, not for this one",
        "  --model-config FILE    with --dry-run: the model's config.json (or its folder), for sizes and memory",
        "  --multirun, -m         one run per point of the sweeps in the overrides (Hydra's syntax)",
        "  --explain KEY          a key's value, where it was set, and which values it replaced",
        "  --cfg[=SECTION]        the resolved configuration, as YAML that loads again",
        "  --help[=SECTION]       this text, or every key of a section: type, default, choices, meaning",
        "  --schema               JSON Schema of the files, for editors",
        "  --schema my.mod:Class  your own class, which extends an experiment by further keys",
        "  --reward NAME[,argument=value ...]",
        "                         with rewards: a reward to try, as often as there are rewards",
        "  --answers FILE         with try: JSON lines with prompt and completion, instead of a model's answers",
        "  --ngram N              with overlap: the number of words of an n-gram, 8 if left out",
        "  --replace              start from the beginning where the run directory exists; the old one is renamed",
        "  --version              the version",
        "",
        bold("Experiments"),
        *(
            f"  {path.name:<22} {first_sentence(comment_on_top(path))}"
            for path in sorted(data_folder("experiments").glob("*.yaml"))
        ),
        "",
        bold("Groups (group=option)"),
        *_groups(),
        "",
        bold("Short names"),
        *(f"  {short:<22} {real}" for short, real in ALIASES.items()),
        "",
        "Exit codes: 0 done, 1 failed, 2 wrong configuration, 130 interrupted, 75 stopped early: start it again (with",
        "recover.mode=auto and a trial_name= it continues; with recover.mode=disabled, the default, it starts over).",
    ]
    return "\n".join(lines)


def group_lines(group: str) -> list[str]:
    """The options of a shipped group, each with its comment; empty for an unknown group."""
    options = sorted((data_folder("conf") / group).glob("*.yaml")) if group.isidentifier() else []
    lines = []
    for path in options:
        name = f"{group}={path.stem}"
        text = wrapped(f"{name}  {comment_on_top(path)}")
        lines += [f"{bold(name)}{text[0].removeprefix(name)}", *text[1:]]
    return lines


def _groups() -> list[str]:
    groups = sorted(folder for folder in data_folder("conf").iterdir() if folder.is_dir())
    return [f"  {group.name:<22} {', '.join(map(_option, sorted(group.glob('*.yaml'))))}" for group in groups]


def _option(path: Path) -> str:
    return f"{path.stem} ({PLANNED.lower()})" if comment_on_top(path).startswith(PLANNED) else path.stem


def comment_on_top(path: Path) -> str:
    """The first paragraph of the comment at the top of a file."""
    lines = []
    with path.open(encoding="utf-8") as text:
        for line in text:
            if "@package" in line:
                continue
            if not line.startswith("# "):
                break
            lines.append(line.removeprefix("# ").strip())
    return " ".join(lines)


def first_sentence(text: str) -> str:
    """A sentence ends after a word of three letters or more, so not at `Dr. GRPO`."""
    return re.split(r"(?<=[a-z)]{3}\.)\s+(?=[A-Z])", text)[0]


def wrapped(text: str) -> list[str]:
    """Wraps text; names of options are not broken."""
    return textwrap.wrap(text, width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
