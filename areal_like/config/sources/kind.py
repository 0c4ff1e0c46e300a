"""Which kind of experiment a file is: said on the command line, or in its `defaults:`, or told by what it holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.config.dialects.areal import infer_experiment
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.sources.library import Library
from areal_like.config.sources.overrides import OverrideWord
from areal_like.config.sources.yaml_file import YamlFile


def experiment_kind(words: Sequence[OverrideWord], file: YamlFile, library: Library) -> str:
    """One of EXPERIMENTS; a name that is none of them is a problem of the group, found there."""
    said = [str(word.parsed.value()) for word in words if word.key == "experiment"]
    for item in file.defaults():
        for name, option in item.value.items() if isinstance(item.value, dict) else ():
            if name.split()[-1:] and name.split()[-1].lstrip("/") == "experiment":
                said.append(str(option.value))
    known = [name for name in said if name in EXPERIMENTS]
    return known[0] if known else infer_experiment(_body_with_bases(file, library, {file.path}))


def _body_with_bases(file: YamlFile, library: Library, seen: set[Path]) -> dict[str, Any]:
    """What a file holds, and below it what the files that it builds on hold."""
    merged: dict[str, Any] = {}
    for item in file.defaults():
        path = library.path_of(item.value.lstrip("/")) if isinstance(item.value, str) else None
        if path is not None and path not in seen:
            merged = _merge_sections(merged, _body_with_bases(library.read(path), library, {*seen, path}))
    return _merge_sections(merged, {name: node.plain() for name, node in file.body().items()})


def _merge_sections(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Section by section: a file that sets one key of a section leaves the others as they were."""
    both = [name for name in above if isinstance(above[name], dict) and isinstance(below.get(name), dict)]
    return {**below, **above, **{name: _merge_sections(below[name], above[name]) for name in both}}
