"""`python -m areal_like.rollout.controller --run-dir DIR`: the controller process of a run."""

import asyncio
import signal

from areal_like.discovery import announce, open_name_store
from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.http import HttpClient, application, run_async, serve
from areal_like.process.identity import CallGuard, Identity, token
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.rollout.controller.controller import Controller
from areal_like.rollout.controller.routes import Routes


def main(run: Run, me: Identity) -> None:
    run_async(_main(run, me))


async def _main(run: Run, me: Identity) -> None:
    guard = CallGuard(token(), me.attempt)
    with open_name_store(run, me) as names:
        async with HttpClient(me, token()) as http:
            controller = Controller(run, me, names, http)
            guard.on_new_attempt = controller.superseded
            app = application(guard)
            app.add_routes(Routes(controller).table())
            served = await serve(app, run.host)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, controller.stop, "stopped as asked")
            try:
                waiting = NamedWait(f"the name {me.name}", run.config.rollout.setup_timeout, "rollout.setup_timeout")
                await asyncio.to_thread(announce, names, me, served.address, waiting)
                await controller.run_until_over()
            finally:
                await served.close()  # first, because calls that still come in are recorded
                await controller.close()


if __name__ == "__main__":
    end_process(run_process(main))
