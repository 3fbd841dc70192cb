"""The three protocols as their SDKs see them, on DeepSeek V4.1 prompts with recorded outputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anthropic
import openai
import openresponses_types
import pytest

from tests.engine.entrypoints.conftest import Program, start_program
from tests.engine.entrypoints.deepseek_directory import write_v4, write_v41

D = "｜DSML｜"
CALLS = (
    f'\n\n<{D} calls>\n<{D} invoke name="get_weather">\n'
    f'<{D} parameter name="city" string="true">Paris</{D} parameter>\n'
    f'<{D} parameter name="days" string="false">[1, 2]</{D} parameter>\n</{D} invoke>\n</{D} calls>'
)
ANSWER = {"text": "Let me think.</think>It is sunny in Paris."}
TOOL_CALL = {"text": f"I need the weather.</think>I will look.{CALLS}"}
ARGUMENTS = {"city": "Paris", "days": [1, 2]}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
QUESTION = [{"role": "user", "content": "How is the weather in Paris?"}]
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
MESSAGES_TOOL = {"name": "get_weather", "input_schema": PARAMETERS}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def started(folder: Path, recording: dict[str, Any], *arguments: str) -> Program:
    script = folder / "script.jsonl"
    script.write_text(json.dumps(recording) + "\n", encoding="utf-8")
    name = ("--served-model-name", "deepseek", "--model-alias", "*")
    return start_program("--model", str(folder), "--backend", "mock", "--mock-script", str(script), *name, *arguments)


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = started(write_v41(tmp_path_factory.mktemp("answer")), ANSWER)
    yield program
    program.stop()


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = started(write_v41(tmp_path_factory.mktemp("call")), TOOL_CALL)
    yield program
    program.stop()


def openai_client(program: Program) -> openai.OpenAI:
    return openai.OpenAI(base_url=program.url + "/v1", api_key="none", max_retries=0)


def anthropic_client(program: Program) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=program.url, api_key="none", max_retries=0)


def post(program: Program, path: str, body: Any) -> tuple[int, Any]:
    request = Request(program.url + path, data=json.dumps(body).encode())
    try:
        with urlopen(request, timeout=240) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_chat_tells_reasoning_and_answer_apart_whole_and_streamed(answering: Program) -> None:
    sdk: Any = openai_client(answering).chat.completions
    message = sdk.create(model="deepseek", messages=QUESTION).choices[0].message
    assert message.content == "It is sunny in Paris." and message.reasoning_content == "Let me think."
    deltas = [c.choices[0].delta for c in sdk.create(model="deepseek", messages=QUESTION, stream=True) if c.choices]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Let me think."


def test_chat_tool_calls_arrive_whole_and_streamed(calling: Program) -> None:
    sdk: Any = openai_client(calling).chat.completions
    settings = {"model": "deepseek", "messages": QUESTION, "tools": [CHAT_TOOL]}
    choice = sdk.create(**settings).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == ARGUMENTS
    with sdk.stream(**settings) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert json.loads(final.message.tool_calls[0].function.arguments) == ARGUMENTS


def test_a_tool_round_trip_through_chat_is_accepted(calling: Program) -> None:
    sdk: Any = openai_client(calling).chat.completions
    settings = {"model": "deepseek", "tools": [CHAT_TOOL]}
    first = sdk.create(messages=QUESTION, **settings).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "22 degrees"}
    history = [*QUESTION, first.model_dump(exclude_none=True), result]
    assert sdk.create(messages=history, **settings).usage.prompt_tokens > 100


def test_every_responses_object_is_valid_whole_and_streamed(calling: Program) -> None:
    settings = {"model": "deepseek", "input": "How is the weather?", "tools": [RESPONSES_TOOL]}
    status, whole = post(calling, "/v1/responses", settings)
    assert status == 200
    openresponses_types.ResponseResource.model_validate(whole)
    sdk: Any = openai_client(calling).responses
    with sdk.stream(**settings) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[-1].arguments) == ARGUMENTS
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    for event in events:
        if getattr(event, "response", None) is not None:
            openresponses_types.ResponseResource.model_validate(json.loads(event.response.to_json()))


def test_messages_blocks_arrive_whole_and_streamed(calling: Program) -> None:
    sdk: Any = anthropic_client(calling).messages
    settings = {"model": "deepseek", "max_tokens": 500, "messages": QUESTION, "tools": [MESSAGES_TOOL]}
    whole = sdk.create(**settings, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.stop_reason == "tool_use" and whole.content[-1].input == ARGUMENTS
    with sdk.stream(**settings) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == ARGUMENTS
    assert streamed.usage.input_tokens == whole.usage.input_tokens > 0


def test_counted_tokens_are_the_prompt_tokens_of_the_same_request(answering: Program) -> None:
    sdk: Any = anthropic_client(answering).messages
    settings = {"model": "deepseek", "messages": QUESTION, "tools": [MESSAGES_TOOL]}
    usage = sdk.create(max_tokens=50, **settings).usage
    assert sdk.count_tokens(**settings).input_tokens == usage.input_tokens


def test_errors_come_in_the_envelope_of_each_protocol(answering: Program) -> None:
    bad = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": []}]
    with pytest.raises(openai.BadRequestError) as chat:
        openai_client(answering).chat.completions.create(model="deepseek", messages=bad)  # type: ignore[arg-type]
    assert "tool_calls" in str(chat.value)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        openai_client(answering).responses.create(model="deepseek", input="x", previous_response_id="resp_1")
    with pytest.raises(anthropic.BadRequestError) as messages:
        anthropic_client(answering).messages.create(model="deepseek", max_tokens=0, messages=QUESTION)  # type: ignore[arg-type]
    assert messages.value.response.headers["request-id"]
    assert messages.value.response.json()["type"] == "error"


def test_an_image_is_counted_at_its_real_size_before_max_tokens_is_resolved(answering: Program) -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    image = [{"type": "image_url", "image_url": {"url": url}}]
    status, answer = post(
        answering, "/v1/chat/completions", {"model": "deepseek", "messages": [{"role": "user", "content": image}]}
    )
    assert status == 200, answer
    limit = 163840
    body = {"model": "deepseek", "messages": [{"role": "user", "content": image}], "max_tokens": limit - 30}
    status, answer = post(answering, "/v1/chat/completions", body)
    assert status == 400 and "maximum context length" in answer["error"]["message"]


def test_a_bad_image_is_a_400_that_names_its_place(answering: Program) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"no").decode()}}
    private = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    for image in (broken, private):
        messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]
        status, answer = post(answering, "/v1/chat/completions", {"model": "deepseek", "messages": messages})
        assert status == 400 and "messages[0]" in answer["error"]["message"], answer


def test_a_text_only_version_shows_a_placeholder_and_never_fails(tmp_path: Path) -> None:
    program = started(write_v4(tmp_path / "v4"), ANSWER)
    try:
        image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
        body = {"model": "deepseek", "messages": [{"role": "user", "content": [image]}]}
        status, answer = post(program, "/v1/chat/completions", body)
        assert status == 200 and answer["choices"][0]["message"]["content"] == "It is sunny in Paris."
    finally:
        program.stop()


def test_a_missing_special_token_ends_the_program_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="System"):
        started(write_v4(tmp_path / "v4"), ANSWER, "--encoding", "deepseek-v4.1")
