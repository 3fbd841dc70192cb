"""Tokenizers built from SentencePiece vocabularies against SentencePiece's own rule, written out."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer

from engine.runner.weights.gguf_file import GgufFile
from engine.runner.weights.gguf_tokenizer import adds_bos, tokenizer_json_from_gguf
from tests.engine.runner.test_gguf_tokenizer import TEXTS

SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "▁"


def words() -> list[str]:
    """Letters, and words made of shorter ones; the earlier, the higher the score."""
    chosen, letters = random.Random(7), [SPACE, *"abcdefghijklmnopqrstuvwxyz,.TIW'0123456789éß世"]
    made = ["".join(chosen.choices([SPACE, *"etaoinshrdlu"], k=2)) for _ in range(150)]
    made += [chosen.choice(made) + chosen.choice(made + letters) for _ in range(400)]
    made += [f"{SPACE}the", "the", "he", f"{SPACE}t", "and", "nd", SPACE * 2, SPACE * 4]
    chosen.shuffle(made)
    return [*dict.fromkeys(made), *(letter for letter in letters if letter not in made)]


def write(path: Path, **metadata: bool) -> GgufFile:
    tokens = SPECIALS + BYTES + words() + ["[INST]"]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    kinds += [gguf.TokenType.NORMAL] * len(words()) + [gguf.TokenType.CONTROL]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    for name, value in metadata.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def encoded(text: str) -> list[str]:
    """Join the neighbours that make the word of the highest score, the leftmost ones first, until none do."""
    ranks = {word: rank for rank, word in enumerate(words())}
    pieces = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks]
        if not pairs:
            break
        _, place = min(pairs)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return [part for p in pieces for part in ([p] if p in ranks else [f"<0x{byte:02X}>" for byte in p.encode()])]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return write(tmp_path_factory.mktemp("gguf") / "spm.gguf")


def test_text_is_joined_by_the_scores_and_spelled_in_bytes_where_no_word_fits(file: GgufFile) -> None:
    ours = Tokenizer.from_str(tokenizer_json_from_gguf(file))
    for text in [*TEXTS, "the tea and the other one, then", "  two  spaces", " ", "安世é"]:
        wanted = encoded(text)
        assert ours.encode(text, add_special_tokens=False).tokens == wanted, text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_control_tokens_are_tokens_and_each_text_between_them_gets_its_space(file: GgufFile) -> None:
    ours = Tokenizer.from_str(tokenizer_json_from_gguf(file))
    assert ours.encode("<s>[INST]the").tokens == ["<s>", "[INST]", *encoded("the")]


def test_bos_and_the_leading_space_are_as_the_file_says(file: GgufFile, tmp_path: Path) -> None:
    assert adds_bos(file) is True
    other = write(tmp_path / "other.gguf", add_bos_token=False, add_space_prefix=False)
    assert adds_bos(other) is False
    ours = Tokenizer.from_str(tokenizer_json_from_gguf(other))
    assert "".join(ours.encode("the tea").tokens) == f"the{SPACE}tea"
    assert ours.decode(ours.encode(" the").ids) == " the"
