#!/usr/bin/env python3
"""Measure and prove constrained decoding on the embedded model, without a server.

    python scripts/bench_constrained.py                   # compiles over real-world schemas; latency of a batch of 8
    python scripts/bench_constrained.py --prove 300       # 300 requests over 60 schemas: every finished output is valid

The latency is that of whole engine steps, constrained and unconstrained batches taking turns, so that a busy machine
slows both. A step may give a constrained sequence more than one token, those that its grammar forces; so the time a
token takes is shown beside that of a step. The proof mixes JSON schemas, patterns, required tool calls and
unconstrained requests in one batch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.backend import ConstraintHandle, ConstraintRefusedError, EngineRequest  # noqa: E402
from engine.config import EngineConfig  # noqa: E402
from engine.core.engine_core import EngineCore  # noqa: E402
from engine.core.sampling_params import SamplingParams  # noqa: E402
from engine.grammar.bitmask import BitmaskFiller  # noqa: E402
from engine.grammar.compiler import compile_grammar  # noqa: E402
from engine.grammar.vocabulary import Vocabulary  # noqa: E402
from engine.runner.load import load_runner  # noqa: E402
from engine.runner.weights.model_files import open_model  # noqa: E402
from recipe.request import OutputConstraint  # noqa: E402
from recipe.stream.inference import InferenceFinishReason  # noqa: E402

SCHEMAS = ROOT / "tests" / "engine" / "grammar" / "schemas.jsonl.gz"


def endless(name: dict[str, Any]) -> OutputConstraint:
    """People without end, whose names have the schema `name`."""
    properties = {"name": name, "age": {"type": "integer"}, "ok": {"type": "boolean"}}
    person = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return OutputConstraint("json", json.dumps({"type": "array", "minItems": 1000, "items": person}))


_BATCH = 8
MEASURED = {
    "JSON with strings": endless({"type": "string"}),
    "JSON with strings of bounded length": endless({"type": "string", "maxLength": 30}),
}
PATTERNS = [r"[A-Z]{3}-[0-9]{4}", r"(yes|no), because [a-z ]{5,40}\.", r"\d{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])"]
TOOL = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@dataclass
class Model:
    """The embedded model, its vocabulary, and a core that steps it."""

    core: EngineCore
    vocabulary: Vocabulary

    @classmethod
    def load(cls, max_num_seqs: int, threads: int | None) -> Model:
        files = open_model(None)
        config = EngineConfig(
            max_model_len=2048, max_num_seqs=max_num_seqs, kv_cache_mib=256, num_threads=threads, dtype="auto"
        )
        runner = load_runner(files, config)
        core = EngineCore(runner, config, files.eos_token_ids, BitmaskFiller(runner.vocab_size))
        return cls(core, Vocabulary(files.tokenizer_json, runner.vocab_size, files.eos_token_ids))

    def prompt(self, text: str) -> list[int]:
        """The tokens of `text` as a user's message, for the model to answer."""
        start, end = (self.vocabulary.marker_id(spelling) or 0 for spelling in ("<|im_start|>", "<|im_end|>"))
        user = self.vocabulary.encode(f"user\n{text}".encode())
        newline, assistant = self.vocabulary.encode(b"\n"), self.vocabulary.encode(b"assistant\n")
        return [start, *user, end, *newline, start, *assistant]

    def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        return ConstraintHandle(compile_grammar(constraint, self.vocabulary))

    def text(self, token_ids: list[int]) -> str:
        return b"".join(map(self.vocabulary.bytes_of, token_ids)).decode()


# ---- the proof


@dataclass
class Case:
    """A request and what its finished text must satisfy; `check` raises."""

    kind: str
    prompt: str
    constraint: OutputConstraint | None
    check: Callable[[str], None]


@dataclass
class Proof:
    """What came of the requests, by kind."""

    finished: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{kind}: {self.finished[kind]} finished and {self.cut[kind]} cut at max_tokens"
                           for kind in sorted(self.finished | self.cut))  # fmt: skip
        return f"{counts}; invalid: {len(self.failures)}"


