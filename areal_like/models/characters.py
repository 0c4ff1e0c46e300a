"""The character-level tokenizer of the built-in models."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PAD, EOS = "<pad>", "<eos>"
CHARACTERS = "0123456789+=-*/ abcdefghijklmnopqrstuvwxyz()[]<>.,:;?!'\"_#%&^|\n`\\{}~@$"
"""In the order of their token ids, which begin at 2."""


def write_tokenizer(folder: Path, vocab: int = 64) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, with the first characters that fit into `vocab`.

    A character without a token is an error when tokenizing: dropping or replacing it would silently change the prompt.
    """
    if not 3 <= vocab <= len(CHARACTERS) + 2:
        raise ValueError(f"vocab: {vocab} is not between 3 and {len(CHARACTERS) + 2}, the tokens that there are")
    tokens = [PAD, EOS, *CHARACTERS[: vocab - 2]]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS])
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer.json", json.loads(tokenizer.to_str()))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 64,
    }
    _write(folder / "tokenizer_config.json", described)


def _write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
