#!/usr/bin/env python3
"""Checks a real engine behind our front: the same questions to the engine itself, and through a server in front of it.

    vllm serve MODEL --enable-scale-out --enable-prompt-tokens-details --port 8000
    scripts/check_remote.py --kind vllm --url http://localhost:8000 --model MODEL
    scripts/check_remote.py --kind vllm-completions --url http://localhost:8000 --model MODEL  # without the flag
    scripts/check_remote.py --kind self --url http://localhost:7777        # our own server, with the embedded model

`--model` is the directory or GGUF file of the model that the engine serves; no weights are read. The front runs in this
process. Prints a line a check, and ends with 1 if one fails. Stop other traffic: the engine's counts are looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine.backends.remote import DIALECTS
from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import ServerOptions
from engine.runner.weights.model_files import open_model
from recipe.encoding.tokenizer import Tokenizer

SUBJECTS = ("bread", "rivers", "the moon", "chess", "glass", "tea", "bridges", "salt", "clocks", "whales")
QUESTIONS = (
    "Tell me about {}.",
    "What is the history of {}?",
    "A poem on {}:\n",
    "{} are, first of all,",
    "The best book on {} is",
)
MAX_TOKENS = 32
ABORT_LIMIT_S = 0.1
ABORT_POLL_S = 0.01
ABORT_TRIES = 5
LONG_TOKENS = 1500
STEPS = 16
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FRONT_PATH = "/inference/v1/generate"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
CALLS = {
    "hermes": r'<tool_call> \{ "name" : "add" , "arguments" : \{ "n" : -?\d+ \} \} </tool_call>',
    "deepseek-v4.1": '<｜DSML｜&calls> <｜DSML｜&invoke&name="add"> <｜DSML｜&parameter&name="n"&string="false"> '
    r"-?\d+ </｜DSML｜&parameter> </｜DSML｜&invoke> </｜DSML｜&calls>",
}
"""How a call is written: a space stands for any white space, & for one space."""


class CheckFailed(Exception):
    """What was expected did not come."""


@dataclass
class Bench:
    """The engine, the front before it, and what both are asked with."""

    kind: str
    engine_url: str
    front_url: str
    client: aiohttp.ClientSession
    tokenizer: Tokenizer
    eos_token_ids: list[int]
    model: str

    def prompts(self, number: int) -> list[list[int]]:
        texts = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS]
        return [self.tokenizer.encode(text) for text in texts[:number]]

    async def directly(self, token_ids: list[int]) -> list[int]:
        """The engine's own greedy tokens, without the one that stopped it."""
        params = {"max_tokens": MAX_TOKENS, "temperature": 0}
        asked: dict[str, Any] = {"token_ids": token_ids, "sampling_params": params}
        if self.kind == "sglang":
            asked = {"input_ids": token_ids, "sampling_params": {"max_new_tokens": MAX_TOKENS, "temperature": 0}}
        elif self.kind == "vllm-completions":
            asked = {"prompt": token_ids, "return_token_ids": True, **params}
        answer = await self._post(self.engine_url + DIALECTS[self.kind]().generate_path, asked)
        tokens: list[int] = answer["output_ids"] if self.kind == "sglang" else answer["choices"][0]["token_ids"]
        return tokens[:-1] if tokens and tokens[-1] in self.eos_token_ids else tokens

    async def through_front(
        self, token_ids: list[int], cache_salt: str | None = None, priority: int = 0, **params: Any
    ) -> dict[str, Any]:
        """A whole response of the front."""
        asked = {"token_ids": token_ids, "sampling_params": {"max_tokens": MAX_TOKENS, "temperature": 0} | params}
        return await self._post(self.front_url + FRONT_PATH, asked | {"cache_salt": cache_salt, "priority": priority})

    async def text_through_front(self, prompt: str, **params: Any) -> str:
        answer = await self.through_front(self.tokenizer.encode(prompt), **params)
        text: str = self.tokenizer.inner.decode(tokens_of(answer))
        return text

    async def streamed(self, token_ids: list[int], **params: Any) -> list[dict[str, Any]]:
        sampling = {"max_tokens": MAX_TOKENS, "temperature": 0} | params
        asked: dict[str, Any] = {"token_ids": token_ids, "sampling_params": sampling}
        asked["stream"], asked["stream_options"] = True, {"include_usage": True}
        async with self.client.post(self.front_url + FRONT_PATH, json=asked) as response:
            lines = (await response.text()).split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if data[-1] != "[DONE]":
            raise CheckFailed(f"the stream ended with {data[-1]:.200}")
        return [json.loads(event) for event in data[:-1]]

    async def num_running(self) -> int:
        """What the engine itself says it has under way."""
        dialect = DIALECTS[self.kind]()
        async with self.client.get(self.engine_url + dialect.load_path) as response:
            load = dialect.load(await response.read())
        if load is None:
            raise CheckFailed(f"{dialect.load_path} says nothing of running requests")
        return load.requests

    async def _post(self, url: str, asked: dict[str, Any]) -> dict[str, Any]:
        async with self.client.post(url, json=asked) as response:
            answer: dict[str, Any] = await response.json()
        if response.status != 200:
            raise CheckFailed(f"{url} answered {response.status}: {json.dumps(answer):.300}")
        return answer


