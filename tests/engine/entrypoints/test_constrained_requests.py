"""Constraints through the server: enforced, refused by name, and no burden when the client has gone."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession

from engine.backend import ConstraintHandle, ConstraintRefusedError
from engine.backends.mock import MockBackend
from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import ServerOptions
from recipe.request import OutputConstraint
from tests.engine.entrypoints.conftest import Program
from tests.engine.entrypoints.harness import BODIES, ScriptedBackend, open_door
from tests.engine.entrypoints.test_serving import chat, post, text_of
from tests.lived_time import HANG_S, until

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "maximum": 10**7}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def about_paris(**settings: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about Paris, as json."}]
    return chat(messages=messages, max_tokens=120, temperature=1, seed=4, **settings)


def test_a_response_format_is_kept_to(program: Program) -> None:
    status, answer = post(program, about_paris(response_format=json_schema(SCHEMA, strict=True)))
    assert status == 200 and answer["choices"][0]["finish_reason"] == "stop", answer
    city = json.loads(text_of(answer))
    assert city.keys() == {"city", "people"} and type(city["people"]) is int


def test_a_pattern_is_kept_to(program: Program) -> None:
    status, answer = post(program, about_paris(response_format={"type": "regex", "regex": "[A-Z]{3}-[0-9]{4}"}))
    assert status == 200 and re.fullmatch("[A-Z]{3}-[0-9]{4}", text_of(answer)), answer


def test_a_schema_that_cannot_be_enforced_is_a_400_that_names_keyword_and_path(program: Program) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for stream in (False, True):
        status, answer = post(program, about_paris(response_format=json_schema(schema), stream=stream))
        assert status == 400 and "keyword 'not' at /properties/a/not" in answer["error"]["message"]
        assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "[0-9]{5}"}, "[0-9]{5}"),
        ({"grammar": 'start: "a" ("b" | "c")'}, "ab|ac"),
        ({"json": {"enum": ["x", 1]}}, '"x"|1'),
    ],
)
def test_structured_outputs_are_kept_to(program: Program, asked: dict[str, Any], pattern: str) -> None:
    status, answer = post(program, about_paris(structured_outputs=asked))
    assert status == 200 and re.fullmatch(pattern, text_of(answer)), answer


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_required_call_is_made_and_follows_its_schema(program: Program, choice: Any) -> None:
    asked = about_paris(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    status, answer = post(program, asked)
    assert status == 200 and answer["choices"][0]["finish_reason"] == "tool_calls", answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == {"city", "people"} and type(arguments["people"]) is int


@pytest.mark.parametrize("path", BODIES)
async def test_a_constraint_that_meets_a_limit_on_the_way_is_a_400_or_ends_the_stream_with_the_limit(path: str) -> None:
    error = ConstraintRefusedError("the constraint is too complex to be followed to its end: too many states: 50000")
    async with open_door(ScriptedBackend(tokens=2, error=error)) as door, ClientSession() as client:
        async with client.post(door.url + path, json=BODIES[path]) as answer:
            body = await answer.json()
            assert answer.status == 400 and body["error"]["message"] == str(error)
            assert body["error"]["type"] == "invalid_request_error"
        async with client.post(door.url + path, json={**BODIES[path], "stream": True}) as answer:
            assert answer.status == 200
            last = (await answer.text()).split("word")[-1]
            assert str(error) in last and "server_error" not in last and "api_error" not in last
        await until(door.is_idle)


async def test_a_client_that_leaves_during_a_compile_ends_its_request_and_nothing_else() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def never(constraint: OutputConstraint) -> ConstraintHandle:
        entered.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return ConstraintHandle(constraint)

    async with create_server(ServerOptions(backend="mock", port=0, workers=1)) as server:
        assert isinstance(server.backend, MockBackend)
        server.backend.compile = never  # type: ignore[method-assign]
        address = urlsplit(server.address)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        body = json.dumps(about_paris(response_format=json_schema(SCHEMA))).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await asyncio.wait_for(entered.wait(), HANG_S)
        writer.close()
        await asyncio.wait_for(ended.wait(), HANG_S)
        await until(lambda: not server.backend.stats().running)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), HANG_S)
        writer.close()
