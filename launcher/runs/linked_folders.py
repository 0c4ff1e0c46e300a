"""Parts of a run that its configuration puts below another folder: made at its first start."""

import shutil
from pathlib import Path

from areal_like.process.run import Run
from areal_like.process.run_links import LINKS, link_target, make_free_folder, other_roots


def create_links(run: Run) -> tuple[str, ...]:
    """For a run that begins: `<fileroot>/<experiment>/<trial>/<name>` for each part, where that is free, and the link
    that leads there. Returns what to tell."""
    config, made = run.config, dict[Path, Path]()
    told = []
    for section, root in other_roots(config, run.cwd).items():
        link = run.directory / LINKS[section]
        if link.is_symlink():
            continue  # of a start that came no further
        if root not in made:
            made[root] = make_free_folder(root / config.experiment_name / config.trial_name)
        target = make_free_folder(made[root] / LINKS[section])
        link.symlink_to(target)
        told.append(f"{section}.fileroot: {LINKS[section]} -> {target}")
    return tuple(told)


def remove_linked_folders(directory: Path) -> None:
    """What the links of a run lead to, and the folder of its trial there."""
    for name in LINKS.values():
        target = link_target(directory, name)
        if target is not None and target.is_dir():
            shutil.rmtree(target)
            if not any(target.parent.iterdir()):
                target.parent.rmdir()
