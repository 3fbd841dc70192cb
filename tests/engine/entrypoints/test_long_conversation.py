"""Many turns of an agent with the real model: caches of tokens and of KV change nothing but the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from engine.entrypoints.affinity import SMALL_BODY_BYTES
from scripts.long_conversation import Turn, ask, turns_of
from tests.engine.entrypoints.conftest import start_program

TURNS = 100
COMPARED = range(3, TURNS, 16)
"""The turns that a server without caches is asked as well: it computes each of them whole."""
BLOCK_TOKENS = 16


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """The URL of a server of its own."""
    engine = ("--max-model-len", "8192", "--kv-cache-mib", "256", "--max-num-seqs", "4")
    program = start_program(*engine, "--served-model-name", "smol", *arguments)
    try:
        yield program.url
    finally:
        program.stop()


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    with running("--workers", "2") as url:
        return list(turns_of(url, "smol", TURNS))


def test_answers_and_usage_are_those_of_a_server_without_caches(turns: list[Turn]) -> None:
    with running("--no-prefix-cache", "--token-cache-mib", "0") as url:
        for number in COMPARED:
            cold = ask(url, turns[number].body)
            assert (cold.cached_tokens, cold.known) == (0, 0)
            assert not turns[number].difference(cold), f"turn {number}"


def test_a_turn_encodes_its_new_texts_alone(turns: list[Turn]) -> None:
    settled = [turn for turn in turns if len(turn.body) > 2 * SMALL_BODY_BYTES]
    assert len(settled) > TURNS // 3
    assert all(turn.new <= 2 for turn in settled)
    known = [turn.known for turn in settled]
    assert known == sorted(known) and known[-1] - known[0] >= 2 * len(settled) - 2


def test_a_turn_computes_its_new_tokens_alone(turns: list[Turn]) -> None:
    for before, turn in pairwise(turns):
        assert turn.cached_tokens >= before.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
