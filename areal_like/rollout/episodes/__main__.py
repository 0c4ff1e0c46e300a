"""`python -m areal_like.rollout.episodes --run-dir DIR --index I`: an episodes worker of a run."""

import sys

from areal_like.process.entrypoint import run_process
from areal_like.rollout.episodes.main import main

if __name__ == "__main__":
    sys.exit(run_process(main))
