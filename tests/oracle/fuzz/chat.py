"""Random Chat Completions bodies."""

from tests.oracle.fuzz.values import DATA_PNG, M4, M41, NAMES, Values
from tests.oracle.outcome import Json


class ChatBodies(Values):
    """Bodies that are mostly valid."""

    def chat_blocks(self) -> list[Json]:
        out = []
        for _ in range(self.r.randint(0, 3)):
            k = self.r.randrange(8)
            if k < 5:
                out.append({"type": "text", "text": self.text()})
            elif k < 7:
                iu = {
                    "url": self.some(
                        (DATA_PNG, "https://e.com/a.png", "http://e.com/b.jpg"),
                        ("ftp://x", "data:text/plain;base64,AAAA"),
                    )
                }
                if self.p(0.4):
                    iu["detail"] = self.pick("low", "high", "auto", "original", None)
                out.append({"type": "image_url", "image_url": iu})
            else:
                out.append(
                    self.some(
                        ({"type": "file", "file_data": DATA_PNG},),
                        ({"type": "file", "file_id": "f"}, {"type": "bogus"}),
                    )
                )
        return out

    def chat_messages(self) -> list[Json]:
        ms, open_ids, n = [], [], 0
        if self.p(0.4):
            ms.append({"role": "system", "content": self.content(self.chat_blocks)})
        for _ in range(self.r.randint(1, 7)):
            k = self.r.randrange(12)
            if open_ids and not self.p(0.08):
                i = open_ids.pop(self.r.randrange(len(open_ids)))
                ms.append({"role": "tool", "tool_call_id": i, "content": self.content(self.chat_blocks)})
            elif k < 5:
                ms.append({"role": "user", "content": self.content(self.chat_blocks)})
            elif k < 8:
                m = {"role": "assistant", "content": self.text()}
                if self.p(0.5):
                    m["reasoning_content"] = self.text()
                ms.append(m)
            elif k < 10:
                calls = []
                for _ in range(self.r.randint(1, 3)):
                    n += 1
                    i = self.pick(f"c{n}", f"c{n}", f"c{n}", "dup")
                    calls.append(
                        {
                            "id": i,
                            "type": "function",
                            "function": {"name": self.r.choice(NAMES), "arguments": self.args()},
                        }
                    )
                open_ids = [c["id"] for c in calls]
                m = {"role": "assistant", "content": self.pick("", None, self.text()), "tool_calls": calls}
                if self.p(0.5):
                    m["reasoning_content"] = self.text()
                ms.append(m)
            elif k == 10:
                ms.append({"role": "latest_reminder", "content": self.text()})
            else:
                ms.append({"role": self.some(("system",), ("tool", "developer")), "content": self.text()})
        while open_ids and self.p(0.95):
            ms.append(
                {"role": "tool", "tool_call_id": open_ids.pop(self.r.randrange(len(open_ids))), "content": self.text()}
            )
        if self.p(0.06):
            ms.append(
                {
                    "role": "assistant",
                    "content": self.text(),
                    "prefix": True,
                    **({"reasoning_content": self.text()} if self.p(0.5) else {}),
                }
            )
        return ms

    def chat_tool(self, name: str) -> Json:
        f = {"name": name}
        if self.p(0.6):
            f["description"] = self.text()
        if self.p(0.7):
            f["parameters"] = self.tool_schema()
        if self.p(0.2):
            f["strict"] = self.pick(True, False, None)
        return {"type": "function", "function": f}

    def chat(self) -> Json:
        b = {"model": self.pick(M41, M41, M4), "messages": self.chat_messages()}
        names = []
        if self.p(0.45):
            names = self.names()
            b["tools"] = [self.chat_tool(n) for n in names]
        self.common(b, names)
        if self.p(0.3):
            b["tool_choice"] = self.pick(
                "auto",
                "none",
                "required",
                None,
                {"type": "function", "function": {"name": self.r.choice(names or NAMES)}},
            )
        if self.p(0.5):
            b["thinking"] = {"type": self.pick("enabled", "disabled", "disabled", "adaptive")}
        if self.p(0.3):
            b["reasoning_effort"] = self.pick("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
        if self.p(0.25):
            b["response_format"] = self.pick(
                {"type": "text"},
                {"type": "json_object"},
                {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": self.schema(), "strict": self.pick(True, False)},
                },
                {"type": "regex", "regex": "a+"},
            )
        if self.p(0.2):
            b["max_tokens"] = self.some((1, 100, 393216), (393217, 0))
        if self.p(0.15):
            b["stop"] = self.some(("STOP", ["a", "\n"], [], None), ([""], ["x"] * 17, ""))
        if self.p(0.1):
            b["logprobs"] = self.pick(True, False)
            if self.p(0.5):
                b["top_logprobs"] = self.some((0, 5), (21,))
        if b.get("stream") and self.p(0.5):
            b["stream_options"] = self.pick({"include_usage": True}, {"include_usage": False}, {})
        for k, vs in (
            ("n", (1, 1, 2)),
            ("seed", (0, 5, 7, 2**63)),
            ("presence_penalty", (0, 1, 3)),
            ("frequency_penalty", (1, 2, -3)),
        ):
            if self.p(0.05):
                b[k] = self.r.choice(vs)
        return b
