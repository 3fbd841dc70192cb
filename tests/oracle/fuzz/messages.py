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

    def messages(self) -> Json:
        ms, n = [], 0
        pending = []
        for _ in range(self.r.randint(1, 6)):
            if pending and not self.p(0.06):
                self.r.shuffle(pending)
                blocks = [
                    {
                        "type": "tool_result",
                        "tool_use_id": i,
                        "content": self.pick(self.text(), [{"type": "text", "text": self.text()}], None),
                    }
                    for i in pending
                ]
                blocks += self.msg_blocks("user") if self.p(0.4) else []
                ms.append({"role": "user", "content": blocks})
                pending = []
                continue
            pending = []
            k = self.r.randrange(10)
            if k < 5:
                ms.append(
                    {"role": "user", "content": self.text() or "x"}
                    if self.p(0.6)
                    else {"role": "user", "content": self.msg_blocks("user") or "y"}
                )
            elif k < 9:
                blocks = []
                if self.p(0.5):
                    blocks.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
                if self.p(0.7):
                    blocks.append({"type": "text", "text": self.text()})
                if self.p(0.5):
                    for _ in range(self.r.randint(1, 3)):
                        n += 1
                        i = f"t{n}"
                        blocks.append(
                            {
                                "type": "tool_use",
                                "id": i,
                                "name": self.r.choice(NAMES),
                                "input": {self.pick("a", "键"): self.value() for _ in range(self.r.randint(0, 2))},
                            }
                        )
                        pending.append(i)
                ms.append({"role": "assistant", "content": blocks or self.text()})
            else:
                ms.append({"role": "system", "content": self.text()})
        if pending and self.p(0.95):
            ms.append(
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": i, "content": self.text()} for i in pending],
                }
            )
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
            b["tools"] = [
                {
                    "name": x,
                    "input_schema": self.tool_schema(),
                    **({"description": self.text()} if self.p(0.5) else {}),
                    **({"defer_loading": True} if self.p(0.15) else {}),
                }
                for x in names
            ]
            if self.p(0.04):
                b["tools"].append({"type": "web_search_20250305", "name": "web_search"})
        self.common(b, names)
        if self.p(0.25):
            b["tool_choice"] = self.pick(
                {"type": "auto"},
                {"type": "any"},
                {"type": "none"},
                {"type": "tool", "name": self.r.choice(names or NAMES)},
            )
        if self.p(0.5):
            b["thinking"] = {
                "type": self.pick("enabled", "disabled", "adaptive"),
                **({"budget_tokens": 1024} if self.p(0.5) else {}),
            }
        if self.p(0.2):
            b["output_config"] = {"effort": self.pick("none", "low", "high", "max", None)}
        if self.p(0.15):
            b["stop_sequences"] = self.some((["STOP"], [], ["a", "你"]), ([""], ["x"] * 17))
        return b
