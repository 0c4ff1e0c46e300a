"""Tokenizers without transformers give the same results as with it; folders of models."""

import json
import shutil

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import built_in_models, model_folder
from areal_like.models.characters import CHARACTERS, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer(model_folder("builtin:tiny-addition"))


def test_every_character_is_a_token_and_decodes_to_itself(tokenizer):
    assert tokenizer.encode("12+34=") == [3, 4, 12, 5, 6, 13]
    assert tokenizer.encode(CHARACTERS[:62]) == list(range(2, 64))
    assert tokenizer.decode(tokenizer.encode(CHARACTERS[:62])) == CHARACTERS[:62]
    assert (tokenizer.eos_id, tokenizer.size) == (1, 64)
    assert tokenizer.decode([2, 6, 8, 1]) == "046"
    assert tokenizer.decode([2, 1], skip_special=False) == "0<eos>"
    assert tokenizer.decode_all([[2], [], [3, 4]]) == ["0", "", "12"]


def test_a_character_without_a_token_is_an_error_that_shows_the_text(tokenizer):
    with pytest.raises(ValueError, match=r"'what is Ä\?' cannot be tokenized by .*: it has no token for 'Ä'"):
        tokenizer.encode_all(["1+1=", "what is Ä?"])


def test_the_packaged_tokenizer_equals_the_builders_output(tmp_path):
    write_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_text() == (model_folder("builtin:tiny-addition") / name).read_text()


def test_transformers_reads_the_same_tokenizer(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tokenizer.folder)
    for text in ("12+34=", "a b: c, d's?", "00+07=007", CHARACTERS[:62]):
        ids = tokenizer.encode(text)
        assert theirs.encode(text) == ids
        assert theirs.decode(ids) == tokenizer.decode(ids) == text
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == (1, 0, None)


def test_the_packaged_model_is_small_and_has_the_tokenizers_ids():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(model_folder("builtin:tiny-addition"))
    assert (config.vocab_size, config.eos_token_id, config.pad_token_id) == (64, 1, 0)


@pytest.mark.parametrize("vocab", [2, len(CHARACTERS) + 3])
def test_an_invalid_vocabulary_is_refused(tmp_path, vocab):
    with pytest.raises(ValueError, match="vocab"):
        write_tokenizer(tmp_path, vocab)


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(tmp_path):
    folder = shutil.copytree(model_folder("builtin:tiny-addition"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(TextTokenizer(folder).encode("12+34=")) == 6


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer_path: .* has no tokenizer.json"):
        TextTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer_path: .*tokenizer.json is not a tokenizer"):
        TextTokenizer(tmp_path)


def test_an_unknown_built_in_model_lists_the_existing_ones():
    assert "tiny-addition" in built_in_models()
    with pytest.raises(
        ValueError, match=r"builtin:tiny-additon is not a built-in model.* There are: .*builtin:tiny-addition"
    ):
        model_folder("builtin:tiny-additon")


def test_a_relative_folder_is_resolved_from_the_working_directory(tmp_path):
    (tmp_path / "model").mkdir()
    assert model_folder("model", tmp_path) == (tmp_path / "model").resolve()
    with pytest.raises(ValueError, match="hf download other"):
        model_folder("other", tmp_path)


def test_a_name_on_the_hub_is_its_snapshot_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    for revision in ("aaa", "bbb", "ccc"):
        (repository / "snapshots" / revision).mkdir(parents=True)
    for revision in ("aaa", "bbb"):
        (repository / "snapshots" / revision / "config.json").write_text("{}")
    assert model_folder("org/name", tmp_path).name == "aaa"
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb\n")
    assert model_folder("org/name", tmp_path).name == "bbb"


def test_lengths_count_tokens_for_any_number_of_texts(tokenizer, monkeypatch):
    monkeypatch.setattr("areal_like.data.tokenizer.TEXTS_AT_ONCE", 2)
    texts = ["1+1=", "", "12+34=", "7", "046"]
    assert tokenizer.lengths(texts) == [len(ids) for ids in tokenizer.encode_all(texts)]
    assert tokenizer.lengths([]) == []
