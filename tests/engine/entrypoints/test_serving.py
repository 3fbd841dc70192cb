"""The program as a user meets it: the embedded model over a socket, with plain HTTP and with the OpenAI SDK."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import openai
import pytest

from tests.engine.entrypoints.conftest import Program, start_program
from tests.lived_time import wait_until

QUESTION = [{"role": "user", "content": "Repeat this sentence: The capital of France is Paris."}]
PARIS = "The capital of France is Paris."
"""The answer. Every token of it is ahead of the next best by more than a logit, whoever computes."""


def post(program: Program, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(program.url + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=240) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def frames(program: Program, body: dict[str, Any]) -> list[str]:
    data = json.dumps({**body, "stream": True}).encode()
    with urlopen(Request(program.url + "/v1/chat/completions", data=data), timeout=240) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = response.read().decode()
    return [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]


def chat(**settings: Any) -> dict[str, Any]:
    return {"model": "SmolLM2-135M-Instruct", "messages": QUESTION, "max_tokens": 24, "temperature": 0, **settings}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def client(program: Program) -> openai.OpenAI:
    return openai.OpenAI(base_url=program.url + "/v1", api_key="none", max_retries=0)


def test_each_start_phase_says_what_it_did_and_how_long_it_took(program: Program) -> None:
    text = "\n".join(program.lines)
    for phase in ("imports", "weights", "warm-up", "ready"):
        assert any(phase in line and " s" in line for line in program.lines), text


def test_a_whole_answer_has_text_usage_and_a_finish_reason(program: Program) -> None:
    status, answer = post(program, chat())
    assert status == 200 and answer["object"] == "chat.completion"
    assert text_of(answer).startswith(PARIS[:20])
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 5 and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_streamed_answer_adds_up_to_the_whole_one(program: Program) -> None:
    many = {"max_tokens": 100, "ignore_eos": True}
    _, whole = post(program, chat(**many))
    pieces = frames(program, chat(**many))
    assert pieces[-1].strip() == "[DONE]"
    events = [json.loads(piece) for piece in pieces[:-1]]
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    assert text == text_of(whole)
    assert len([e for e in events if e["choices"]]) > 4


def test_max_tokens_ends_with_length_and_counts_exactly(program: Program) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = chat()
        del body["max_tokens"]
        status, answer = post(program, {**body, name: 3})
        assert status == 200
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3


def test_a_stop_string_ends_the_text_before_itself(program: Program) -> None:
    _, answer = post(program, chat(stop=[" Paris"]))
    assert text_of(answer) == "The capital of France is"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_seed_makes_a_draw_repeatable_and_another_one_changes_it(program: Program) -> None:
    draws = [text_of(post(program, chat(temperature=1.5, seed=seed))[1]) for seed in (1, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1


def test_usage_is_streamed_when_asked_for(program: Program) -> None:
    events = [json.loads(f) for f in frames(program, chat(stream_options={"include_usage": True}))[:-1]]
    usages = [event["usage"] for event in events if event.get("usage")]
    assert len(usages) == 1 and usages[0]["completion_tokens"] > 0


def test_the_openai_sdk_reads_whole_and_streamed_answers(program: Program) -> None:
    sdk = client(program)
    model = sdk.models.list().data[0].id
    whole = sdk.chat.completions.create(model=model, messages=QUESTION, max_tokens=20, temperature=0)  # type: ignore[arg-type]
    assert (whole.choices[0].message.content or "").startswith(PARIS[:20])
    stream = sdk.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=20,
        temperature=0,
        stream=True,  # type: ignore[arg-type]
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content


def test_32_streams_run_together_and_each_gets_its_own_answer(program: Program) -> None:
    numbers = range(32)

    def ask(number: int) -> str:
        question = [{"role": "user", "content": f"Repeat the number {number}."}]
        return text_of(post(program, chat(messages=question, max_tokens=32))[1])

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(ask, numbers))
    assert all(answers)
    assert sum(str(number) in answer for number, answer in zip(numbers, answers, strict=True)) > 20


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"not json", "JSON"),
        (b"[]", ""),
        (b'"x"', ""),
        (b"null", ""),
        (b'{"model": "SmolLM2-135M-Instruct"}', "messages"),
        (b'{"messages": []}', "model"),
        (chat(messages="hello"), "messages"),
        (chat(messages=[{"role": "user", "content": 5}]), "content"),
        (chat(temperature="hot"), "temperature"),
        (chat(temperature=9), "temperature"),
        (chat(max_tokens=-1), "max_tokens"),
        (chat(model="gpt-9"), "gpt-9"),
        (chat(messages=[{"role": "user", "content": "word " * 5000}]), "context"),
        (b'{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "\\ud800"}]}', ""),
        (b"[" * 100_000, ""),
        (b'{"model": "' + b"x" * 200_000 + b'", "messages": [{"role": "user", "content": "x"}]}', "model"),
    ],
)
def test_bad_input_is_a_short_400_that_names_the_field(program: Program, body: Any, word: str) -> None:
    status, answer = post(program, body)
    assert 400 <= status < 500
    message = answer["error"]["message"]
    assert word in message and len(message) < 3000
    assert answer["error"]["type"] == "invalid_request_error"


def test_models_and_health_answer(program: Program) -> None:
    with urlopen(program.url + "/v1/models") as response:
        listed = json.loads(response.read())
    assert listed["object"] == "list" and listed["data"][0]["object"] == "model"
    with urlopen(program.url + "/v1/models/" + listed["data"][0]["id"]) as response:
        assert json.loads(response.read()) == listed["data"][0]
    with urlopen(program.url + "/health") as response:
        assert json.loads(response.read())["status"] == "ok"


def children_of(program: Program) -> list[str]:
    """The process IDs of what any of its threads has started."""
    tasks = Path(f"/proc/{program.process.pid}/task").glob("*/children")
    return [pid for task in tasks for pid in task.read_text().split()]


def test_a_worker_of_the_started_program_has_not_loaded_torch(program: Program) -> None:
    children = children_of(program)
    maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in children}
    workers = {pid: text for pid, text in maps.items() if "tokenizers" in text}
    assert workers, "no worker process with the tokenizer found"
    assert not [pid for pid, text in workers.items() if "libtorch" in text]


def test_sigterm_ends_the_program_with_0_and_its_workers_with_it() -> None:
    program = start_program("--backend", "mock")
    children = children_of(program)
    assert program.stop() == 0
    wait_until(lambda: not any(map(_is_alive, children)))  # multiprocessing's own helper ends when it sees that we did


def _is_alive(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
