"""What files get of an episode holds no secret: an agent's messages may quote what its tools were given."""

import asyncio
from typing import Any

import pytest

from areal_like.rollout.episodes.episode import WorkerTools
from areal_like.rollout.episodes.runner import EpisodeRunner
from areal_like.rollout.trajectory import Trajectory
from tests.support.episode_parts import prepared
from tests.support.ring_parts import lease

KEY = "planted-0-service"
NOTHING: Any = None


class Quotes:
    async def run(self, episode: Any, row: Any) -> list[Trajectory]:
        ids = prepared()[0].encode("12+34=046", special=False)
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"text": f"401 for {KEY}"}]},
            {"role": "assistant", "content": KEY},
        ]
        arrays: dict[str, Any] = {
            "token_ids": ids,
            "logprobs": [0.0] * len(ids),
            "versions": [-1] * 6 + [0] * 3,
            "loss_mask": [0] * 6 + [1] * 3,
        }
        return [Trajectory(**arrays, reward=1.0, messages=messages, text=f"046 {KEY}")]


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_messages_and_texts_that_are_kept_hold_no_secret(monkeypatch: pytest.MonkeyPatch, purpose: str) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", KEY)
    tokenizer, datasets = prepared()
    tools = WorkerTools(tokenizer, NOTHING, NOTHING, False, False, 0.5, keeps_messages=True)
    given = lease(0, "nowhere", n=1, purpose=purpose, split="valid")
    header = asyncio.run(EpisodeRunner(tools, datasets, Quotes(), False).run(given)).header
    assert header["status"] == "done", header
    messages = header["facts"][0]["messages"]
    assert messages[0]["content"] == [{"text": "401 for <secret>"}] and messages[1]["content"] == "<secret>"
    if purpose == "eval":
        assert header["texts"]["answers"] == ["046 <secret>"] and header["texts"]["prompt"] == "12+34="
    else:
        assert header["facts"][0]["text"] == "046 <secret>"
    assert KEY not in str(header)
