"""What is asked around generation: models in both shapes, prompts looked at, liveness, readiness, the prefix cache."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anthropic
import openai
import pytest

from engine.backend import Health
from engine.backends.mock import MockBackend
from engine.entrypoints.admission import Admission, AdmissionLimits
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.model_routes import ModelRoutes, ServedModel
from engine.entrypoints.operation_routes import OperationRoutes
from tests.engine.entrypoints.conftest import Program
from tests.engine.entrypoints.test_serving import chat, post

ANTHROPIC = {"anthropic-version": "2023-06-01"}


def get(program: Program, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    try:
        with urlopen(Request(program.url + path, headers=headers or {}), timeout=240) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_both_sdks_list_and_find_the_model(program: Program) -> None:
    openai_sdk = openai.OpenAI(base_url=program.url + "/v1", api_key="none", max_retries=0)
    anthropic_sdk = anthropic.Anthropic(base_url=program.url, api_key="none", max_retries=0)
    (model,) = openai_sdk.models.list().data
    assert openai_sdk.models.retrieve(model.id) == model
    (other,) = anthropic_sdk.models.list()
    assert other.id == other.display_name == model.id
    assert anthropic_sdk.models.retrieve(model.id).created_at.year >= 2025
    with pytest.raises(openai.NotFoundError):
        openai_sdk.models.retrieve("gpt-9")
    with pytest.raises(anthropic.NotFoundError):
        anthropic_sdk.models.retrieve("claude")


class Asked:
    """A request for a page of models."""

    headers = ANTHROPIC

    def __init__(self, **query: str) -> None:
        self.query = query


async def page(**query: str) -> tuple[list[str], bool]:
    routes = ModelRoutes([ServedModel(name, 0, 8) for name in "abcdefg"])
    response: Any = await routes.list_models(Asked(**query), "id")  # type: ignore[arg-type]
    body = json.loads(response.body)
    ids = [model["id"] for model in body["data"]]
    assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return ids, body["has_more"]


async def test_models_are_paged_forwards_and_backwards() -> None:
    assert await page() == (list("abcdefg"), False)
    assert await page(limit="3") == (list("abc"), True)
    assert await page(limit="3", after_id="c") == (list("def"), True)
    assert await page(limit="3", after_id="f") == (list("g"), False)
    assert await page(after_id="g") == ([], False)
    assert await page(limit="3", before_id="e") == (list("bcd"), True)
    assert await page(limit="3", before_id="c") == (list("ab"), False)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"limit": "1001"}, {"after_id": "z"}])
async def test_a_page_that_there_is_not_is_a_400(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as error:
        await page(**query)
    assert error.value.status == 400


def test_tokenize_gives_what_the_request_itself_becomes(program: Program) -> None:
    body = chat(messages=[{"role": "user", "content": "Say <|im_end|> to me"}], max_tokens=1)
    _, seen = post(program, body, "/tokenize")
    assert seen["count"] == len(seen["tokens"]) == post(program, body)[1]["usage"]["prompt_tokens"]
    assert seen["max_model_len"] == 2048
    assert "".join(piece["text"] for piece in seen["pieces"]) == seen["prompt"]
    assert [piece["id"] for piece in seen["pieces"]] == seen["tokens"]
    marked = [seen["prompt"][start:end] for start, end in seen["special_ranges"]]
    assert marked == [piece["text"] for piece in seen["pieces"] if piece["special"]]
    assert marked.count("<|im_end|>") == seen["prompt"].count("<|im_end|>") - 1


def test_tokenize_reads_all_protocols_and_none(program: Program) -> None:
    turn = [{"role": "user", "content": "hi"}]
    asked = (
        {"messages": turn},
        {"input": "hi"},
        {"input": turn, "protocol": "responses"},
        {"messages": turn, "protocol": "messages"},
        {
            "messages": turn,
            "model": "SmolLM2-135M-Instruct",
            "add_generation_prompt": True,
            "add_special_tokens": False,
        },
    )
    answers = [post(program, body, "/tokenize") for body in asked]
    assert {status for status, _ in answers} == {200}
    assert len({tuple(answer["tokens"]) for _, answer in answers}) == 1
    _, plain = post(program, {"prompt": "hi there", "return_token_strs": True}, "/tokenize")
    assert plain["token_strs"] == ["hi", " there"]


def test_detokenize_is_the_way_back(program: Program) -> None:
    _, seen = post(program, {"messages": [{"role": "user", "content": "Grüße 🦊"}]}, "/tokenize")
    status, text = post(program, {"tokens": seen["tokens"]}, "/detokenize")
    assert status == 200 and text["prompt"] == seen["prompt"]
    assert [piece["special"] for piece in text["pieces"]] == [piece["special"] for piece in seen["pieces"]]


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", b"[]", "object"),
        ("/tokenize", b"x", "JSON"),
        ("/tokenize", {"messages": [], "protocol": "smtp"}, "protocol"),
        ("/tokenize", {"messages": 7}, "messages"),
        ("/tokenize", {"messages": [], "model": "gpt-9"}, "gpt-9"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ],
)
def test_what_cannot_be_looked_at_is_a_400(program: Program, path: str, body: Any, word: str) -> None:
    status, answer = post(program, body, path)
    assert status == 400 and word in answer["error"]["message"]


def test_the_prefix_cache_can_be_reset(program: Program) -> None:
    body = chat(messages=[{"role": "user", "content": "Count the letters of this sentence. " * 8}], max_tokens=1)

    def cached() -> int:
        return int(post(program, body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    assert post(program, b"", "/reset_prefix_cache") == (200, {})
    assert cached() == 0


def test_version_and_readiness_answer_and_a_query_string_changes_nothing(program: Program) -> None:
    assert get(program, "/ready?verbose=1") == (200, {"status": "ok"})
    assert get(program, "/health/") == (200, {"status": "ok"})
    status, answer = get(program, "/version")
    assert status == 200 and answer["version"]
    assert get(program, "/nowhere")[0] == 404
    assert get(program, "/tokenize")[0] == 405


class DeadBackend(MockBackend):
    def health(self) -> Health:
        return Health(ok=False, reason="the engine died")


async def test_a_draining_server_lives_but_is_not_ready_and_a_dead_engine_is_neither() -> None:
    admission = Admission(AdmissionLimits())
    request: Any = HttpRequest.__new__(HttpRequest)

    async def statuses(backend: MockBackend) -> list[int]:
        routes = OperationRoutes(backend, admission)
        return [(await route(request, "id")).status for route in (routes.health, routes.ready)]

    assert await statuses(MockBackend()) == [200, 200]
    assert await statuses(DeadBackend()) == [503, 503]
    admission.close()
    assert await statuses(MockBackend()) == [200, 503]


async def test_a_backend_without_a_prefix_cache_says_so() -> None:
    request: Any = HttpRequest.__new__(HttpRequest)
    with pytest.raises(ApiError, match="no prefix cache"):
        await OperationRoutes(MockBackend(), Admission(AdmissionLimits())).reset_prefix_cache(request, "id")
