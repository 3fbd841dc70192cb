"""Random Messages bodies."""

from tests.oracle.fuzz.values import M4, M41, NAMES, PNG1, Values
from tests.oracle.outcome import Json


class MessagesBodies(Values):
    """Bodies that are mostly valid."""

    def msg_blocks(self, role: str) -> list[Json]:
        out = []
        for _ in range(self.r.randint(0, 3)):
            k = self.r.randrange(8)
            if k < 5:
                out.append({"type": "text", "text": self.text()})
            elif k < 7:
                out.append(
                    {
                        "type": "image",
                        "source": self.some(
                            (
                                {"type": "base64", "media_type": "image/png", "data": PNG1},
                                {"type": "url", "url": "https://e.com/a.png"},
                            ),
                            ({"type": "base64", "media_type": "image/png", "data": "@"},),
                        ),
                    }
                    if role == "user"
                    else {"type": "thinking", "thinking": self.text(), "signature": "s"}
                )
            else:
                out.append({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}})
        return out

    def tool_results(self, pending: list[str]) -> list[Json]:
        self.r.shuffle(pending)
        return [
            {
                "type": "tool_result",
                "tool_use_id": i,
                "content": self.pick(self.text(), [{"type": "text", "text": self.text()}], None),
            }
            for i in pending
        ]

    def assistant_blocks(self, pending: list[str], n: int) -> list[Json]:
        """Blocks of an answer; the IDs of its calls, counted on from `n`, go to `pending`."""
        blocks = []
        if self.p(0.5):
            blocks.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
        if self.p(0.7):
            blocks.append({"type": "text", "text": self.text()})
        if self.p(0.5):
            for _ in range(self.r.randint(1, 3)):
                pending.append(f"t{n + len(pending) + 1}")
                name = self.r.choice(NAMES)
                arguments = {self.pick("a", "键"): self.value() for _ in range(self.r.randint(0, 2))}
                blocks.append({"type": "tool_use", "id": pending[-1], "name": name, "input": arguments})
        return blocks

    def turns(self) -> list[Json]:
        """Messages in which most calls have their results."""
        ms, n = [], 0
        pending: list[str] = []
        for _ in range(self.r.randint(1, 6)):
            if pending and not self.p(0.06):
                blocks = self.tool_results(pending)
                blocks += self.msg_blocks("user") if self.p(0.4) else []
                ms.append({"role": "user", "content": blocks})
                pending = []
                continue
            pending = []
            k = self.r.randrange(10)
            if k < 5:
                content = (self.text() or "x") if self.p(0.6) else (self.msg_blocks("user") or "y")
                ms.append({"role": "user", "content": content})
            elif k < 9:
                blocks = self.assistant_blocks(pending, n)
                n += len(pending)
                ms.append({"role": "assistant", "content": blocks or self.text()})
            else:
                ms.append({"role": "system", "content": self.text()})
        if pending and self.p(0.95):
            results = [{"type": "tool_result", "tool_use_id": i, "content": self.text()} for i in pending]
            ms.append({"role": "user", "content": results})
        return ms

    def tool(self, name: str) -> Json:
        return {
            "name": name,
            "input_schema": self.tool_schema(),
            **({"description": self.text()} if self.p(0.5) else {}),
            **({"defer_loading": True} if self.p(0.15) else {}),
        }

    def messages(self) -> Json:
        ms = self.turns()
        b = {"model": self.pick(M41, M41, M4), "max_tokens": self.pick(1, 100, 400000), "messages": ms}
        if self.p(0.4):
            b["system"] = (
                self.text()
                if self.p(0.6)
                else [{"type": "text", "text": self.text()} for _ in range(self.r.randint(0, 3))]
            )
        names = []
        if self.p(0.45):
            names = self.names()
            b["tools"] = [self.tool(name) for name in names]
            if self.p(0.04):
                b["tools"].append({"type": "web_search_20250305", "name": "web_search"})
        self.common(b, names)
        if self.p(0.25):
            named = {"type": "tool", "name": self.r.choice(names or NAMES)}
            b["tool_choice"] = self.pick({"type": "auto"}, {"type": "any"}, {"type": "none"}, named)
        if self.p(0.5):
            budget = {"budget_tokens": 1024}
            kind = self.pick("enabled", "disabled", "adaptive")
            b["thinking"] = {"type": kind, **(budget if self.p(0.5) else {})}
        if self.p(0.2):
            b["output_config"] = {"effort": self.pick("none", "low", "high", "max", None)}
        if self.p(0.15):
            b["stop_sequences"] = self.some((["STOP"], [], ["a", "你"]), ([""], ["x"] * 17))
        return b
