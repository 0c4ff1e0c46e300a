"""The built-in reward `model`: the score of a reward model for an answer."""

import os
from typing import Any


class ModelReward:
    """`path` is the folder of the reward model. The launcher starts a server for it."""

    def __init__(self, path: str) -> None:
        # Imported here: the processes of other rewards need none of this.
        from areal_like.data.row_tokenizer import RowTokenizer
        from areal_like.data.tokenizer import TextTokenizer
        from areal_like.discovery import open_name_store
        from areal_like.models import model_folder
        from areal_like.process.identity import REWARD, RUN_DIR, identity, token
        from areal_like.process.patience import patience_s
        from areal_like.process.run import open_run
        from areal_like.rollout.episodes.rewards.score_client import ScoreClient

        run, me = open_run(os.environ[RUN_DIR]), identity()
        config = run.config
        self._examples = RowTokenizer(TextTokenizer(model_folder(path, run.cwd)), "sft")
        limits = patience_s(config, REWARD), config.reward.timeout_s
        self._client = ScoreClient(open_name_store(run, me), me, token(), *limits)

    async def __call__(self, prompt: Any, completion: str, tools: Any = None) -> float:
        """Scores what it was trained on: the prompt, the answer and the end token, by its own tokenizer."""
        row = {"prompt": prompt, "answer": completion, "tools": tools}
        return await self._client.score(self._examples.tokens([row]).token_ids.tolist())
