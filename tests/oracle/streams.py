"""Cases about model output: stream (given chunks) and sweep (one output cut at many places)."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from tests.oracle.build import (
    RESPONSE,
    body_value,
    make_chunk,
    make_options,
    make_parsing_options,
    model_version,
    request_class,
)
from tests.oracle.outcome import CRASH_TYPES, Json, Module, Normalizer, exc_record, guard, parse_json_text
from tests.oracle.tokenizer_files import get_tokenizer


def make_generator(mod: Module, spec: Json, request: Any, converted: Any, options: Any) -> Any:
    protocol, g = spec["protocol"], spec.get("generator", {})
    gid, model = g.get("id", "resp-id"), g.get("model", "model-name")
    if g.get("direct"):  # MessagesChunkGenerator only has a public constructor
        gen = mod.MessagesChunkGenerator(gid, model, g["thinking_mode"])
    else:
        if converted is None:
            conv = mod.Conversation(thinking_mode=g.get("thinking_mode", True))
            converted = mod.ConversationRequest(conv, model_version(mod, g.get("version", "DeepseekV41Flash")))
        gen = request_class(mod, protocol).chunk_generator(converted, gid, model)
    if "signature" in g:
        gen = gen.with_signature(g["signature"])
    if "namespace_tool_map" in g:
        gen = gen.with_namespace_tool_map({k: tuple(v) for k, v in g["namespace_tool_map"].items()})
    if g.get("request_namespace_map"):
        gen = gen.with_namespace_tool_map(g["_map"])
    if g.get("echo") == "request":
        gen = gen.with_echo(g["_echo"])
    elif g.get("echo") == "default":
        gen = gen.with_echo(mod.ResponsesEcho())
    return gen


def make_processor(mod: Module, spec: Json) -> Any:
    """The processor that a case describes, for a generator made from a request or directly."""
    protocol = spec["protocol"]
    g = dict(spec.get("generator", {}))
    request = converted = options = None
    if "request" in spec:
        r = spec["request"]
        options = guard("options", make_options, mod, r.get("options"))
        request = guard("parse", request_class(mod, r.get("protocol", protocol)), body_value(r["body"]))
        if g.get("echo") == "request":
            g["_echo"] = guard("echo", request.echo)
        if g.get("request_namespace_map"):
            g["_map"] = guard("namespace_tool_map", request.namespace_tool_map, options)
        converted = guard("convert", request.convert, options)
    if "parsing" in spec:
        parsing = guard("parsing_options", make_parsing_options, mod, spec["parsing"])
    elif converted is not None:
        parsing = converted.parsing_options
    else:
        parsing = guard("parsing_options", mod.ParsingOptions)
    gen = guard("generator", make_generator, mod, dict(spec, generator=g), request, converted, options)
    args = [gen, parsing]
    if spec.get("tokenizer"):
        args.append(guard("tokenizer", get_tokenizer, mod, spec["tokenizer"]))
    return guard("processor", mod.StreamProcessor, *args)


def stream_events(mod: Module, spec: Json) -> tuple[list[Json], Any, str | None]:
    proc = make_processor(mod, spec)
    resp_cls = getattr(mod, RESPONSE[spec["protocol"]])
    a = spec.get("accumulate", {})
    defaults = {"id": "acc-id", "model": "acc-model", "created": 1234, "prompt_tokens": 11, "hit": 4}
    acc = guard("response", resp_cls, *(a.get(name, default) for name, default in defaults.items()))
    log, norm = [], Normalizer()

    def handle(chunks: Iterable[Any], into: list[Any]) -> None:
        for ch in chunks:
            into.append([resp_cls.sse_event_name(ch), norm.walk(parse_json_text(ch.to_json()))])
            acc.accumulate(ch)

    for c in spec["chunks"]:
        step = {"events": []}
        try:
            if "op" not in c:
                handle(proc.push(make_chunk(mod, c)), step["events"])
            elif c["op"] == "finish":
                handle(proc.finish(), step["events"])
            else:
                proc.close()
        except Exception as e:
            step["error"] = exc_record(e, "step")
        if proc.finished is not False:
            step["finished"] = proc.finished
        log.append(step)
    if spec.get("auto_finish", True):
        step = {"events": []}
        try:
            handle(proc.finish(), step["events"])
        except Exception as e:
            step["error"] = exc_record(e, "finish")
        step["finished"] = proc.finished
        log.append(step)
    final = norm.walk(parse_json_text(acc.to_json()))
    return log, final, resp_cls.sse_done_data()


def run_stream(mod: Module, case: Json) -> Json:
    log, final, done = guard("stream", stream_events, mod, case["input"])
    errors = [s["error"] for s in log if "error" in s]
    if errors and errors[0]["type"] in CRASH_TYPES:
        return {"error": errors[0]}
    return {"steps": log, "accumulated": final, "sse_done_data": done}


RESPONSES_DELTAS = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


def coalesce(protocol: str, log: list[Json]) -> list[Any]:
    """Join adjacent text deltas, so results of different splits can be compared."""
    out = []
    for step in log:
        for name, ev in step["events"]:
            key, text = None, None
            if protocol == "chat_completions" and ev.get("choices"):
                d = ev["choices"][0]["delta"]
                if ev["choices"][0]["finish_reason"] is None:
                    if d.get("tool_calls") and "id" not in d["tool_calls"][0]:
                        key = ("args", d["tool_calls"][0]["index"])
                        text = d["tool_calls"][0]["function"].get("arguments")
                    elif d.get("content") is not None and d.get("role") is None:
                        key, text = ("content",), d["content"]
                    elif d.get("reasoning_content") is not None and d.get("role") is None:
                        key, text = ("reasoning",), d["reasoning_content"]
            elif protocol == "responses" and name in RESPONSES_DELTAS:
                key, text = (name, ev["item_id"]), ev["delta"]
            elif protocol == "messages" and name == "content_block_delta":
                d = ev["delta"]
                field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}.get(
                    d["type"]
                )
                if field:
                    key, text = (d["type"], ev["index"]), d[field]
            if isinstance(text, str):
                if out and out[-1][0] == list(key):
                    out[-1][1] += text
                else:
                    out.append([list(key), text])
            else:
                ev = json.loads(json.dumps(ev))
                ev.pop("sequence_number", None)
                out.append([[name or "chunk"], ev.get("delta", ev.get("choices", ev))])
    return out


def run_sweep(mod: Module, case: Json) -> Json:
    """Cut one output text at many places; group the cuts by (coalesced) result."""
    spec = dict(case["input"])
    text, mode = spec.pop("sweep_text"), spec.pop("sweep_mode")
    head, tail = spec.pop("head", []), spec.pop("tail", [{"finish": "Stop"}])
    if mode == "each":
        plans = [("whole", [text])] + [(i, [text[:i], text[i:]]) for i in range(1, len(text))]
        plans.append(("chars", list(text)))
    elif mode == "pairs":
        plans = [(f"step{k}", [text[i : i + k] for i in range(0, len(text), k)]) for k in (1, 2, 3, 5, 7, 11)]
    elif mode == "token_each":
        ids = spec.pop("sweep_tokens")
        plans = [("whole", [ids])] + [(i, [ids[:i], ids[i:]]) for i in range(1, len(ids))]
        plans.append(("single", [[t] for t in ids]))
    groups = {}
    order = []
    exact = hashlib.sha256()
    for label, pieces in plans:
        if mode == "token_each":
            chunks = head + [{"tokens": p} for p in pieces] + tail
        else:
            chunks = head + [{"text": p, "n": 1} for p in pieces] + tail
        log, final, _ = guard("stream", stream_events, mod, dict(spec, chunks=chunks))
        errors = [s["error"] for s in log if "error" in s]
        if errors and errors[0]["type"] in CRASH_TYPES:
            return {"error": errors[0]}
        res = {"deltas": coalesce(spec["protocol"], log), "errors": errors}
        if mode == "token_each":
            res["accumulated"] = final
        key = json.dumps(res, sort_keys=True, ensure_ascii=False)
        exact.update(json.dumps([label, log, final], sort_keys=True).encode())
        if key not in groups:
            groups[key] = {"cuts": [], "result": res}
            order.append(key)
        groups[key]["cuts"].append(label)
    out = [groups[k] for k in order]
    for k, g in zip(order[4:], out[4:], strict=True):  # the first groups in full, the rest as a digest
        g["result_sha256"] = hashlib.sha256(k.encode()).hexdigest()
        del g["result"]
    return {"groups": out, "exact_sha256": exact.hexdigest()}
