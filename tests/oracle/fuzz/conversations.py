"""Random conversations, constructed directly."""

from tests.oracle.fuzz.values import NAMES, Values
from tests.oracle.outcome import Json

IDS = ["1", "2", "3", "x"]
SPECIAL_NAMES = (
    "bos user assistant eos dsml image ref ref_end system thinking_start thinking_end latest_reminder".split()  # noqa: SIM905
)


class Conversations(Values):
    """Specifications for `tests.oracle.build.make_conversation`."""

    def direct_tool(self) -> Json:
        t = {"name": self.r.choice(NAMES + ['we"ird'])}
        if self.p(0.6):
            t["description"] = self.text()
        if self.p(0.6):
            t["parameters"] = self.value()
        if self.p(0.2):
            t["strict"] = self.pick(True, False)
        if self.p(0.2):
            t["defer_loading"] = True
        return t

    def images(self, m: Json) -> Json:
        if self.p(0.2):
            m["images"] = [
                {"kind": self.pick("url", "data_url"), "value": f"http://e/{i}", "detail": self.pick("low", "high")}
                for i in range(self.r.randint(0, 2))
            ]
            m["content"] += "<｜image｜>" * self.r.randint(0, 3) + self.text(2)
            if self.p(0.2):
                m["image_token"] = self.pick("<｜image｜>", "a", "[X]")
        return m

    def direct_message(self, k: int) -> Json:
        """A message; `k` says of which role."""
        if k < 3:
            return self.images({"role": "user", "content": self.text()})
        if k < 5:
            m: Json = {"role": "assistant", "content": self.text(), "prefix": self.p(0.1)}
            if self.p(0.5):
                m["reasoning_content"] = self.text()
            if self.p(0.5):
                m["tool_calls"] = [
                    {"id": i, "name": self.r.choice(NAMES), "arguments": self.args()}
                    for i in self.r.sample(IDS, self.r.randint(0, 3))
                ]
            return m
        if k < 8:
            return self.images({"role": "tool", "content": self.text(), "tool_call_id": self.pick(None, *IDS)})
        if k == 8:
            m = self.images({"role": "system", "content": self.text()})
            if self.p(0.3):
                m["tools"] = [self.direct_tool() for _ in range(self.r.randint(0, 2))]
            return m
        return {"role": "latest_reminder", "content": self.text()}

    def direct(self) -> Json:
        ms = [self.direct_message(self.r.randrange(10)) for _ in range(self.r.randint(0, 8))]
        c = {"messages": ms, "thinking_mode": self.p(0.6)}
        if self.p(0.5):
            c["tools"] = [self.direct_tool() for _ in range(self.r.randint(0, 3))]
        if self.p(0.4):
            c["tool_choice"] = self.pick("auto", "none", "required")
        if self.p(0.5):
            c["reasoning_effort"] = self.pick("low", "high", "xhigh", "max")
        k = self.r.randrange(6)
        if k == 0:
            c["response_format"] = "json_object"
        elif k == 1:
            c["response_schema"] = self.value()
        elif k == 2:
            c["response_regex"] = "a+"
        spec = {"conversation": c}
        if self.p(0.2):
            spec["special_tokens"] = {name: f"[{name}]" for name in self.r.sample(SPECIAL_NAMES, 3)}
        return spec
