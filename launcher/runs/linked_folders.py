"""Links from the run directory to folders that the configuration puts elsewhere (`saver.fileroot`, ...)."""

import shutil
from pathlib import Path

from areal_like.process.run import Run
from areal_like.process.run_links import LINKS, link_target, make_free_folder, other_roots


def create_links(run: Run) -> tuple[str, ...]:
    """At the first start: creates `<fileroot>/<experiment>/<trial>/<name>` and the link to it. Returns messages for the
    user."""
    config, folders = run.config, dict[Path, Path]()
    messages = []
    for section, root in other_roots(config, run.cwd).items():
        link = run.directory / LINKS[section]
        if link.is_symlink():
            continue  # of a start that failed
        if root not in folders:
            folders[root] = make_free_folder(root / config.experiment_name / config.trial_name)
        target = make_free_folder(folders[root] / LINKS[section])
        link.symlink_to(target)
        messages.append(f"{section}.fileroot: {LINKS[section]} -> {target}")
    return tuple(messages)


def remove_linked_folders(directory: Path) -> None:
    """Removes the folders that the links of a run lead to, and the trial's folder there."""
    for name in LINKS.values():
        target = link_target(directory, name)
        if target is not None and target.is_dir():
            shutil.rmtree(target)
            if not any(target.parent.iterdir()):
                target.parent.rmdir()
