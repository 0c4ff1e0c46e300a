"""A trainer that shares a GPU uses it only when the server is ready: that one measures at its start what is free. It
then takes no more than its share, where the server needs the rest for new weights."""

import logging
import os

import torch

from areal_like.discovery import open_name_store
from areal_like.process.identity import GPU_SHARE, SERVER, START_AFTER, Identity
from areal_like.process.patience import PATIENCE_KEY, patience_s
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait

log = logging.getLogger(__name__)


def wait_for_server(run: Run, me: Identity) -> None:
    """Returns at once where the plan names no process to wait for. An entry of an earlier attempt counts: a server
    outlives a recovery of the trainer."""
    name = os.environ.get(START_AFTER)
    if not name:
        return
    limit_s = patience_s(run.config, SERVER)
    waiting = NamedWait(f"{name}, which shares its GPU and takes its memory first", limit_s, PATIENCE_KEY)
    entries: dict[str, str] = {}
    with open_name_store(run, me) as names:
        while name not in entries:
            entries = names.watch(name, entries, waiting)
    log.info("%s is ready: the memory that it left is this process's", name)
    if share := os.environ.get(GPU_SHARE):
        torch.cuda.set_per_process_memory_fraction(float(share))
