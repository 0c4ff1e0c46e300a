"""Tokens per second of a training step, compared with transformers' Trainer: the same model, rows and updates."""

import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from areal_like.data.tasks.addition import Addition
from areal_like.training.sequences import Sequences
from tests.bench.training_packing import SHAPE, log_uniform, mean_of, sequences_of
from tests.support.training_runs import make_engine

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
TINY = Qwen3Config(**SHAPE, max_position_embeddings=512)
LR = 1e-4
FORGOTTEN = 1
"""First steps, not counted: they allocate memory and choose kernels."""


def measure(model: str, shape: PreTrainedConfig, lengths: list[int], steps: int) -> dict[str, Any]:
    """Each step is one update with sequences of all `lengths`; random weights."""
    sequences = sequences_of(lengths, shape.vocab_size)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name) / "model"
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(folder)
        taken = {
            "transformers.Trainer": trainer_steps(folder, sequences, steps, Path(name) / "out"),
            "areal_like": our_steps(folder, sequences, steps),
        }
    tokens = sum(lengths)
    rates = {who: tokens / median(result["seconds"]) for who, result in taken.items()}
    return {
        "model": model,
        "sequences": len(lengths),
        "tokens": tokens,
        "filled": tokens / (len(lengths) * max(lengths)),
        "tokens_per_s": rates,
        "times_faster": rates["areal_like"] / rates["transformers.Trainer"],
        "first_loss": {who: result["losses"][0] for who, result in taken.items()},
        "runs_s": {who: result["seconds"] for who, result in taken.items()},
    }


def addition_lengths(num: int) -> list[int]:
    """Lengths of rows of the addition task: prompt, answer and end token."""
    rows = Addition().rows("train")[:num]
    return [len(row["prompt"]) + len(row["answer"]) + 1 for row in rows]


def short_lengths(num: int) -> list[int]:
    return log_uniform(num, 16, 128)


def our_steps(folder: Path, sequences: Sequences, steps: int) -> dict[str, list[float]]:
    engine = make_engine(folder, lr=LR, gradient_clipping=1.0)
    losses, seconds = [], []
    for step in range(steps + FORGOTTEN):
        began = time.process_time()
        micros = engine.micro_batches(sequences, range(len(sequences)))
        losses.append(engine.step(step, engine.accumulate(micros, mean_of(sequences))).loss)
        seconds.append(time.process_time() - began)
    return {"losses": losses, "seconds": seconds[FORGOTTEN:]}


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.process_time() - self._began)


def trainer_steps(folder: Path, sequences: Sequences, steps: int, out: Path) -> dict[str, list[float]]:
    """Steps of transformers' Trainer, with padded rows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    spans = zip(sequences.starts_N, sequences.lengths_N, strict=True)
    rows = [torch.from_numpy(sequences.token_ids[start : start + length].astype("int64")) for start, length in spans]

    def collate(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in batch], batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row["input_ids"]) for row in batch], batch_first=True)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=len(rows),
        max_steps=steps + FORGOTTEN,
        learning_rate=LR,
        lr_scheduler_type="constant",
        logging_strategy="steps",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    clock = _Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=[{"input_ids": row} for row in rows],
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.remove_callback(next(kind for kind in trainer.callback_handler.callbacks if _prints(kind)))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "seconds": clock.seconds[FORGOTTEN:]}


def _prints(callback: TrainerCallback) -> bool:
    return type(callback).__name__ == "PrinterCallback"