def prove(model: Model, num_requests: int, num_schemas: int, max_tokens: int) -> Proof:
    """Run `num_requests` of all kinds in one batch at temperature 1 and check every output that has finished."""
    cases = list(_cases(model, num_requests, num_schemas))
    by_name = {f"{number}": case for number, case in enumerate(cases)}
    for name, case in by_name.items():
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=int(name))
        handle = None if case.constraint is None else model.compile(case.constraint)
        model.core.add_request(EngineRequest(name, model.prompt(case.prompt), params, handle))
    outputs: dict[str, list[int]] = {name: [] for name in by_name}
    proof = Proof()
    while model.core.has_work:
        for output in model.core.step():
            name = output.sequence.request_id
            outputs[name] += output.token_ids
            if output.error is not None:
                proof.failures.append(f"{by_name[name].kind} {name}: {output.error}")
            elif output.finish_reason is InferenceFinishReason.Length:
                proof.cut[by_name[name].kind] += 1
            elif output.finish_reason is not None:
                _check(proof, by_name[name], model.text(outputs[name]))
    return proof


def _check(proof: Proof, case: Case, text: str) -> None:
    proof.finished[case.kind] += 1
    try:
        case.check(text)
    except Exception as error:
        proof.failures.append(f"{case.kind} {case.constraint}: {text!r}: {error}")


def _cases(model: Model, num_requests: int, num_schemas: int) -> Iterator[Case]:
    schemas = _enforceable_schemas(model, num_schemas)
    for number in range(num_requests):
        if number % 5 < 3:
            yield _json_case(schemas[number % len(schemas)])
        elif number % 5 == 3:
            pattern = PATTERNS[number % len(PATTERNS)]
            yield Case("regex", "Give me one.", OutputConstraint("regex", pattern), _matches(pattern))
        elif number % 2:
            yield _tool_case()
        else:
            yield Case("free", "What is the capital of France?", None, lambda text: None)


def _enforceable_schemas(model: Model, num_schemas: int) -> list[Any]:
    """The shortest schemas of the sample that say something and can be enforced."""
    schemas = sorted((row["schema"] for row in sample()), key=lambda schema: len(json.dumps(schema)))
    chosen: list[Any] = []
    for schema in schemas:
        if len(chosen) == num_schemas:
            break
        if not schema.get("properties"):
            continue
        try:
            model.compile(OutputConstraint("json", json.dumps(schema)))
        except ConstraintRefusedError:
            continue
        chosen.append(schema)
    return chosen


def _json_case(schema: Any) -> Case:
    from jsonschema import validate

    prompt = f"Give me an example, short, as JSON: {', '.join(schema['properties'])}"
    constraint = OutputConstraint("json", json.dumps(schema))
    return Case("json", prompt[:300], constraint, lambda text: validate(json.loads(text), schema))


def _matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise ValueError("no match")

    return check


def _tool_case() -> Case:
    from jsonschema import validate

    def check(text: str) -> None:
        bodies = re.findall(r"<tool_call>\n?(.*?)\n?</tool_call>", text, re.DOTALL)
        for call in map(json.loads, bodies):
            if call["name"] != TOOL["name"]:
                raise ValueError("unknown tool")
            validate(call["arguments"], TOOL["parameters"])
        if not bodies:
            raise ValueError("no call")

    return Case("tool", "How is the weather in Paris?", _tool_constraint(), check)


def _tool_constraint() -> OutputConstraint:
    tools = json.dumps([{"type": "function", "function": TOOL}])
    return OutputConstraint("tool_call_required", tools, tool_markup="hermes", single_call=True)


# ---- measurements


def sample() -> Iterator[Any]:
    """Real-world schemas with their instances."""
    with gzip.open(SCHEMAS, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def compile_times_ms(vocabulary: Vocabulary) -> list[float]:
    """Milliseconds to compile each schema of the sample, refused or not."""
    times = []
    for row in sample():
        started = time.perf_counter()
        with suppress(ConstraintRefusedError):
            compile_grammar(OutputConstraint("json", json.dumps(row["schema"])), vocabulary)
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)


