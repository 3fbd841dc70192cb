"""Which prompt format a model gets: as asked, or by its vocabulary; and the check that the vocabulary carries it."""

from __future__ import annotations

import json

from engine.entrypoints.options import OptionError, ServerOptions
from engine.runner.weights.model_files import ModelFiles
from recipe.prepare import EncodingName
from recipe.prompt import SpecialToken
from recipe.request import IMAGE_SPECIAL_TOKEN_ID

_ADVICE = "Give the one of such a model with --tokenizer, or another --encoding"
_V41_ONLY = frozenset({SpecialToken.System.name, SpecialToken.Image.name})


def choose_encoding(options: ServerOptions, files: ModelFiles) -> EncodingName:
    """The prompt format of a model; raises `OptionError` when none fits, or the one asked for does not."""
    added = {token["content"]: token["id"] for token in json.loads(files.tokenizer_json).get("added_tokens", [])}
    if options.encoding in ("auto", "chat-template"):
        encoding = _detect(added) if options.encoding == "auto" else "chat-template"
    else:
        encoding = "deepseek-v4" if options.encoding == "deepseek-v4" else "deepseek-v4.1"
    if encoding == "chat-template":
        if files.chat_template is None:
            raise OptionError("the model has no chat template; give one with --chat-template FILE")
    else:
        _check_specials(encoding, added)
    return encoding


def _detect(added: dict[str, int]) -> EncodingName:
    if SpecialToken.Dsml.default_str() not in added:
        return "chat-template"
    return "deepseek-v4.1" if SpecialToken.System.default_str() in added else "deepseek-v4"


def _check_specials(encoding: EncodingName, added: dict[str, int]) -> None:
    """Every special token that the format can put into a prompt must be in the vocabulary."""
    for special in SpecialToken:
        if encoding == "deepseek-v4" and special.name in _V41_ONLY:
            continue
        if special.default_str() not in added:
            raise OptionError(f"{_needs(encoding)} the special token {special.default_str()}. {_ADVICE}")
    image = added.get(SpecialToken.Image.default_str())
    if encoding == "deepseek-v4.1" and image != IMAGE_SPECIAL_TOKEN_ID:
        raise OptionError(f"{_needs(encoding)} the image token at ID {IMAGE_SPECIAL_TOKEN_ID}, not {image}. {_ADVICE}")


def _needs(encoding: EncodingName) -> str:
    return f"--encoding {encoding} needs a tokenizer with"
