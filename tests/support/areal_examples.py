"""What AReaL's example files need to run here: a tiny chat model, and rows with the columns of their datasets."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
PAD, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_ROWS = 24


def write_chat_model(folder: Path, hidden_size: int = 32) -> Path:
    """A Qwen2 with random weights, a token per byte, and a chat template."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    tokens = {token: number for number, token in enumerate([PAD, END, START, *BYTES])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, END, START])
    shape = Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    Qwen2ForCausalLM(shape).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def gsm8k(number: int) -> dict[str, Any]:
    total = number * 3
    return {
        "question": f"Ann has {number} bags of 3 apples. How many?",
        "answer": f"{number} * 3 = {total}\n#### {total}",
    }


def boba(number: int) -> dict[str, Any]:
    prompt = f"<\uff5cUser\uff5c>What is {number} + 1?<\uff5cAssistant\uff5c><think>\n"
    return {"prompt": prompt, "solutions": [f"\\boxed{{{number + 1}}}"], "task": "math", "query_id": str(number)}


def hh_rlhf(number: int) -> dict[str, Any]:
    start = f"\n\nHuman: What is {number} + 1?\n\nAssistant: It is "
    return {"chosen": f"{start}{number + 1}.", "rejected": f"{start}{number}."}


def countdown(number: int) -> dict[str, Any]:
    numbers = [number % 9 + 1, 3, 4]
    query = f"<|im_start|>user\nMake {sum(numbers)} of {numbers}.<|im_end|>\n<|im_start|>assistant\n"
    return {"query": query, "target": sum(numbers), "numbers": numbers}


def torl(number: int) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"What is {number} * 3?"}]
    return {"prompt": prompt, "reward_model": {"ground_truth": str(number * 3), "style": "rule"}}


def lines(make: Any) -> str:
    return "".join(json.dumps(make(number)) + "\n" for number in range(1, NUM_ROWS + 1))