@dataclass
class Steps:
    """Milliseconds of decode steps, by the clock and of CPU time, and how many tokens came of them."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0


def take_steps(model: Model, constraint: OutputConstraint | None, batch: int, num_tokens: int, steps: Steps) -> None:
    """Run a batch that starts at once, and add its decode steps to `steps`."""
    handle = None if constraint is None else model.compile(constraint)
    for row in range(batch):
        params = SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=row, ignore_eos=True)
        model.core.add_request(EngineRequest(f"row-{row}", model.prompt("Tell me about people."), params, handle))
    is_first = True
    while model.core.has_work:
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = model.core.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        for output in outputs:
            if output.error is not None:
                raise output.error
        if not is_first:  # which computes the prompts
            steps.wall_ms.append(wall * 1e3)
            steps.cpu_ms.append(cpu * 1e3)
            steps.num_tokens += sum(len(output.token_ids) for output in outputs)
        is_first = False


def measure(model: Model, rounds: int, num_tokens: int) -> None:
    """Print compile times and step times."""
    times = compile_times_ms(model.vocabulary)
    shown = ", ".join(f"{name} {times[int(len(times) * part)]:.2f}" for name, part in (("p50", 0.5), ("p99", 0.99)))
    print(f"compile ms over {len(times)} schemas: {shown}, max {times[-1]:.2f}")
    steps = {name: Steps() for name in ("unconstrained", *MEASURED)}
    for _ in range(rounds):
        for name, taken in steps.items():
            take_steps(model, MEASURED.get(name), _BATCH, num_tokens, taken)
    for what, figures in {
        "a step by the clock, p50": {name: median(taken.wall_ms) for name, taken in steps.items()},
        "a step of CPU time, p50": {name: median(taken.cpu_ms) for name, taken in steps.items()},
        "a token of each row, mean": {
            name: sum(taken.wall_ms) / taken.num_tokens * _BATCH for name, taken in steps.items()
        },
    }.items():
        free = figures.pop("unconstrained")
        shown = "; ".join(f"{name} {ms:.2f} ({ms / free - 1:+.1%})" for name, ms in figures.items())
        print(f"ms of {what}: unconstrained {free:.2f}; {shown}")
    calls = {is_taken: min(times) for is_taken, times in call_times_ms(model, 3 * rounds).items()}
    print(f"ms of a tool call alone, least: {calls[True]:.1f}; every token drawn {calls[False]:.1f}")


def call_times_ms(model: Model, rounds: int) -> dict[bool, list[float]]:
    """Milliseconds of one required tool call after another, by whether forced tokens were taken without a draw."""
    handle, times = model.compile(_tool_constraint()), {True: list[float](), False: list[float]()}
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=7)
    for _ in range(rounds):
        for is_taken, taken in times.items():
            model.core.scheduler.takes_forced_tokens = is_taken
            model.core.add_request(EngineRequest("call", model.prompt("How is the weather in Paris?"), params, handle))
            started = time.perf_counter()
            while model.core.has_work:
                model.core.step()
            taken.append((time.perf_counter() - started) * 1e3)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure and prove constrained decoding on the embedded model.")
    parser.add_argument("--prove", type=int, metavar="N", help="run N requests and check every finished output")
    parser.add_argument("--schemas", type=int, default=60, help="schemas in the proof (60)")
    parser.add_argument("--max-tokens", type=int, default=400, help="most tokens of an output in the proof (400)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind (3)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens in a measured row (64)")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of a step (physical cores)")
    options = parser.parse_args()
    if options.prove:
        proof = prove(Model.load(16, options.threads), options.prove, options.schemas, options.max_tokens)
        print(proof, *proof.failures, sep="\n")
        return bool(proof.failures)
    measure(Model.load(_BATCH, options.threads), options.rounds, options.tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
