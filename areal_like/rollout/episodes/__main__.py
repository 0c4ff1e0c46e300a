"""`python -m areal_like.rollout.episodes --run-dir DIR --index I`: an episodes worker of a run."""

from areal_like.process.entrypoint import end_process, run_process
from areal_like.rollout.episodes.main import main

if __name__ == "__main__":
    end_process(run_process(main))
