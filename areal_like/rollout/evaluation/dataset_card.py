"""The `README.md` of a dataset on the Hub that gets answers: its own header and text stay, but for `configs:`."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from areal_like.rollout.evaluation.answer_dataset import card

HEADER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
CONFIGS = "configs"


def merged_card(there: str, paths: Sequence[str]) -> str:
    """With the tables SUBSET/SPLIT.parquet, sorted, beside what the card names already. Raises ValueError."""
    new = "".join(f"{line}\n" for line in card(paths))
    found, own = HEADER.match(there), HEADER.match(new)
    assert own is not None, "a card of ours has a header"
    if found is None:
        return f"{own.group(0)}{there}" if there.strip() else new
    try:
        node, header = yaml.compose(found[1]), yaml.safe_load(found[1])
    except yaml.YAMLError as fault:
        raise ValueError(f"the header of the dataset's README.md is not YAML: {fault}") from fault
    before = (header or {}).get(CONFIGS) or [] if isinstance(header or {}, dict) else None
    if not isinstance(before, list):
        raise ValueError("the header of the dataset's README.md is no mapping with a list of configs")
    configs = yaml.safe_dump(
        {CONFIGS: _merged(before, yaml.safe_load(own[1])[CONFIGS])}, sort_keys=False, allow_unicode=True
    )
    begin = end = len(found[1])
    for key, value in node.value if node is not None else ():
        if key.value == CONFIGS:
            begin, end = key.start_mark.index, value.end_mark.index
    begin, end = begin + found.start(1), end + found.start(1)
    return there[:begin] + configs + there[end:].removeprefix("\n")


def _merged(before: list[Any], new: list[dict[str, Any]]) -> list[Any]:
    """Subsets of other names stay, as do those that name their files in another way; so do splits of other names."""
    merged = list(before)
    for subset in new:
        place = next((at for at, each in enumerate(merged) if _name(each) == subset["config_name"]), None)
        if place is None:
            merged.append(subset)
            continue
        files = merged[place].get("data_files")
        if isinstance(files, list) and all(isinstance(each, dict) for each in files):
            splits = {each.get("split"): each for each in (*files, *subset["data_files"])}
            merged[place] = {**merged[place], "data_files": list(splits.values())}
    return merged


def _name(config: Any) -> Any:
    return config.get("config_name") if isinstance(config, dict) else None
