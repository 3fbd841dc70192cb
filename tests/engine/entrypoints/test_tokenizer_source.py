from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.entrypoints.assembly import open_files
from engine.entrypoints.options import ServerOptions
from engine.runner.weights.errors import ModelLoadError
from tests.engine.runner.small_models import make_reference, save_directory, save_gguf

FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(make_reference(), tmp_path_factory.mktemp("model"))


@pytest.fixture
def tokenizer(model: Path, tmp_path: Path) -> Path:
    """A directory with nothing but a tokenizer, whose template and BOS token differ from the model's."""
    for name in FILES:
        shutil.copy(model / name, tmp_path / name)
    settings = {"bos_token": "<|endoftext|>", "chat_template": "other", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_directory_brings_its_template_and_special_tokens_and_the_models_ends_stay(
    model: Path, tokenizer: Path
) -> None:
    own, other = (open_files(ServerOptions(model=str(model), tokenizer=place)) for place in (None, str(tokenizer)))
    assert (own.chat_template, own.add_bos) != (other.chat_template, other.add_bos) == ("other", True)
    assert other.special_tokens == {"bos_token": "<|endoftext|>"}
    assert (other.eos_token_ids, other.path, other.name) == (own.eos_token_ids, own.path, own.name)


def test_a_bare_file_changes_the_vocabulary_alone(model: Path, tokenizer: Path) -> None:
    document = json.loads((tokenizer / "tokenizer.json").read_text())
    document["truncation"] = None
    (tokenizer / "bare.json").write_text(json.dumps(document, indent=1))
    own = open_files(ServerOptions(model=str(model)))
    other = open_files(ServerOptions(model=str(model), tokenizer=str(tokenizer / "bare.json")))
    assert other.tokenizer_json == (tokenizer / "bare.json").read_text() != own.tokenizer_json
    assert (other.chat_template, other.special_tokens) == (own.chat_template, own.special_tokens)


def test_a_gguf_file_is_a_place_too(model: Path, tmp_path: Path) -> None:
    path = save_gguf(make_reference(), tmp_path / "small.gguf")
    files = open_files(ServerOptions(model=str(model), tokenizer=str(path)))
    assert files.path == model
    assert set(files.special_tokens) == {"bos_token", "eos_token"}


def test_a_template_file_wins_over_the_tokenizers(model: Path, tokenizer: Path) -> None:
    (tokenizer / "mine.jinja").write_text("mine")
    options = ServerOptions(model=str(model), tokenizer=str(tokenizer), chat_template=str(tokenizer / "mine.jinja"))
    assert open_files(options).chat_template == "mine"


def test_a_tokenizer_larger_than_the_model_is_refused(model: Path, tokenizer: Path) -> None:
    document = json.loads((tokenizer / "tokenizer.json").read_text())
    document["added_tokens"].append({**document["added_tokens"][0], "id": 160, "content": "<extra>"})
    (tokenizer / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ModelLoadError, match="IDs up to 160, the model only 160 tokens"):
        open_files(ServerOptions(model=str(model), tokenizer=str(tokenizer)))


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "no tokenizer at nowhere: give a"), ("broken.json", "holds no tokenizer")]
)
def test_a_place_without_a_tokenizer_is_refused_by_name(model: Path, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "broken.json").write_text("{}")
    place = str(tmp_path / name) if name.endswith(".json") else name
    with pytest.raises(ModelLoadError, match=message):
        open_files(ServerOptions(model=str(model), tokenizer=place))
