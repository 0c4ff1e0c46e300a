"""python -m areal_like.rollout.controller --run-dir DIR"""

import sys

from areal_like.process.entrypoint import run_process
from areal_like.rollout.controller.controller import main

if __name__ == "__main__":
    sys.exit(run_process(main))
