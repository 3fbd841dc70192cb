"""Random values that all kinds of cases are made of: texts full of markers, JSON, schemas, tool names."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.oracle.outcome import Json

M41 = "DeepSeek-V4.1-Flash"
M4 = "DeepSeek-V4-Pro"
D = "\uff5cDSML\uff5c"
WORDS = [
    "hello",
    "json",
    "你好",
    "😀",
    "a",
    "",
    " ",
    "\n",
    "\n\n",
    "<｜User｜>",
    "<｜Assistant｜>",
    "</think>",
    "<think>",
    D,
    "<｜image｜>",
    "<｜ref｜>x<｜/ref｜>",
    "<｜box｜>[[1,2]]<｜/box｜>",
    '"q"',
    "\\",
    "\t",
    "{",
    "}",
    "STOP",
    "e\u0301",
    "\u0000",
    "<tool_result>",
    "x-anthropic-billing-header: a",
    "<｜end▁of▁sentence｜>",
    "<｜System｜>",
    "[Unsupported Image]",
    "the quick brown fox",
    "JSON",
]
NAMES = ["f", "g", "get_weather", "a-b", "apply_patch", "tool_search", "crm__get"]
PNG1 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
DATA_PNG = "data:image/png;base64," + PNG1
JUNK = [None, True, False, 0, 1, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, [None]]


class Values:
    """A seeded source of values; every draw comes from `rng`, so that a seed gives the same case everywhere."""

    def __init__(self, rng: random.Random) -> None:
        self.r = rng

    def p(self, q: float) -> bool:
        return self.r.random() < q

    def pick(self, *a: Any) -> Any:
        return self.r.choice(a)

    def some(self, good: Any, bad: Any) -> Any:
        """Mostly a valid value, sometimes an invalid one."""
        return self.r.choice(bad if self.p(0.07) else good)

    def text(self, n: int = 4) -> str:
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randint(0, n)))

    def value(self, depth: int = 2) -> Any:
        k = self.r.randrange(9 if depth else 6)
        if k == 0:
            return self.pick(None, True, False)
        if k == 1:
            return self.pick(0, 1, -7, 12345678901, 2**63, -(2**63))
        if k == 2:
            return self.pick(0.5, 1.0, -0.0, 1e-7, 1e21, 123.456)
        if k < 6:
            return self.text(2)
        if k == 6:
            return [self.value(depth - 1) for _ in range(self.r.randint(0, 3))]
        return {self.pick("a", "b", "z", "键", "x y", '"'): self.value(depth - 1) for _ in range(self.r.randint(0, 3))}

    def args(self) -> str:
        if self.p(0.12):
            return self.pick("", "nope", "[]", "null", "5", '{"a":1} x', '"s"', "{")
        v = {self.pick("city", "n", "a b", "", "键", "<｜User｜>"): self.value() for _ in range(self.r.randint(0, 3))}
        return json.dumps(v, ensure_ascii=self.p(0.3), separators=self.pick((",", ":"), (", ", ": ")))

    def schema(self, depth: int = 2) -> Any:
        k = self.r.randrange(10)
        if depth == 0 or k < 3:
            s = {"type": self.pick("string", "number", "integer", "boolean", "null")}
            if self.p(0.3):
                s["description"] = self.text(2)
            if s["type"] == "string" and self.p(0.3):
                s[self.pick("enum")] = ["x", "y"]
            if s["type"] in ("number", "integer") and self.p(0.3):
                s["minimum"] = 1
            return s
        if k == 3:
            return {"type": "array", "items": self.schema(depth - 1)}
        if k == 4:
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.r.randint(1, 2))]}
        if k == 5 and self.p(0.3):
            return self.pick({}, {"type": "bogus"}, {"enum": ["a"]}, {"type": ["string", "null"]}, True, {"$ref": "#"})
        s = {
            "type": "object",
            "properties": {
                n: self.schema(depth - 1) for n in self.r.sample(["a", "b", "c", "d"], self.r.randint(0, 3))
            },
        }
        if self.p(0.4):
            s["required"] = self.r.sample(list(s["properties"]), self.r.randint(0, len(s["properties"])))
        if self.p(0.25):
            s["additionalProperties"] = self.pick(False, True)
        return s

    def tool_schema(self) -> Any:
        if self.p(0.1):
            return self.schema()
        return {
            "type": "object",
            "properties": {n: self.schema(1) for n in self.r.sample(["a", "b", "city"], self.r.randint(0, 2))},
        }

    def content(self, blocks: Callable[[], Any]) -> Any:
        return self.text() if self.p(0.7) else blocks()

    def names(self) -> list[str]:
        ns = self.r.sample(NAMES, self.r.randint(1, 3))
        if self.p(0.04):
            ns.append(self.pick("", "a b", ns[0], "n" * 129))
        return ns

    def common(self, b: Json, names: list[str]) -> None:
        if self.p(0.2):
            b["temperature"] = self.some((0, 0.3, 1, 2, None), (2.5, -1))
        if self.p(0.2):
            b["top_p"] = self.some((0.1, 0.95, 0.97, 1, None), (0, 1.1))
        if self.p(0.2):
            b["stream"] = self.pick(True, False, None)
