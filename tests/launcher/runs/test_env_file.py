"""Environment variables from files."""

import pytest

from areal_like.config.problems import ConfigError
from launcher.runs.env_file import read_env_files


def test_variables_are_read_from_env_files(tmp_path):
    (tmp_path / "a.env").write_text("# keys\nHF_TOKEN=abc\nexport NAME = 'x y'\n\nURL=http://a/b#c # mine\n")
    (tmp_path / "b.env").write_text('HF_TOKEN="def"\n')
    assert read_env_files(["a.env", "b.env"], tmp_path) == {"HF_TOKEN": "def", "NAME": "x y", "URL": "http://a/b#c"}


def test_an_invalid_line_is_named_by_its_number_and_not_shown(tmp_path):
    (tmp_path / "a.env").write_text("A=1\nsk-secretsecret\n")
    with pytest.raises(ConfigError) as caught:
        read_env_files(["a.env"], tmp_path)
    assert "a.env:2" in caught.value.text()
    assert "secretsecret" not in caught.value.text()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"A=\xff\xfe"), "is not UTF-8 text"),
    ],
    ids=["folder", "bytes"],
)
def test_a_file_of_variables_that_cannot_be_read_is_named_with_its_key(tmp_path, make, message):
    make(tmp_path / "a.env")
    with pytest.raises(ConfigError) as caught:
        read_env_files(["a.env"], tmp_path)
    assert caught.value.text().startswith("launcher.env_file: a.env ") and message in caught.value.text()
