"""A copy of the repository that ignores the key in the environment variable MUTATED_KEY: it always has its default.

Only the copy is changed. All processes that a test starts from the copy ignore the key, too.
"""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "MUTATED_KEY"
_RESET = '''


def reset_ignored(schema, values, resolved):
    """Replaces the value of the ignored key by its default, resolved if `resolved`. Resolved `auto` values stay."""
    path = os.environ.get("MUTATED_KEY", "")
    above, _, name = path.rpartition(".")
    key = schema.keys.get(path)
    for section in sections_at(values, above):
        if name not in section:
            continue
        if path in schema.sections and schema.sections[path].default_null:
            section[name] = None
        if key is None or key.constraints.required:
            continue
        default = key.default
        if resolved and default == "auto":
            continue
        reference = WHOLE.fullmatch(default) if resolved and isinstance(default, str) else None
        section[name] = value_at(values, reference[1]) if reference else default


def sections_at(values, path):
    """The sections at a dotted path, of which `[]` stands for all elements of a list."""
    before, is_list, after = path.partition("[]")
    found = value_at(values, before) if before else values
    if is_list:
        elements = found if isinstance(found, list) else []
        return [section for element in elements for section in sections_at(element, after.removeprefix("."))]
    return [found] if isinstance(found, dict) else []


_build_config = build_config


def build_config(cls, values):
    if any(issubclass(cls, root) for root in EXPERIMENTS.values()):
        import copy

        values = copy.deepcopy(values)
        reset_ignored(Schema.of(cls), values, resolved=True)
    return _build_config(cls, values)
'''
_COMPOSE = """

_compose = Composition._compose


def _compose_and_reset(self, root, overrides):
    from areal_like.config.loaded import reset_ignored

    raw, provenance = _compose(self, root, overrides)
    reset_ignored(self.schema, raw, resolved=False)
    return raw, provenance


Composition._compose = _compose_and_reset
"""
CHANGES = {"areal_like/config/loaded.py": _RESET, "areal_like/config/load.py": _COMPOSE}


def copy_repository(folder: Path) -> None:
    """Copies the working tree (tracked and untracked files, not ignored ones) and applies CHANGES."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for name, code in CHANGES.items():
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(code)
