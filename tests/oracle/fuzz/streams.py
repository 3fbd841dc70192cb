"""Random model outputs: reasoning, text, tool calls and JSON, damaged now and then, cut anywhere."""

import json

from tests.oracle.fuzz.values import D, Values
from tests.oracle.outcome import Json

SPECIALS = {
    "</think>": 303,
    "<think>": 302,
    D: 308,
    "<｜User｜>": 305,
    "<｜image｜>": 309,
    "<｜end▁of▁sentence｜>": 301,
}
"""Tokens of the tiny tokenizer."""


class Streams(Values):
    """Chunks of text or of tokens of the tiny tokenizer."""

    def dsml(self) -> str:
        sp, name = self.pick((" ", "calls"), (" ", "calls"), ("", "tool_calls"))
        out = self.pick("\n\n", "\n\n", "", "\n") + f"<{D}{sp}{name}>\n"
        for _ in range(self.r.randint(0, 2) if self.p(0.9) else 3):
            out += f'<{D}{sp}invoke name="{self.pick("f", "g", "apply_patch", "crm::get", "")}">\n'
            for _ in range(self.r.randint(0, 3)):
                s = self.pick("true", "true", "false", "maybe" if self.p(0.2) else "true")
                v = self.text(3) if s != "false" else json.dumps(self.value(1), ensure_ascii=False)
                key = self.pick("a", "city", "input", "x y", "键", "")
                out += f'<{D}{sp}parameter name="{key}" string="{s}">{v}</{D}{sp}parameter>\n'
            out += f"</{D}{sp}invoke>\n"
        out += f"</{D}{sp}{name}>"
        if self.p(0.15) and len(out) > 8:  # damage: drop or repeat a short piece
            i = self.r.randrange(len(out) - 4)
            j = i + self.r.randint(1, 4)
            out = out[:i] + (out[j:] if self.p(0.6) else out[i:j] + out[i:])
        return out

    def output(self, thinking: bool) -> str:
        out = ""
        if thinking:
            out += (
                self.pick("", "\n", "\n\n")
                + self.text()
                + self.pick("</think>", "</think>", "</think>\n\n", "", "</thi")
            )
        for _ in range(self.r.randint(0, 3)):
            out += self.pick(
                self.text(6), self.text(6), self.dsml(), "STOP", '```json\n{"a": 1}\n```', '{"b": [2]}', "</think>"
            )
        return out

    def split(self, text: str) -> list[str]:
        if not text:
            return [""]
        out = []
        while text:
            k = self.pick(1, 1, 2, 3, 5, 8, 20, 100)
            out.append(text[:k])
            text = text[k:]
        return out

    def parsing(self, thinking: bool) -> Json:
        stages = ("ReasoningStart", "ReasoningStart", "ReasoningContinuation", "ContentContinuation")
        parsing = {"thinking_initial_stage": self.pick(*stages)} if thinking else {}
        if self.p(0.3):
            parsing["parse_tool_calls"] = False
        if self.p(0.15):
            parsing["starts_in_tool_calls"] = True
        if self.p(0.25):
            parsing["parse_json_output"] = True
        if self.p(0.3):
            stops = ["STOP", "ST", "\n", "OP", "brown", "你好", "}", "a", "</think>", "<｜User｜>"]
            parsing["stop_sequences"] = self.r.sample(stops, self.r.randint(1, 2))
        if self.p(0.08):
            parsing["special_tokens"] = {self.pick("dsml", "thinking_end"): self.pick("§", "[X]")}
        return parsing

    def token_ids(self, text: str) -> list[int]:
        """`text` in tokens of the tiny tokenizer; most markers as tokens of their own."""
        ids = []
        while text:
            for spelling, token_id in SPECIALS.items():
                if text.startswith(spelling) and self.p(0.8):
                    ids.append(token_id)
                    text = text[len(spelling) :]
                    break
            else:
                ids += list(text[0].encode())
                text = text[1:]
        return ids

    def token_chunks(self, ids: list[int]) -> list[Json]:
        chunks, has_logprobs = [], self.p(0.4)
        while ids:
            k = self.pick(1, 1, 2, 3, 5, 8, 20)
            c: Json = {"tokens": ids[:k]}
            if has_logprobs:
                c["logprobs"] = [[-0.5, [[t, -0.5], [65, -1.25]][: self.pick(0, 1, 2)]] for t in ids[:k]]
            chunks.append(c)
            ids = ids[k:]
        return chunks

    def ready(self) -> Json:
        counts = {"prompt_tokens": self.r.randint(0, 50), "hit": self.r.randint(0, 50)}
        return {"ready": counts | ({"fp": "fp"} if self.p(0.5) else {})}

    def stream(self) -> Json:
        protocol = self.pick("chat_completions", "responses", "messages")
        thinking = self.p(0.5)
        parsing = self.parsing(thinking)
        text = self.output(thinking)
        chunks = [self.ready()] if self.p(0.93) else []
        spec = {
            "protocol": protocol,
            "parsing": parsing,
            "generator": {"thinking_mode": thinking if self.p(0.9) else not thinking},
        }
        if self.p(0.3):
            spec["tokenizer"] = "tiny"
            chunks += self.token_chunks(self.token_ids(text))
        else:
            chunks += [{"text": t, "n": self.r.randint(0, 3)} for t in self.split(text)]
        if self.p(0.85):
            chunks.append({"finish": self.pick("Stop", "Stop", "Length", "ContentFilter")})
        if self.p(0.04):
            chunks.append(self.pick({"text": "late", "n": 1}, {"op": "finish"}, {"op": "close"}))
        spec["chunks"] = chunks
        if protocol == "responses" and self.p(0.3):
            spec["generator"]["namespace_tool_map"] = {"crm::get": ["crm", "get"]}
        return spec
