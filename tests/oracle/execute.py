"""Runs one case against one implementation; only the public names of the module are used."""

import json
import re
from typing import Any

from tests.oracle.conversions import run_convert, run_direct, run_encode, run_max_tokens, run_render
from tests.oracle.fetches import run_fetch
from tests.oracle.images import run_image
from tests.oracle.outcome import CaseError, Json, Module, exc_record
from tests.oracle.streams import run_stream, run_sweep
from tests.oracle.surface import run_surface

KINDS = {
    "convert": run_convert,
    "render": run_render,
    "encode": run_encode,
    "direct": run_direct,
    "max_tokens": run_max_tokens,
    "stream": run_stream,
    "sweep": run_sweep,
    "image": run_image,
    "fetch": run_fetch,
    "surface": run_surface,
}


CALL_ITEM = re.compile(r'"type"\s*:\s*"(?:function|custom_tool|tool_search)_call"')
MISSING_OUTPUT = re.compile(r"No tool output found for tool call .*\.$")


def mask_unordered(case: Json, outcome: Json) -> Any:
    """The Responses error for calls without output names an arbitrary one of them."""
    spec = case["input"]
    if spec.get("protocol") != "responses" or "body" not in spec or "error" not in outcome:
        return outcome
    if len(CALL_ITEM.findall(json.dumps(spec["body"]).replace('\\"', '"'))) < 2:
        return outcome

    def walk(v: Any) -> Any:
        if isinstance(v, str):
            return MISSING_OUTPUT.sub("No tool output found for tool call <one of them>.", v)
        if isinstance(v, dict):
            return {k: walk(x) for k, x in v.items()}
        return v

    return dict(outcome, error=walk(outcome["error"]))


def run_case(mod: Module, case: Json) -> Json:
    try:
        outcome = KINDS[case["kind"]](mod, case)
    except CaseError as e:
        outcome = e.outcome
    except Exception as e:
        outcome = {"error": exc_record(e, "harness")}
    return mask_unordered(case, outcome)
