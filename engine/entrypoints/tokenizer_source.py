"""A tokenizer from another place than the model: a tokenizer.json, a directory, a GGUF file or a hub name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from engine.runner.weights.hf_directory import HfDirectory
from engine.runner.weights.model_files import ModelFiles, ModelLoadError, open_model


def with_tokenizer(files: ModelFiles, tokenizer: str, revision: str | None = None) -> ModelFiles:
    """`files` with vocabulary, special tokens and chat template of `tokenizer`; what ends a sequence stays the model's.

    A bare tokenizer.json leaves template and special tokens alone, too. Raises `ModelLoadError`, also when the
    tokenizer has IDs that the model does not know.
    """
    path = Path(tokenizer).expanduser()
    if path.suffix == ".json" and path.is_file():
        changed = replace(files, tokenizer_json=path.read_text("utf-8"))
    elif path.is_file():
        changed = _of_model(files, open_model(tokenizer))
    else:
        changed = _of_directory(files, HfDirectory(path if path.is_dir() else _download(tokenizer, revision)))
    _check_ids(changed, tokenizer)
    return changed


def _of_model(files: ModelFiles, other: ModelFiles) -> ModelFiles:
    return replace(
        files,
        tokenizer_json=other.tokenizer_json,
        chat_template=other.chat_template or files.chat_template,
        special_tokens=other.special_tokens,
        add_bos=other.add_bos,
    )


def _of_directory(files: ModelFiles, directory: HfDirectory) -> ModelFiles:
    return replace(
        files,
        tokenizer_json=directory.tokenizer_json,
        chat_template=directory.chat_template() or files.chat_template,
        special_tokens=directory.special_tokens(),
        add_bos=directory.adds_bos(),
    )


def _download(name: str, revision: str | None) -> Path:
    if "/" not in name:
        raise ModelLoadError(
            f"there is no tokenizer at {name}: give a tokenizer.json, a Hugging Face directory, a GGUF file or a hub "
            "name (owner/model)"
        )
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=["*.json", "*.jinja"]))
    except Exception as problem:
        first_line = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise ModelLoadError(
            f"the tokenizer {name} cannot be fetched from the Hugging Face hub: {first_line}"
        ) from problem


def _check_ids(files: ModelFiles, tokenizer: str) -> None:
    try:
        document = json.loads(files.tokenizer_json)
        vocabulary = document["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as problem:
        raise ModelLoadError(f"{tokenizer} holds no tokenizer: {problem}") from problem
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    highest = max([*ids, *(token["id"] for token in document.get("added_tokens", []))], default=0)
    size = files.config.get("vocab_size", 0)
    if highest >= size:
        raise ModelLoadError(f"the tokenizer {tokenizer} has IDs up to {highest}, the model only {size} tokens")
