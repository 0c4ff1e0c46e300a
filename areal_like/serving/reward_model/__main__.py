"""Process of a run's reward model: `python -m areal_like.serving.reward_model --run-dir DIR --index 0`.

The model never changes, so checkpoints do not hold it, and a server that dies is simply replaced.
"""

import asyncio
import logging
import os
import signal
import time

from areal_like.config.sections.reward import reward_model
from areal_like.discovery import announce, open_name_store
from areal_like.models import model_folder
from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.errors import Failure
from areal_like.process.http import run_async, serve
from areal_like.process.identity import CallGuard, Identity, token
from areal_like.process.run import Run

log = logging.getLogger(__name__)


def main(run: Run, me: Identity) -> None:
    began = time.perf_counter()
    import torch

    from areal_like.serving.reward_model.scorer import load_scorer
    from areal_like.serving.reward_model.server import RewardModelServer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = reward_model(run.config.reward)
    assert model is not None, "the plan has no such process without a reward model"
    path = model.args["path"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        scorer = load_scorer(model_folder(path, run.cwd), device)
    except (ValueError, OSError) as fault:
        raise Failure(f"{model.section}.args.path: {fault}") from fault
    log.info("%s loaded in %.1f s", path, time.perf_counter() - began)

    async def serve_until_ended() -> None:
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        server = RewardModelServer(scorer, CallGuard(token(), me.attempt), run.run_id, path)
        served = await serve(server.application(), run.host)
        with open_name_store(run, me) as names:
            announce(names, me, served.address)
            log.info("ready at %s", served.address)
            await ends.wait()
        await served.close()

    run_async(serve_until_ended())


if __name__ == "__main__":
    end_process(run_process(main))
