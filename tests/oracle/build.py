"""Inputs of a case: request bodies, options, and objects constructed by hand."""

import base64
import json
import math
from typing import Any

from tests.oracle.outcome import Json, Module, guard


def body_value(spec: Json) -> Any:
    """Request body: {"json": obj} | {"text": str} | {"bytes": str} | {"b64": str} | {"py": expr}."""
    if "json" in spec:
        return json.loads(json.dumps(spec["json"]))
    if "text" in spec:
        return spec["text"]
    if "bytes" in spec:
        return spec["bytes"].encode("utf-8")
    if "b64" in spec:
        return base64.b64decode(spec["b64"])
    if "py" in spec:
        return eval(
            spec["py"],
            {
                "nan": math.nan,
                "inf": math.inf,
                "__builtins__": {"bytearray": bytearray, "bytes": bytes, "tuple": tuple, "set": set, "range": range},
            },
        )
    raise ValueError("bad body spec")


def model_version(mod: Module, name: str) -> Any:
    return getattr(mod.ModelVersion, name)


def make_options(mod: Module, spec: Json) -> Any:
    spec = spec or {}
    kw = {}
    for key in ("default_thinking_mode", "thinking_max_tokens_upper_bound", "non_thinking_max_tokens_upper_bound"):
        if key in spec:
            kw[key] = spec[key]
    if "reasoning_content_behavior" in spec:
        kw["reasoning_content_behavior"] = getattr(mod.ReasoningContentBehavior, spec["reasoning_content_behavior"])
    for key in ("responses_web_search", "messages_web_search"):
        if key in spec:
            kw[key] = getattr(mod.WebSearchBehavior, spec[key])
    if spec.get("use_with"):
        o = mod.ConversionOptions()
        for key, value in kw.items():
            o = getattr(o, "with_" + key)(value)
    else:
        o = mod.ConversionOptions(**kw)
    if "versions" in spec:
        o = o.with_model_versions_by_name({k: model_version(mod, v) for k, v in spec["versions"].items()})
    for name, version in spec.get("aliases", []):
        o = o.with_model_alias(name, model_version(mod, version))
    if "special_tokens" in spec:
        o = o.with_special_tokens(mod.SpecialTokens(**spec["special_tokens"]))
    return o


REQUEST = {"chat_completions": "ChatCompletionRequest", "responses": "ResponsesRequest", "messages": "MessagesRequest"}
RESPONSE = {
    "chat_completions": "ChatCompletionResponse",
    "responses": "ResponsesResponse",
    "messages": "MessagesResponse",
}
GENERATOR = {
    "chat_completions": "ChatCompletionChunkGenerator",
    "responses": "ResponsesChunkGenerator",
    "messages": "MessagesChunkGenerator",
}


def request_class(mod: Module, protocol: str) -> Any:
    return getattr(mod, REQUEST[protocol])


def convert_request(mod: Module, spec: Json) -> tuple[Any, Any]:
    """Returns (request, converted); raises CaseError with the failing stage."""
    options = guard("options", make_options, mod, spec.get("options"))
    cls = request_class(mod, spec["protocol"])
    request = guard("parse", cls, body_value(spec["body"]))
    converted = guard("convert", request.convert, options)
    return request, converted


def make_image_source(mod: Module, s: Any) -> Any:
    kw = {}
    if "path" in s:
        kw["path"] = s["path"]
    args = [s["detail"]] if "detail" in s else []
    if s["kind"] == "data_url":
        return mod.DataUrlImageSource(s["value"], *args, **kw)
    if s["kind"] == "url":
        return mod.UrlImageSource(s["value"], *args, **kw)
    return mod.BytesImageSource(base64.b64decode(s["value"]), *args, **kw)


def make_tool(mod: Module, t: Any) -> Any:
    return mod.ToolDefinition(**t)


def make_message(mod: Module, m: Any) -> Any:
    role = m["role"]
    imgs = m.get("images")
    imgs = None if imgs is None else [make_image_source(mod, s) for s in imgs]
    kw = {}
    if "image_token" in m:
        kw["image_token"] = m["image_token"]
    if role == "system":
        tools = m.get("tools")
        return mod.SystemMessage(
            m["content"], imgs, None if tools is None else [make_tool(mod, t) for t in tools], **kw
        )
    if role == "user":
        return mod.UserMessage(m["content"], imgs, **kw)
    if role == "tool":
        return mod.ToolMessage(m["content"], m.get("tool_call_id"), imgs, **kw)
    if role == "latest_reminder":
        return mod.LatestReminderMessage(m["content"])
    calls = m.get("tool_calls")
    calls = None if calls is None else [mod.ToolCall(c["id"], c["name"], c["arguments"]) for c in calls]
    return mod.AssistantMessage(m["content"], m.get("reasoning_content"), calls, m.get("prefix", False))


def make_conversation(mod: Module, spec: Json) -> Any:
    kw = {
        k: spec[k]
        for k in (
            "thinking_mode",
            "tool_choice",
            "reasoning_effort",
            "response_format",
            "response_schema",
            "response_regex",
        )
        if k in spec
    }
    if "tools" in spec:
        kw["tools"] = [make_tool(mod, t) for t in spec["tools"]]
    msgs = spec.get("messages")
    return mod.Conversation(None if msgs is None else [make_message(mod, m) for m in msgs], **kw)


def make_parsing_options(mod: Module, spec: Json) -> Any:
    kw = {
        k: spec[k]
        for k in ("parse_tool_calls", "starts_in_tool_calls", "parse_json_output", "stop_sequences")
        if k in spec
    }
    if spec.get("thinking_initial_stage") is not None:
        kw["thinking_initial_stage"] = getattr(mod.ThinkingInitialStage, spec["thinking_initial_stage"])
    if "special_tokens" in spec:
        kw["special_tokens"] = mod.SpecialTokens(**spec["special_tokens"])
    return mod.ParsingOptions(**kw)


def make_chunk(mod: Module, c: Any) -> Any:
    chunk = mod.InferenceChunk
    if "text" in c:
        return chunk.text(c["text"], c["n"]) if "n" in c else chunk.text(c["text"])
    if "tokens" in c:
        lp = c.get("logprobs")
        if lp is None:
            return chunk.tokens(c["tokens"])
        return chunk.tokens(c["tokens"], [(a, [(i, b) for i, b in top]) for a, top in lp])
    if "ready" in c:
        r = c["ready"]
        kw = {}
        if "prompt_tokens" in r or "hit" in r:
            u = {}
            if "prompt_tokens" in r:
                u["prompt_tokens"] = r["prompt_tokens"]
            if "hit" in r:
                u["prompt_cache_hit_tokens"] = r["hit"]
            kw["prompt_usage"] = mod.PromptUsage(**u)
        if "fp" in r:
            kw["system_fingerprint"] = r["fp"]
        return chunk.ready(**kw)
    return chunk.finish(getattr(mod.InferenceFinishReason, c["finish"]))
