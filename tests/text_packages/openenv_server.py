"""A server of OpenEnv with a small game, for tests: guess a number below ten. It prints its port."""

import socket

import uvicorn  # type: ignore[import-not-found, unused-ignore]
from openenv.core.env_server import (  # type: ignore[import-not-found, unused-ignore]
    Action,
    Environment,
    Observation,
    State,
    create_fastapi_app,
)


class Guess(Action):
    message: str


class Hint(Observation):
    text: str


class Game(Environment[Guess, Hint, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: object) -> Hint:
        self.number, self.steps = (seed or 0) % 10, 0
        return Hint(text="guess:", done=False, reward=None)

    def step(self, action: Guess, timeout_s: float | None = None, **more: object) -> Hint:
        self.steps += 1
        is_right = action.message.strip() == str(self.number)
        return Hint(text=f" no {action.message},", done=is_right, reward=float(is_right))

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


if __name__ == "__main__":
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=4)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
