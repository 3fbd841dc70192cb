"""vLLM without its route for tokens: the same through POST /v1/completions."""

from __future__ import annotations

import pytest

from engine.backend import EngineError, RequestRefusedError
from recipe.request import OutputConstraint
from tests.engine.backends.fake_engine import EOS, FakeCompletions
from tests.engine.backends.fake_fleet import PROMPT, fleet, play

KIND = "vllm-completions"


async def test_every_sampling_parameter_reaches_the_engine_in_its_own_field() -> None:
    engine = FakeCompletions()
    async with fleet(engine, kind=KIND) as backend:
        constraint = await backend.compile(OutputConstraint("choice", '["a","b"]'))
        await play(
            backend, max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, repetition_penalty=1.1,
            presence_penalty=0.2, frequency_penalty=0.3, min_tokens=2, stop_token_ids=[99], logit_bias={3: -1.0},
            logprobs=2, priority=4, cache_salt=b"mine", constraint=constraint,
        )  # fmt: skip
    body = engine.bodies[0]
    assert body.pop("request_id")
    assert body == {
        "prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
        "return_tokens_as_token_ids": True, "priority": 4, "cache_salt": "mine", "max_tokens": 9, "temperature": 0.5,
        "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "logprobs": 2, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "min_tokens": 2, "ignore_eos": False,
        "stop_token_ids": [EOS, 99], "logit_bias": {"3": -1.0}, "structured_outputs": {"choice": ["a", "b"]},
    }  # fmt: skip


async def test_the_models_generation_config_decides_nothing() -> None:
    engine = FakeCompletions()
    async with fleet(engine, kind=KIND) as backend:
        await play(backend)
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    assert neutral.items() <= engine.bodies[0].items()


async def test_log_probabilities_are_told_by_token_ids_the_likeliest_first() -> None:
    async with fleet(FakeCompletions(), kind=KIND) as backend:
        chunks = await play(backend, logprobs=2)
        alone = await play(backend, logprobs=0)
    assert chunks[1].logprobs == [(-0.5, [(11, -0.5), (12, -1.5)])]
    assert alone[1].logprobs == [(-0.5, [])]


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": ["x"], "token_logprobs": [-0.5], "top_logprobs": [{"x": -0.5}]},
        {"tokens": ["token_id:11"], "token_logprobs": [-0.5], "top_logprobs": []},
        {"tokens": [], "token_logprobs": [], "top_logprobs": []},
        {"tokens": ["token_id:11"], "token_logprobs": [None], "top_logprobs": [None]},
    ],
)
async def test_log_probabilities_that_cannot_be_meant_are_the_engines_fault(
    logprobs: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeCompletions()
    monkeypatch.setattr(engine, "logprobs", lambda *_: logprobs)
    async with fleet(engine, kind=KIND) as backend:
        with pytest.raises(EngineError):
            await play(backend, logprobs=1)


async def test_bad_words_are_refused_by_name() -> None:
    async with fleet(FakeCompletions(), kind=KIND) as backend:
        with pytest.raises(RequestRefusedError, match="bad_words"):
            await play(backend, bad_words_token_ids=[[4]])
