"""Publishes weights to the servers: all ranks gather them, the first one sends them with a probe for verification."""

import math
import time

import numpy as np
import torch

from areal_like.models import model_folder
from areal_like.process.errors import FinalFailure
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.training.background_publication import KEY, BackgroundPublication
from areal_like.training.controller_client import TrainerControllerClient
from areal_like.training.engine import TrainEngine
from areal_like.training.probe_prompt import probe_tokens
from areal_like.training.rank_vote import RankVote
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.transports import open_transport
from areal_like.weights.hub_names import HubNames
from areal_like.weights.probe import PROBE_TOKENS, Probe, precision


class NoPublisher:
    """Of a run without servers."""

    reason = "nothing: there are no servers"

    def publish(self, version: int) -> None:
        pass

    def check(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self, early: bool) -> None:
        pass


class WeightPublisher:
    def __init__(self, run: Run, engine: TrainEngine, controller: TrainerControllerClient) -> None:
        self._engine, self._controller = engine, controller
        self._ownership, start = Ownership.of_process(run), run.start_point()
        self._transport = open_transport(run, engine, controller, self._ownership.require)
        self._base = start.step if start.checkpoint is None else None  # the version that is not trained
        self._limit_s = run.config.rollout.request_timeout
        self._background = BackgroundPublication(self._limit_s)
        self._ranks = RankVote(engine.world, engine.config.dist_timeout_s, "actor.dist_timeout_s")
        self._names = HubNames(engine.model)
        named = run.config.tokenizer_path
        tokenizer = model_folder(named, run.cwd) if named else engine.folder
        longest = getattr(engine.model.config.get_text_config(), "max_position_embeddings", PROBE_TOKENS + 2)
        data = controller.data_tokens()
        self._tokens = probe_tokens(run.config, data, tokenizer, engine.vocab_size, longest)
        self._dtype = precision(engine.config.dtype, on_gpu=engine.world.device.type != "cpu")

    @property
    def reason(self) -> str:
        return self._transport.reason

    def publish(self, version: int) -> None:
        """All ranks must call it; the first one copies the weights. They may be written, and the controller may be
        notified, during the next step."""
        self._wait_for_write()
        began = time.monotonic()
        micro = micro_batch_of(self._tokens, self._engine.world.device)
        logprobs = self._engine.logprobs([micro], temperature=1.0)[0]
        tensors = self._engine.export_weights(adapter_only=self._transport.takes_adapter)
        if not self._transport.takes_adapter:
            tensors = self._names.rename(tensors)
        if not self._engine.world.is_first:
            for _ in tensors:  # gathering is collective
                pass
            return
        values = logprobs.float().tolist()
        if not all(map(math.isfinite, values)):
            raise self._not_finite(version)
        self._ownership.require()
        probe = Probe(self._tokens, values, self._dtype)
        self._background.wait()
        complete = self._transport.publish(version, tensors, probe)

        def announce() -> None:
            publication = complete()
            age_ms = int(1000 * (time.monotonic() - began))
            self._transport.keep(self._controller.publish({**publication, "age_ms": age_ms}))

        if self._transport.completes_in_background:
            self._background.start(version, announce)
        else:
            announce()

    def _not_finite(self, version: int) -> FinalFailure:
        """Training is not the reason where nothing was trained yet."""
        what = f"the model computes log-probabilities that are not finite with weights v{version}"
        if version != self._base:
            hint = "it diverged; lower it, and resume from an earlier step (resume_step)"
            return FinalFailure(f"actor.optimizer.lr: {what}: {hint}")
        hint = "check the model's files, and try another dtype (bfloat16, float32) or attn_impl (sdpa)"
        return FinalFailure(f"actor.path, actor.dtype, actor.attn_impl: {what}, before anything was trained: {hint}")

    def _wait_for_write(self) -> None:
        """The first rank may still write the version before."""
        if self._ranks.size > 1:
            what = "the weights before to be published"
            self._ranks.wait_for(self._background.is_done, what, NamedWait(what, self._limit_s, KEY).check)

    def check(self) -> None:
        """Raises the error with which the last publication failed, as soon as it is known."""
        self._background.check()

    def wait(self) -> None:
        """Until the controller knows the last publication."""
        self._background.wait()

    def close(self, early: bool) -> None:
        """Called after the trainer's last request."""
        self._transport.close(early)


def micro_batch_of(token_ids: list[int], device: torch.device) -> MicroBatch:
    """Each token but the first is predicted."""
    count, ids = len(token_ids), np.array(token_ids, np.int32)
    return Sequences(ids, np.ones(count, np.uint8), np.array([count])).micro_batch([0], device)
