"""Composes the same tree with plain Hydra, without our checks: the reference for the time of a dry run.

python plain_hydra.py FOLDER CONFIG [OVERRIDE ...]
"""

import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf


def compose(folder: Path, config: str, overrides: list[str]) -> Any:
    version = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
    with hydra.initialize_config_dir(str(folder), **version):
        return OmegaConf.to_container(hydra.compose(config, overrides))


if __name__ == "__main__":
    compose(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
