"""A Hugging Face model directory: config.json, tokenizer.json and the small JSON files around them.

Each question that the rest asks (template, special tokens, ends, defaults) is one method, with the order of
precedence of the files it looks into.
"""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import blake2s
from pathlib import Path
from typing import Any

from engine.runner.weights.errors import ModelLoadError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_ROPE_SETTINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_GENERATION = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def context_length(config: dict[str, Any]) -> int:
    """The context in tokens: `max_position_embeddings`, stretched by linear rope scaling or by yarn."""
    length = config.get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise ModelLoadError(f"config: max_position_embeddings must be a positive integer, not {length!r}")
    scaling = rope_scaling(config) or {"rope_type": "default"}
    if scaling["rope_type"] == "yarn":  # some models give the stretched length, others the original one
        return max(length, int(scaling["original_max_position_embeddings"] * scaling["factor"]))
    return int(length * scaling["factor"]) if scaling["rope_type"] == "linear" else length


def rope_scaling(config: dict[str, Any]) -> dict[str, Any] | None:
    """The rope scaling under its present or its older name, with `rope_type` set; None when there is none."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    missing = [name for name in _ROPE_SETTINGS.get(kind, ()) if not isinstance(scaling.get(name), int | float)]
    if missing:
        raise ModelLoadError(f"config: rope scaling {kind!r} needs numbers for {', '.join(missing)}")
    return None if kind == "default" else {**scaling, "rope_type": kind}


class HfDirectory:
    """The files of one directory, read when they are asked for; raises `ModelLoadError` naming the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def config(self) -> dict[str, Any]:
        if not (self.folder / "config.json").is_file():
            raise ModelLoadError(f"{self.folder} holds no config.json: give a Hugging Face directory or a GGUF file")
        return self._json("config.json")

    @cached_property
    def tokenizer_json(self) -> str:
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"{self.folder} holds no tokenizer.json: save the model's fast tokenizer there")
        return path.read_text("utf-8")

    def chat_template(self) -> str | None:
        """chat_template.jinja, else the (default) template of tokenizer_config.json."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text("utf-8")
        template = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
        return template

    def special_tokens(self) -> dict[str, str]:
        """Spelling by name (`bos_token`, ...), from tokenizer_config.json, else special_tokens_map.json."""
        found = self._json("special_tokens_map.json") | self._tokenizer_config
        spelled = {name: _content(found.get(name)) for name in _SPECIAL_TOKENS}
        return {name: content for name, content in spelled.items() if content is not None}

    def adds_bos(self) -> bool:
        """As tokenizer_config.json says, else whether the tokenizer's own template puts a special token first."""
        setting = self._tokenizer_config.get("add_bos_token")
        if setting is not None:
            return bool(setting)
        bos = self.special_tokens().get("bos_token")
        return bos is not None and bos in _leading_specials(self._tokenizer.get("post_processor"))

    def eos_token_ids(self) -> list[int]:
        """Of generation_config.json, else config.json; then the tokenizer's own EOS token."""
        ids = self._json("generation_config.json").get("eos_token_id")
        if ids is None:
            ids = self.config.get("eos_token_id")
        listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
        spelling = self.special_tokens().get("eos_token")
        added = [token["id"] for token in self._tokenizer.get("added_tokens", []) if token["content"] == spelling]
        return list(dict.fromkeys([*listed, *added]))

    def generation(self) -> dict[str, float]:
        """The sampling defaults of generation_config.json."""
        found = self._json("generation_config.json")
        return {name: found[name] for name in _GENERATION if isinstance(found.get(name), int | float)}

    def fingerprint(self) -> str:
        """A short hash of config.json and of the names, sizes and headers of the weight files."""
        digest = blake2s(json.dumps(self.config, sort_keys=True).encode(), digest_size=6)
        for path in sorted(self.folder.glob("*.safetensors")):
            with path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                if header_bytes > path.stat().st_size:
                    raise ModelLoadError(f"{path} is damaged or cut short: its header cannot be read")
                header = file.read(header_bytes)
            digest.update(f"{path.name}:{path.stat().st_size}:".encode() + header)
        return digest.hexdigest()

    @cached_property
    def _tokenizer(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.tokenizer_json))
        except ValueError as problem:
            raise ModelLoadError(f"{self.folder / 'tokenizer.json'} is no valid JSON: {problem}") from problem

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return self._json("tokenizer_config.json")

    def _json(self, name: str) -> dict[str, Any]:
        """The object in file `name`, empty where there is no such file."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            document = json.loads(path.read_bytes())
        except ValueError as problem:
            raise ModelLoadError(f"{path} is no valid JSON: {problem}") from problem
        if not isinstance(document, dict):
            raise ModelLoadError(f"{path} must hold a JSON object, not {type(document).__name__}")
        return document


def _content(token: Any) -> str | None:
    """A special token is spelled as a string or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _leading_specials(processor: dict[str, Any] | None) -> list[str]:
    """The special tokens that a post-processor puts in front of a single text."""
    if processor is None:
        return []
    if processor.get("type") == "Sequence":
        return [name for inner in processor["processors"] for name in _leading_specials(inner)]
    pieces = processor.get("single", []) if processor.get("type") == "TemplateProcessing" else []
    first = pieces[0].get("SpecialToken") if pieces else None
    return [first["id"]] if first else []
