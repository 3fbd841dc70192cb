"""Objects of an implementation as JSON data; attributes that have their default value are read but left out."""

import base64
from collections.abc import Iterable
from typing import Any

from tests.oracle.outcome import Json, Module, lean

TOKEN_NAMES = (
    *("Bos", "Eos", "ThinkingStart", "ThinkingEnd", "System", "User", "Assistant", "LatestReminder", "Dsml", "Image"),
    *("Ref", "RefEnd", "Box", "BoxEnd", "Point", "PointEnd", "Polygon", "PolygonEnd"),
)


def enum_name(value: Any, cls: Any, names: Iterable[str]) -> Any:
    if value is None:
        return None
    for n in names:
        if value == getattr(cls, n):
            return n
    return {"$unknown_enum": repr(value)}


def obs_image_source(mod: Module, s: Any) -> Json:
    kinds = [n for n in ("DataUrlImageSource", "UrlImageSource", "BytesImageSource") if isinstance(s, getattr(mod, n))]
    data = s.data
    want = {"data_url": ["DataUrlImageSource"], "url": ["UrlImageSource"], "bytes": ["BytesImageSource"]}
    return lean(
        {
            "class": kinds,
            "base": isinstance(s, mod.ImageSource),
            "kind": s.kind,
            "detail": s.detail,
            "data_url": s.data_url,
            "url": s.url,
            "data": None if data is None else base64.b64encode(bytes(data)).decode(),
            "path": s.path,
        },
        {"class": want.get(s.kind), "base": True, "data_url": None, "url": None, "data": None},
    )


def obs_tool_call(c: Any) -> Json:
    return {"id": c.id, "name": c.name, "arguments": c.arguments}


def obs_tool(t: Any) -> Json:
    return lean(
        {
            "name": t.name,
            "description": t.description,
            "parameters": t.parameters,
            "strict": t.strict,
            "defer_loading": t.defer_loading,
        },
        {"description": None, "strict": None, "defer_loading": False},
    )


def obs_message(mod: Module, m: Any) -> Json:
    classes = [
        n
        for n in ("SystemMessage", "UserMessage", "AssistantMessage", "ToolMessage", "LatestReminderMessage")
        if isinstance(m, getattr(mod, n))
    ]
    out = {
        "class": classes,
        "role": m.role,
        "content": m.content,
        "reasoning_content": m.reasoning_content,
        "tool_calls": None if m.tool_calls is None else [obs_tool_call(c) for c in m.tool_calls],
        "tool_call_id": m.tool_call_id,
        "image_sources": [obs_image_source(mod, s) for s in m.image_sources],
        "prefix": m.prefix,
    }
    if classes == ["SystemMessage"]:
        out["tools"] = None if m.tools is None else [obs_tool(t) for t in m.tools]
    return lean(
        out,
        {
            "class": [CLASS_OF_ROLE.get(m.role)],
            "reasoning_content": None,
            "tool_calls": None,
            "tool_call_id": None,
            "image_sources": [],
            "prefix": False,
            "tools": None,
        },
    )


CLASS_OF_ROLE = {
    "system": "SystemMessage",
    "user": "UserMessage",
    "assistant": "AssistantMessage",
    "tool": "ToolMessage",
    "latest_reminder": "LatestReminderMessage",
}


def obs_conversation(mod: Module, c: Any) -> Json:
    return lean(
        {
            "messages": [obs_message(mod, m) for m in c.messages],
            "thinking_mode": c.thinking_mode,
            "tools": [obs_tool(t) for t in c.tools],
            "tool_choice": c.tool_choice,
            "reasoning_effort": c.reasoning_effort,
            "response_format": c.response_format,
            "response_schema": c.response_schema,
            "response_regex": c.response_regex,
        },
        {
            "tools": [],
            "tool_choice": "auto",
            "response_format": "text",
            "response_schema": None,
            "response_regex": None,
        },
    )


def obs_special_tokens(mod: Module, t: Any) -> Json:
    """Spellings that differ from the defaults."""
    out = {}
    for n in TOKEN_NAMES:
        k = getattr(mod.SpecialToken, n)
        if t.token(k) != k.default_str():
            out[n] = t.token(k)
    return out


STAGES = ("ReasoningStart", "ReasoningContinuation", "ContentContinuation")


def obs_parsing(mod: Module, p: Any) -> Json:
    return lean(
        {
            "parse_tool_calls": p.parse_tool_calls,
            "starts_in_tool_calls": p.starts_in_tool_calls,
            "parse_json_output": p.parse_json_output,
            "thinking_initial_stage": enum_name(p.thinking_initial_stage, mod.ThinkingInitialStage, STAGES),
            "stop_sequences": list(p.stop_sequences),
            "special_tokens": obs_special_tokens(mod, p.special_tokens),
        },
        {"starts_in_tool_calls": False, "parse_json_output": False, "stop_sequences": [], "special_tokens": {}},
    )


def obs_inference(mod: Module, o: Any) -> Json:
    c = o.output_constraint
    return lean(
        {
            "max_tokens": o.max_tokens,
            "temperature": o.temperature,
            "top_p": o.top_p,
            "logprobs": o.logprobs,
            "top_logprobs": o.top_logprobs,
            "seed": o.seed,
            "output_constraint": None if c is None else {"kind": c.kind, "schema": c.schema},
        },
        {"max_tokens": None, "logprobs": False, "top_logprobs": None, "seed": None, "output_constraint": None},
    )


VERSIONS = ("DeepseekV4Pro", "DeepseekV41Flash")


def version_name(mod: Module, v: Any) -> Any:
    return enum_name(v, mod.ModelVersion, VERSIONS)


def obs_converted(mod: Module, r: Any) -> Json:
    return {
        "conversation": obs_conversation(mod, r.conversation),
        "inference_options": obs_inference(mod, r.inference_options),
        "parsing_options": obs_parsing(mod, r.parsing_options),
        "model_version": version_name(mod, r.model_version),
        "stream": r.stream,
    }


def obs_rendered(mod: Module, p: Any) -> Json:
    return lean(
        {
            "prompt": p.prompt,
            "special_ranges": [list(x) for x in p.special_ranges],
            "image_sources": [obs_image_source(mod, s) for s in p.image_sources],
        },
        {"image_sources": []},
    )
