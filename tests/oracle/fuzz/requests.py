"""Random requests of the three protocols, some of them damaged, with random conversion options."""

import json
from typing import Any

from tests.oracle.fuzz.chat import ChatBodies
from tests.oracle.fuzz.messages import MessagesBodies
from tests.oracle.fuzz.responses import ResponsesBodies
from tests.oracle.fuzz.values import JUNK, M41
from tests.oracle.outcome import Json


class Requests(ChatBodies, ResponsesBodies, MessagesBodies):
    """A body in one of its forms (dict, text, bytes) and the options to convert it with."""

    def mutate(self, body: Json) -> Json:
        """Damage one place of a body, so that parse and validation errors are compared too."""
        paths = []

        def walk(v: Any, path: list[Any]) -> None:
            if isinstance(v, dict):
                for k in v:
                    paths.append(path + [k])
                    walk(v[k], path + [k])
            elif isinstance(v, list):
                for i in range(len(v)):
                    paths.append(path + [i])
                    walk(v[i], path + [i])

        walk(body, [])
        path = self.r.choice(paths)
        at = body
        for k in path[:-1]:
            at = at[k]
        k = self.r.randrange(3)
        if k == 0 and isinstance(at, dict):
            del at[path[-1]]
        elif k == 1 and isinstance(at, dict):
            at[self.pick("extra", "type", "name", "content", "id")] = self.r.choice(JUNK)
        else:
            at[path[-1]] = self.r.choice(JUNK)
        return body

    def options(self) -> Json:
        o = {}
        if self.p(0.15):
            o["default_thinking_mode"] = False
        if self.p(0.15):
            o["reasoning_content_behavior"] = "Reject"
        if self.p(0.1):
            o["responses_web_search"] = "Reject"
        if self.p(0.15):
            o["messages_web_search"] = "Drop"
        if self.p(0.05):
            o["thinking_max_tokens_upper_bound"] = 50
        if self.p(0.05):
            o["special_tokens"] = {self.pick("user", "dsml", "image", "thinking_end", "ref"): self.pick("[X]", "§")}
        if self.p(0.1):
            o["aliases"] = [[M41, "DeepseekV4Pro"]]
        return o

    def request(self) -> Json:
        protocol = self.pick("chat_completions", "responses", "messages")
        body = {"chat_completions": self.chat, "responses": self.responses, "messages": self.messages}[protocol]()
        if self.p(0.15):
            body = self.mutate(json.loads(json.dumps(body)))
        form = (
            {"json": body} if self.p(0.8) else {self.pick("text", "bytes"): json.dumps(body, ensure_ascii=self.p(0.5))}
        )
        return {"protocol": protocol, "body": form, "options": self.options()}
