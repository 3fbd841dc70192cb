"""Compiles beside the event loop: shared, kept, bounded, and of no harm to whoever leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.backend import ConstraintRefusedError
from engine.grammar import compiler as compiler_module
from engine.grammar.compiler import GrammarCompiler
from engine.runner.weights.model_files import ModelFiles
from recipe.request import OutputConstraint
from tests.lived_time import HANG_S, turns, until

JSON = OutputConstraint("json", '{"type":"object","properties":{"a":{"type":"integer"}}}')


@pytest.fixture
async def compiler(smollm2_files: ModelFiles) -> AsyncIterator[GrammarCompiler]:
    compiler = GrammarCompiler(smollm2_files.tokenizer_json, 49152, smollm2_files.eos_token_ids, max_entries=4)
    yield compiler
    compiler.close()


@pytest.fixture
def may_compile() -> threading.Event:
    """While it is cleared, a compile stands still."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, may_compile: threading.Event) -> list[OutputConstraint]:
    """Every constraint that is really compiled."""
    seen: list[OutputConstraint] = []
    compile_grammar = compiler_module.compile_grammar

    def held(constraint: OutputConstraint, vocabulary: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(constraint)
        assert may_compile.wait(HANG_S)
        return compile_grammar(constraint, vocabulary)

    monkeypatch.setattr(compiler_module, "compile_grammar", held)
    return seen


async def test_fifty_requests_of_one_content_share_one_compile_and_one_grammar(
    compiler: GrammarCompiler, compiles: list[OutputConstraint]
) -> None:
    copies = [OutputConstraint(JSON.kind, str(JSON.schema)) for _ in range(50)]
    handles = await asyncio.gather(*map(compiler.compile, copies))
    assert compiles == [JSON]
    assert all(handle is handles[0] for handle in handles)
    matchers = [handle.payload.new_matcher(frozenset([2])) for handle in handles]
    assert matchers[0].accept_token(handles[0].payload.vocabulary.encode(b"{")[0])
    assert matchers[1].bound.is_accepting() is False and matchers[1].bound.compute_ff_bytes() == b"{"


async def test_the_loop_goes_on_while_a_grammar_is_compiled(
    compiler: GrammarCompiler, compiles: list[OutputConstraint], may_compile: threading.Event
) -> None:
    may_compile.clear()
    compiling = asyncio.ensure_future(compiler.compile(JSON))
    await until(lambda: compiles)
    await turns()
    assert not compiling.done()
    may_compile.set()
    await compiling


async def test_whoever_leaves_stops_nobody_else(
    compiler: GrammarCompiler, compiles: list[OutputConstraint], may_compile: threading.Event
) -> None:
    may_compile.clear()
    leaving, staying = (asyncio.ensure_future(compiler.compile(JSON)) for _ in range(2))
    await until(lambda: compiles)
    leaving.cancel()
    may_compile.set()
    handle = await staying
    assert leaving.cancelled() and handle.payload is not None
    assert (await compiler.compile(JSON)) is handle and len(compiles) == 1


async def test_a_compile_that_everybody_has_left_is_of_use_to_the_next(
    compiler: GrammarCompiler, compiles: list[OutputConstraint], may_compile: threading.Event
) -> None:
    may_compile.clear()
    only = asyncio.ensure_future(compiler.compile(JSON))
    await until(lambda: compiles)
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    may_compile.set()
    await compiler.compile(JSON)
    assert len(compiles) == 1


async def test_grammars_that_were_not_used_for_longest_go_first(
    compiler: GrammarCompiler, compiles: list[OutputConstraint]
) -> None:
    constraints = [OutputConstraint("choice", json.dumps([str(n)])) for n in range(5)]
    for constraint in [*constraints[:4], constraints[0], constraints[4]]:
        await compiler.compile(constraint)
    assert len(compiles) == 5
    await compiler.compile(constraints[0])
    assert len(compiles) == 5
    await compiler.compile(constraints[1])
    assert len(compiles) == 6


async def test_a_refusal_is_remembered_and_told_to_everybody(
    compiler: GrammarCompiler, compiles: list[OutputConstraint]
) -> None:
    bad = OutputConstraint("json", '{"properties":{"a":{"not":{}}}}')
    answers = await asyncio.gather(*[compiler.compile(bad) for _ in range(3)], return_exceptions=True)
    assert all(isinstance(answer, ConstraintRefusedError) and "'not'" in str(answer) for answer in answers)
    with pytest.raises(ConstraintRefusedError):
        await compiler.compile(bad)
    assert len(compiles) == 1


async def test_a_compile_that_takes_too_long_is_refused_while_others_are_served(
    smollm2_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_grammar = compiler_module.compile_grammar
    release = threading.Event()

    def stuck(constraint: OutputConstraint, vocabulary: Any) -> Any:
        if constraint.kind == "json":
            release.wait(2 * HANG_S)
        return compile_grammar(constraint, vocabulary)

    monkeypatch.setattr(compiler_module, "compile_grammar", stuck)
    compiler = GrammarCompiler(smollm2_files.tokenizer_json, 49152, smollm2_files.eos_token_ids)
    try:
        await compiler.warm_up()
        compiler._timeout_s = 0.3
        slow = asyncio.ensure_future(compiler.compile(JSON))
        await turns()
        compiler._timeout_s = 2 * HANG_S
        assert await compiler.compile(OutputConstraint("regex", "a"))
        with pytest.raises(ConstraintRefusedError, match="too complex"):
            await slow
    finally:
        release.set()
        compiler.close()


async def test_a_grammar_that_has_run_into_its_limits_is_compiled_again(
    compiler: GrammarCompiler, compiles: list[OutputConstraint]
) -> None:
    first = await compiler.compile(JSON)
    first.payload.has_failed = True
    second = await compiler.compile(JSON)
    assert second is not first and len(compiles) == 2


async def test_an_unreadable_tokenizer_refuses_constraints_and_nothing_else() -> None:
    compiler = GrammarCompiler('{"model": {"type": "BPE"}, "added_tokens": []}', 100, ())
    for _ in range(2):
        with pytest.raises(ConstraintRefusedError, match="tokenizer"):
            await compiler.compile(JSON)
    compiler.close()


async def test_a_kind_that_nobody_knows_is_refused_by_name(compiler: GrammarCompiler) -> None:
    with pytest.raises(ConstraintRefusedError, match="'haiku'"):
        await compiler.compile(OutputConstraint("haiku", ""))
