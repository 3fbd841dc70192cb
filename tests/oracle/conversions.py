"""Cases about requests and conversations: convert, render, encode, direct, max_tokens."""

from typing import Any

from tests.oracle.build import (
    body_value,
    convert_request,
    make_conversation,
    make_options,
    model_version,
    request_class,
)
from tests.oracle.observe import VERSIONS, obs_conversation, obs_converted, obs_rendered, version_name
from tests.oracle.outcome import CRASH_TYPES, CaseError, Json, Module, exc_record, guard, lean
from tests.oracle.tokenizer_files import get_tokenizer


def encoding(mod: Module, version: str, special: Json | None = None) -> Any:
    e = {"DeepseekV4Pro": "DeepseekV4Encoding", "DeepseekV41Flash": "DeepseekV41Encoding"}[version]
    enc = getattr(mod, e)()
    if special:
        enc = enc.with_special_tokens(mod.SpecialTokens(**special))
    return enc


def run_convert(mod: Module, case: Json) -> Json:
    spec = case["input"]
    request, converted = None, None
    options = guard("options", make_options, mod, spec.get("options"))
    cls = request_class(mod, spec["protocol"])
    request = guard("parse", cls, body_value(spec["body"]))
    out = {"model": guard("model", lambda: request.model)}
    if spec["protocol"] == "responses":
        try:
            out["namespace_tool_map"] = {
                k: list(v) for k, v in guard("namespace_tool_map", request.namespace_tool_map, options).items()
            }
        except CaseError as e:
            out["namespace_tool_map"] = e.outcome
        echo = guard("echo", request.echo)
        out["echo"] = lean(
            {
                k: getattr(echo, k)
                for k in ("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "user")
            },
            {
                "instructions": None,
                "max_output_tokens": None,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_logprobs": 0,
                "user": None,
            },
        )
    try:
        converted = guard("convert", request.convert, options)
    except CaseError as e:
        out.update(e.outcome)
        return out
    out["converted"] = guard("observe", obs_converted, mod, converted)
    return out


def run_render(mod: Module, case: Json) -> Json:
    spec = case["input"]
    _, converted = convert_request(mod, spec)
    version = guard("observe", version_name, mod, converted.model_version)
    special = (spec.get("options") or {}).get("special_tokens")
    enc = guard("encoding", encoding, mod, version, special)
    p = guard("render", enc.render_conversation, converted.conversation)
    return guard("observe", obs_rendered, mod, p)


def run_encode(mod: Module, case: Json) -> Json:
    spec = case["input"]
    tok = guard("tokenizer", get_tokenizer, mod, spec["tokenizer"])
    if "text" in spec:
        return {"ids": list(guard("encode", tok.encode, spec["text"]))}
    if "conversation" in spec:
        conv = guard("construct", make_conversation, mod, spec["conversation"])
        version = spec["version"]
    else:
        _, converted = convert_request(mod, spec)
        version = guard("observe", version_name, mod, converted.model_version)
        conv = converted.conversation
    enc = guard("encoding", encoding, mod, version, spec.get("encoding_special_tokens"))
    if not spec.get("no_tokenizer"):
        enc = guard("encoding", enc.with_tokenizer, tok)
    return {"ids": list(guard("encode", enc.encode, conv))}


def run_direct(mod: Module, case: Json) -> Json:
    spec = case["input"]
    conv = guard("construct", make_conversation, mod, spec["conversation"])
    out = {"conversation": guard("observe", obs_conversation, mod, conv)}
    for version in spec.get("versions", list(VERSIONS)):
        enc = guard("encoding", encoding, mod, version, spec.get("special_tokens"))
        p = guard("render", enc.render_conversation, conv)
        out[version] = guard("observe", obs_rendered, mod, p)
    return out


def run_max_tokens(mod: Module, case: Json) -> Json:
    spec = case["input"]
    if "conversation" in spec:
        conv = guard("construct", make_conversation, mod, spec["conversation"])
        req = guard("construct", mod.ConversationRequest, conv, model_version(mod, spec["version"]))
    else:
        _, req = convert_request(mod, spec)
    out = []
    for prompt, limit in spec["grid"]:
        try:
            out.append([prompt, limit, req.resolve_max_tokens(prompt, limit)])
        except Exception as e:
            out.append([prompt, limit, exc_record(e, "resolve")])
    if out and all(isinstance(x[2], dict) and x[2]["type"] in CRASH_TYPES for x in out):
        return {"error": out[0][2]}
    return {"grid": out}