def tokens_of(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CheckFailed(otherwise)


def long_prompt(bench: Bench) -> list[int]:
    """Some blocks of tokens."""
    return [token for prompt in bench.prompts(8) for token in prompt] * 3


async def greedy_tokens(bench: Bench, options: argparse.Namespace) -> str:
    prompts, num_tokens = bench.prompts(options.prompts), 0
    for place, prompt in enumerate(prompts):
        direct, ours = await bench.directly(prompt), tokens_of(await bench.through_front(prompt))
        expect(direct == ours, f"prompt {place}: {direct} from the engine, {ours} through the front")
        num_tokens += len(ours)
    return f"{len(prompts)} prompts, {num_tokens} tokens, all equal"


async def streams(bench: Bench, options: argparse.Namespace) -> str:
    prompt = bench.prompts(1)[0]
    events, whole = await bench.streamed(prompt), await bench.through_front(prompt)
    tokens = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
    expect(tokens == tokens_of(whole), "the stream has other tokens than the whole response")
    usage = events[-1]["usage"]
    expect(usage["prompt_tokens"] == len(prompt), f"usage says {usage}, the prompt has {len(prompt)} tokens")
    return f"{len(events)} events, usage {json.dumps(usage)}"


async def cache_hits(bench: Bench, options: argparse.Namespace) -> str:
    prompt, cached = long_prompt(bench), []
    for salt in (None, None, "one", "one", "two"):
        usage = (await bench.through_front(prompt, cache_salt=salt, max_tokens=1))["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    hint = "--enable-prompt-tokens-details is needed on vLLM"
    expect(cached[1] > 0 and cached[3] > 0, f"nothing of {len(prompt)} tokens was cached: {hint}")
    expect(cached[2] == cached[4] == 0, f"one salt finds what another one left: {cached}")
    return f"{cached[1]} of {len(prompt)} prompt tokens cached the second time, none under another salt"


async def priorities(bench: Bench, options: argparse.Namespace) -> str:
    tokens = [tokens_of(await bench.through_front(bench.prompts(1)[0], priority=value)) for value in (0, 3, -3)]
    expect(tokens[0] == tokens[1] == tokens[2], "a priority changed the tokens")
    return "taken"


async def log_probabilities(bench: Bench, options: argparse.Namespace) -> str:
    answer = await bench.through_front(bench.prompts(1)[0], logprobs=3, max_tokens=4)
    entries = answer["choices"][0]["logprobs"]["content"]
    expect([entry["token_id"] for entry in entries] == tokens_of(answer), "log probabilities of other tokens")
    for entry in entries:
        expect(len(entry["top_logprobs"]) == 3, f"{len(entry['top_logprobs'])} alternatives, 3 were asked for")
        expect(entry["top_logprobs"][0]["token_id"] == entry["token_id"], "the greedy token is not the likeliest")
    return f"{len(entries)} tokens with 3 alternatives, the first at {entries[0]['logprob']:.3f}"


async def seeds(bench: Bench, options: argparse.Namespace) -> str:
    prompt = bench.prompts(1)[0]
    same = [tokens_of(await bench.through_front(prompt, temperature=1.0, seed=7)) for _ in range(2)]
    other = tokens_of(await bench.through_front(prompt, temperature=1.0, seed=8))
    expect(same[0] == same[1], "the same seed gave different tokens")
    expect(other != same[0], "another seed gave the same tokens")
    return "one seed, one answer"


async def stop_tokens(bench: Bench, options: argparse.Namespace) -> str:
    prompt = bench.prompts(1)[0]
    tokens = tokens_of(await bench.through_front(prompt))
    answer = await bench.through_front(prompt, stop_token_ids=[tokens[3]])
    first = tokens.index(tokens[3])
    expect(tokens_of(answer) == tokens[:first], f"{tokens_of(answer)} instead of {tokens[:first]}")
    expect(answer["usage"]["completion_tokens"] == first + 1, "the stop token is not counted")
    return f"stopped at token {first}, which is counted and not sent"


async def schema_constraint(bench: Bench, options: argparse.Namespace) -> str:
    prompt = bench.tokenizer.encode('JSON with a field "n":\n')
    answer = await bench.through_front(prompt, structured_outputs={"json": SCHEMA}, max_tokens=64)
    text = bench.tokenizer.inner.decode(tokens_of(answer))
    document = json.loads(text)
    expect(document.keys() == {"n"} and isinstance(document["n"], int), f"{text!r} does not follow the schema")
    return f"{text!r}"


async def other_constraints(bench: Bench, options: argparse.Namespace) -> str:
    number = await bench.text_through_front("1, 2, ", structured_outputs={"regex": "[0-9]{3}"})
    choice = await bench.text_through_front("Yes or no? ", structured_outputs={"choice": ["yes", "no"]})
    behind = {"kind": "json", "schema": json.dumps(SCHEMA), "begins_after": "."}
    thought = await bench.text_through_front("Tell me about bread.", output_constraint=behind, max_tokens=128)
    expect(re.fullmatch("[0-9]{3}", number) is not None, f"{number!r} does not follow the expression")
    expect(choice in ("yes", "no"), f"{choice!r} is no choice")
    document = json.loads(thought.partition(".")[2])
    expect(document.keys() == {"n"}, f"{thought!r} does not follow the schema behind its first sentence")
    return f"{number!r}, {choice!r}, {thought!r}"


async def tool_calls(bench: Bench, options: argparse.Namespace) -> str:
    has_dsml = bench.tokenizer.inner.token_to_id("｜DSML｜") is not None
    writes_dsml = has_dsml or bench.kind != "self"  # our own engine writes it with that token only
    tried = [name for name in CALLS if name == "hermes" or writes_dsml]
    for markup in tried:
        wanted = {"kind": "tool_call_required", "schema": json.dumps(TOOLS), "tool_markup": markup}
        asked = {"output_constraint": wanted | {"single_call": True}, "max_tokens": 200}
        text = await bench.text_through_front("Call add with n=3.\n", **asked)
        spaced = CALLS[markup].replace(" ", r"\s*").replace("&", " ")
        expect(re.fullmatch(spaced, text.strip()) is not None, f"{text!r} is no call in the markup {markup}")
        free = {"output_constraint": wanted | {"kind": "tool_call"}}
        expect(bool(await bench.text_through_front("Tell me", **free)), "a grammar for calls lets no text through")
    return f"one call each in {', '.join(tried)}; text where no call is wanted"


async def biases(bench: Bench, options: argparse.Namespace) -> str:
    prompt, token_id = bench.prompts(1)[0], 100
    biased = tokens_of(await bench.through_front(prompt, logit_bias={token_id: 100.0}, max_tokens=3))
    expect(biased == [token_id] * 3, f"{biased} in spite of a bias of 100 for {token_id}")
    ended = bench.eos_token_ids[0]
    answer = await bench.through_front(prompt, logit_bias={ended: 100.0}, min_tokens=5, max_tokens=9)
    expect(answer["usage"]["completion_tokens"] == 6, f"min_tokens 5 gave {answer['usage']}")
    return "logit_bias decides, and min_tokens over it"


async def many_at_once(bench: Bench, options: argparse.Namespace) -> str:
    prompts, lengths = bench.prompts(12), range(4, 28, 2)
    asked = zip(prompts, lengths, strict=True)
    answers = await asyncio.gather(*(bench.through_front(p, max_tokens=n, ignore_eos=True) for p, n in asked))
    got = [len(tokens_of(answer)) for answer in answers]
    expect(got == list(lengths), f"{got} tokens came, {list(lengths)} were asked for")
    return f"{len(answers)} requests with {sum(got)} tokens"


async def fingerprint(bench: Bench, options: argparse.Namespace) -> str:
    answer = await bench.through_front(bench.prompts(1)[0], max_tokens=1)
    told = answer.get("system_fingerprint") or ""
    expect(told.startswith("fp_"), f"the fingerprint is {told!r}")
    return str(told)


async def metrics(bench: Bench, options: argparse.Namespace) -> str:
    async with bench.client.get(bench.front_url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    told = [line for line in lines if line.startswith(("fleet_up", "fleet_requests", "fleet_attempts_total"))]
    expect(len(told) == 3 and bench.engine_url in told[0], f"the front's metrics say {told}")
    expect(any(line.startswith("fleet_requests{") and line.endswith(" 0.0") for line in told), f"left over: {told}")
    return "; ".join(line.replace(f'endpoint="{bench.engine_url}"', "") for line in told)


async def refusals(bench: Bench, options: argparse.Namespace) -> str:
    asked = {"token_ids": [2**31], "sampling_params": {"max_tokens": 1}}
    async with bench.client.post(bench.front_url + FRONT_PATH, json=asked) as response:
        answer = await response.json()
    expect(response.status == 400, f"a token outside the vocabulary was answered with {response.status}: {answer}")
    return f"{answer['error']['message']:.100}"


async def chat(bench: Bench, options: argparse.Namespace) -> str:
    asked = {"model": bench.model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12}
    asked["temperature"] = 0
    async with bench.client.post(bench.front_url + "/v1/chat/completions", json=asked) as response:
        answer = await response.json()
    expect(response.status == 200, f"answered {response.status}: {answer}")
    return f"{answer['choices'][0]['message']['content']!r}"


async def abort(bench: Bench, options: argparse.Namespace) -> str:
    """Clients that leave: how long until the engine's own count is what it was, at the best of a few times.

    An engine hears of nothing during a step, so that it has the time of a token more.
    """
    started = time.monotonic()
    await bench.through_front(bench.prompts(1)[0], max_tokens=STEPS, ignore_eos=True)
    step_s, quickest_s = (time.monotonic() - started) / STEPS, float("inf")
    for _ in range(ABORT_TRIES):  # a busy machine may hold one up
        quickest_s = min(quickest_s, await leave_once(bench))
        if quickest_s < ABORT_LIMIT_S + step_s:
            break
    told = f"gone from the engine's count after {quickest_s * 1000:.0f} ms, where a token takes {step_s * 1000:.0f} ms"
    expect(quickest_s < ABORT_LIMIT_S + step_s, told)
    return told


async def leave_once(bench: Bench) -> float:
    """Seconds until the engine no longer counts a request whose client has left."""
    before = await bench.num_running()
    params = {"max_tokens": LONG_TOKENS, "ignore_eos": True, "temperature": 0}
    asked = {"token_ids": bench.prompts(1)[0], "sampling_params": params, "stream": True}
    async with aiohttp.ClientSession() as leaving:
        response = await leaving.post(bench.front_url + FRONT_PATH, json=asked)
        await response.content.readany()
        expect(await bench.num_running() > before, "the engine does not count the running request")
        response.close()
    left_at = time.monotonic()
    while await bench.num_running() > before:
        expect(time.monotonic() - left_at < 100 * ABORT_LIMIT_S, "the engine still runs what nobody reads")
        await asyncio.sleep(ABORT_POLL_S)
    return time.monotonic() - left_at


CHECKS: dict[str, Callable[[Bench, argparse.Namespace], Awaitable[str]]] = {
    "greedy tokens": greedy_tokens,
    "streams": streams,
    "cache hits": cache_hits,
    "log probabilities": log_probabilities,
    "seeds": seeds,
    "stop tokens": stop_tokens,
    "schema constraint": schema_constraint,
    "other constraints": other_constraints,
    "tool calls": tool_calls,
    "biases": biases,
    "priorities": priorities,
    "many at once": many_at_once,
    "fingerprint": fingerprint,
    "refusals": refusals,
    "chat": chat,
    "abort": abort,
    "metrics": metrics,
}


@asynccontextmanager
async def front(options: argparse.Namespace) -> AsyncIterator[Bench]:
    """A server of ours before the engine, in this process."""
    files = open_model(options.model)
    settings = ServerOptions(backend=options.kind, endpoints=options.url, tokenizer=str(files.path), port=0, workers=1)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    async with create_server(settings) as server, aiohttp.ClientSession() as client:
        url = options.url.rstrip("/")
        yield Bench(options.kind, url, server.address, client, tokenizer, files.eos_token_ids, files.name)


async def check(options: argparse.Namespace) -> int:
    num_failed = 0
    async with front(options) as bench:
        for name, run in CHECKS.items():
            if options.only and name not in options.only:
                continue
            try:
                print(f"ok    {name}: {await run(bench, options)}", flush=True)
            except (CheckFailed, aiohttp.ClientError, KeyError, ValueError) as error:
                num_failed += 1
                print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)
    return 1 if num_failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=tuple(DIALECTS), required=True)
    parser.add_argument("--url", required=True, help="of the engine")
    parser.add_argument("--model", help="its files; the embedded model if not given")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--only", action="append", choices=tuple(CHECKS), help="one check; may be repeated")
    return asyncio.run(check(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
