"""Completions against the running program: prompts of every kind, streamed and whole, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import openai
import pytest

from tests.engine.entrypoints.conftest import Program
from tests.engine.entrypoints.test_serving import post
from tests.lived_time import wait_until

MODEL = "SmolLM2-135M-Instruct"
FRANCE = "The capital of France is"


def completion(prompt: Any, **settings: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **settings}


def complete(program: Program, prompt: Any, **settings: Any) -> dict[str, Any]:
    status, answer = post(program, completion(prompt, **settings), "/v1/completions")
    assert status == 200, answer
    return dict(answer)


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def events(program: Program, prompt: Any, **settings: Any) -> list[dict[str, Any]]:
    data = json.dumps(completion(prompt, stream=True, **settings)).encode()
    with urlopen(Request(program.url + "/v1/completions", data=data), timeout=240) as response:
        frames = [frame.removeprefix("data: ") for frame in response.read().decode().split("\n\n") if frame]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def tokens_of(program: Program, text: str) -> list[int]:
    return list(post(program, {"prompt": text}, "/tokenize")[1]["tokens"])


def test_a_text_is_continued_and_its_tokens_are_continued_alike(program: Program) -> None:
    from_text = complete(program, FRANCE)
    assert from_text["object"] == "text_completion"
    assert texts(from_text)[0].startswith(" Paris")
    assert from_text["usage"]["completion_tokens"] == 8
    ids = tokens_of(program, FRANCE)
    assert from_text["usage"]["prompt_tokens"] == len(ids)
    assert texts(complete(program, ids)) == texts(from_text)


def test_a_batch_gives_what_its_prompts_give_alone_in_their_order(program: Program) -> None:
    prompts = [FRANCE, "1 2 3 4 5", "def main():\n"]
    alone = [texts(complete(program, prompt))[0] for prompt in prompts]
    together = complete(program, prompts)
    assert texts(together) == alone
    assert together["usage"]["prompt_tokens"] == sum(len(tokens_of(program, prompt)) for prompt in prompts)
    assert together["usage"]["completion_tokens"] == 24
    assert texts(complete(program, [tokens_of(program, prompt) for prompt in prompts])) == alone


def test_n_draws_several_texts_for_each_prompt_and_a_seed_repeats_them_all(program: Program) -> None:
    settings = {"n": 3, "temperature": 1.2, "seed": 7, "max_tokens": 12}
    first, second = (texts(complete(program, [FRANCE, "Once"], **settings)) for _ in range(2))
    assert first == second and len(first) == 6
    assert len(set(first[:3])) > 1 and len(set(first[3:])) > 1


def test_echo_repeats_the_prompt_as_it_was_written_or_as_its_tokens_read(program: Program) -> None:
    plain = texts(complete(program, FRANCE))[0]
    assert texts(complete(program, FRANCE, echo=True)) == [FRANCE + plain]
    assert texts(complete(program, tokens_of(program, FRANCE), echo=True)) == [FRANCE + plain]


def test_streamed_pieces_of_every_choice_add_up_to_the_whole_texts(program: Program) -> None:
    prompts = [FRANCE, "1 2 3 4 5"]
    whole = complete(program, prompts, echo=True)
    pieces = ["", ""]
    streamed = events(program, prompts, echo=True, stream_options={"include_usage": True})
    for event in streamed[:-1]:
        (choice,) = event["choices"]
        pieces[choice["index"]] += choice["text"]
    assert pieces == texts(whole)
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert not any("usage" in event for event in events(program, FRANCE))


def test_a_stop_string_ends_one_text_and_leaves_the_others_alone(program: Program) -> None:
    answer = complete(program, [FRANCE, "1 2 3 4 5"], stop=" Paris")
    assert answer["choices"][0]["text"] == "" and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][1]["text"] == texts(complete(program, "1 2 3 4 5"))[0]


def test_newlines_and_markers_in_the_output_are_text(program: Program) -> None:
    text = texts(complete(program, tokens_of(program, "Hello") + [2], max_tokens=2))[0]
    assert text.startswith("\n<|im_start|>")


def test_log_probabilities_come_in_parallel_lists_with_the_chosen_token_among_the_best(program: Program) -> None:
    found = complete(program, FRANCE, logprobs=3)["choices"][0]
    logprobs = found["logprobs"]
    assert "".join(logprobs["tokens"]) == found["text"]
    assert {len(values) for values in logprobs.values()} == {8}
    for token, logprob, best, offset in zip(*(logprobs[name] for name in logprobs), strict=True):
        assert best[token] == logprob == max(best.values())
        assert len(best) == 3 and found["text"][offset:].startswith(token)
    streamed = events(program, FRANCE, logprobs=3)
    offsets = [n for event in streamed for n in (event["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
    assert offsets == logprobs["text_offset"]


def test_the_spelling_of_a_special_token_is_ordinary_text(program: Program) -> None:
    status, seen = post(program, {"prompt": "<|im_start|>user"}, "/tokenize")
    assert status == 200 and len(seen["tokens"]) > 3 and not any(piece["special"] for piece in seen["pieces"])
    answer = complete(program, "<|im_start|>user")
    assert answer["usage"]["prompt_tokens"] == len(seen["tokens"])


def test_structured_outputs_constrain_a_completion(program: Program) -> None:
    answer = complete(program, FRANCE, structured_outputs={"choice": ["Rome", "Oslo"]})
    assert texts(answer)[0] in ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"suffix": "the end"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "context"),
        ({"n": 0}, "n value"),
        ({"n": 2, "prompt": ["a"] * 100}, "n value"),
        ({"logprobs": 21}, "logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["x"] * 17}, "Stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"model": "gpt-9"}, "gpt-9"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(program: Program, settings: dict[str, Any], word: str) -> None:
    status, answer = post(program, {**completion("a"), **settings}, "/v1/completions")
    assert status == 400 and word in answer["error"]["message"]


def running(program: Program) -> int:
    with urlopen(program.url + "/metrics") as response:
        line = next(line for line in response.read().decode().splitlines() if line.startswith("engine_running_seq"))
    return int(float(line.split()[1]))


def test_a_client_that_leaves_frees_every_choice(program: Program) -> None:
    data = json.dumps(completion(["a", "b"], n=3, max_tokens=1500, ignore_eos=True, stream=True)).encode()
    with urlopen(Request(program.url + "/v1/completions", data=data), timeout=240) as response:
        response.readline()
        wait_until(lambda: running(program) == 6)
    wait_until(lambda: not running(program))


def test_the_openai_sdk_reads_whole_and_streamed_completions(program: Program) -> None:
    sdk = openai.OpenAI(base_url=program.url + "/v1", api_key="none", max_retries=0)
    whole = sdk.completions.create(model=MODEL, prompt=[FRANCE, "1 2 3"], max_tokens=6, temperature=0, logprobs=1)
    assert len(whole.choices) == 2 and whole.usage is not None and whole.usage.completion_tokens == 12
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.tokens or []) == 6
    stream = sdk.completions.create(model=MODEL, prompt=FRANCE, max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
