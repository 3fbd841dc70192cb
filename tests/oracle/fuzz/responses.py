"""Random Responses bodies."""

from typing import Any

from tests.oracle.fuzz.values import DATA_PNG, M4, M41, NAMES, Values
from tests.oracle.outcome import Json


class ResponsesBodies(Values):
    """Bodies that are mostly valid."""

    def resp_blocks(self) -> list[Json]:
        out = []
        for _ in range(self.r.randint(0, 3)):
            k = self.r.randrange(7)
            if k < 5:
                out.append({"type": self.pick("input_text", "input_text", "output_text"), "text": self.text()})
            elif k == 5:
                out.append(
                    {
                        "type": "input_image",
                        "image_url": self.some((DATA_PNG, "https://e.com/a.png"), ("zz",)),
                        **({"detail": self.pick("low", "auto")} if self.p(0.4) else {}),
                    }
                )
            else:
                out.append({"type": "input_file", "file_data": DATA_PNG})
        return out

    def resp_call(self, call_id: str) -> Json:
        if self.p(0.2):
            return {"type": "custom_tool_call", "call_id": call_id, "name": "apply_patch", "input": self.text()}
        call = {"type": "function_call", "call_id": call_id, "name": self.r.choice(NAMES), "arguments": self.args()}
        return call | ({"namespace": "crm"} if self.p(0.2) else {})

    def resp_item(self, k: int) -> Json:
        """An item that is no call and no result; `k` says of which kind."""
        if k < 4:
            role = self.pick("user", "user", "system", "developer")
            return {"type": "message", "role": role, "content": self.content(self.resp_blocks)}
        if k < 6:
            content = self.content(lambda: [{"type": "output_text", "text": self.text()}])
            return {"role": "assistant", "content": content}
        if k < 8:
            texts = [{"type": "reasoning_text", "text": self.text()} for _ in range(self.r.randint(0, 2))]
            return {"type": "reasoning", "summary": [], "content": texts}
        others = ({"type": "web_search_call", "id": "w"}, {"type": "item_reference", "id": "x"}, {"type": "whatever"})
        return self.pick(*others)

    def resp_input(self) -> Any:
        if self.p(0.15):
            return self.text()
        items, open_calls, n = [], [], 0
        for _ in range(self.r.randint(1, 8)):
            k = self.r.randrange(12)
            if open_calls and not self.p(0.1):
                c = open_calls.pop(self.r.randrange(len(open_calls)))
                out = self.text() if self.p(0.8) else [{"type": "input_text", "text": self.text()}]
                items.append({"type": c["type"] + "_output", "call_id": c["call_id"], "output": out})
            elif 8 <= k < 11:
                for _ in range(self.r.randint(1, 2)):
                    n += 1
                    items.append(self.resp_call(f"c{n}"))
                    open_calls.append(items[-1])
            else:
                items.append(self.resp_item(k))
        while open_calls and self.p(0.95):
            c = open_calls.pop(self.r.randrange(len(open_calls)))
            items.append({"type": c["type"] + "_output", "call_id": c["call_id"], "output": self.text()})
        return items

    def resp_fn(self, n: Any) -> Json:
        f = {"type": "function", "name": n}
        if self.p(0.6):
            f["description"] = self.text()
        if self.p(0.7):
            f["parameters"] = self.tool_schema()
        if self.p(0.15):
            f["strict"] = self.pick(True, False, None)
        return f

    def responses(self) -> Json:
        b = {"model": self.pick(M41, M41, M4)}
        if self.p(0.97):
            b["input"] = self.resp_input()
        names = []
        if self.p(0.5):
            names = self.names()
            b["tools"] = [self.resp_fn(n) for n in names if n not in ("apply_patch",)]
            if self.p(0.3):
                b["tools"].append(
                    {
                        "type": "namespace",
                        "name": self.pick("crm", "a_", "erp"),
                        "description": self.pick("d", None, ""),
                        "tools": [self.resp_fn(n) for n in self.r.sample(["get", "_set", "f"], 2)],
                    }
                )
            if self.p(0.2):
                b["tools"].append(
                    self.pick(
                        {"type": "custom", "name": "apply_patch"},
                        {"type": "web_search"},
                        {"type": "tool_search", "execution": "client"},
                        {"type": "mcp"},
                        {"type": "custom", "name": "zz"},
                    )
                )
        self.common(b, names)
        if self.p(0.3):
            b["instructions"] = self.text()
        if self.p(0.25):
            b["tool_choice"] = self.pick(
                "auto",
                "none",
                "required",
                {"type": "function", "name": self.r.choice(names or NAMES)},
                {"type": "web_search"},
                {"type": "custom", "name": "apply_patch"},
            )
        if self.p(0.5):
            b["reasoning"] = {"effort": self.pick("none", "none", "low", "high", "max", None)}
        if self.p(0.2):
            b["text"] = {
                "format": self.pick(
                    {"type": "text"},
                    {"type": "json_object"},
                    {"type": "json_schema", "name": "n", "schema": self.schema(), "strict": self.pick(True, False)},
                )
            }
        if self.p(0.15):
            b["max_output_tokens"] = self.some((1, 500), (393217,))
        if self.p(0.1):
            b["top_logprobs"] = self.some((0, 3), (21,))
        if self.p(0.1):
            b["user"] = "u"
        return b
