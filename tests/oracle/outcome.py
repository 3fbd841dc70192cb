"""What one case led to, as JSON data.

Every call that may fail runs in `guard`, which records the class of the exception, its message and the stage where it
was raised, so that an outcome always says how far the implementation got.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Module: TypeAlias = Any  # deepseek_recipe, or a module with the same public names


CALL_ID = re.compile(r"call_(\d{2,})_(ET_)?([A-Za-z0-9]{20}[0-9]{4})")
RAW_TIME = re.compile(r'"(created|created_at|completed_at)":(\d{9,11})\b')
TIME_KEYS = ("created", "created_at", "completed_at")


class CaseError(Exception):
    """Raised with an outcome when a stage of the case failed."""

    def __init__(self, outcome: Json) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def exc_record(error: BaseException, stage: str) -> Json:
    rec = {"type": type(error).__name__, "message": str(error)}
    if rec["type"] == "ConversionError":
        rec["status_code"] = error.status_code
        rec["body"] = parse_json_text(error.body)
        if not isinstance(error.body, str):
            rec["body_type"] = type(error.body).__name__
        if rec["message"] == error.body:
            rec["message"] = "<body>"
    elif rec["type"] == "ImageError":
        rec["kind"] = error.kind
        rec["is_retryable"] = error.is_retryable
    rec["stage"] = stage
    if rec["type"] == "TypeError":
        # Argument errors of native classes carry the class path; keep the class only.
        rec["message"] = "<TypeError>"
    return rec


def guard(stage: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return func(*args, **kwargs)
    except CaseError:
        raise
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # native panics derive from BaseException
        raise CaseError({"error": exc_record(error, stage)}) from None


def parse_json_text(text: str) -> Any:
    """Parsed JSON when `text` is canonical compact JSON, else parsed plus raw."""
    if not isinstance(text, str):
        return {"$not_str": type(text).__name__}
    try:
        value = json.loads(text)
    except ValueError:
        return {"$raw": text}
    if json.dumps(value, ensure_ascii=False, separators=(",", ":")) != text:
        return {"$json": value, "$raw": text}
    return value


class Normalizer:
    """Replaces random call ids and wall-clock times, keeping their structure."""

    def __init__(self) -> None:
        self.ids = {}
        self.now = time.time()

    def text(self, s: Any) -> Any:
        def sub(m: Any) -> Any:
            n = self.ids.setdefault(m.group(3), len(self.ids) + 1)
            return f"call_{m.group(1)}_{m.group(2) or ''}<random24:{n}>"

        def sub_time(m: Any) -> Any:
            return f'"{m.group(1)}":"<now>"' if abs(int(m.group(2)) - self.now) < 86400 else m.group(0)

        return CALL_ID.sub(sub, RAW_TIME.sub(sub_time, s))

    def walk(self, v: Any) -> Any:
        if isinstance(v, str):
            return self.text(v)
        if isinstance(v, list):
            return [self.walk(x) for x in v]
        if isinstance(v, dict):
            out = {}
            for k, x in v.items():
                if k in TIME_KEYS and type(x) is int and abs(x - self.now) < 86400:
                    out[k] = "<now>"
                else:
                    out[self.text(k)] = self.walk(x)
            return out
        return v


def lean(record: Json, defaults: Json) -> Json:
    """Leave out the entries that have exactly their default value, to keep outcomes short."""
    out = {}
    for k, v in record.items():
        if k in defaults and type(v) is type(defaults[k]) and v == defaults[k]:
            continue
        out[k] = v
    return out


CRASH_TYPES = {
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "NotImplementedError",
    "NameError",
    "UnboundLocalError",
    "KeyError",
    "IndexError",
    "AssertionError",
    "RecursionError",
    "TypeError",
    "ZeroDivisionError",
    "SystemError",
    "PanicException",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "StopIteration",
    "Timeout",
    "ProcessDied",
}
# Never a legitimate outcome, even when both sides agree.
ALWAYS_CRASH = CRASH_TYPES - {
    "TypeError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "KeyError",
    "IndexError",
    "PanicException",
}
