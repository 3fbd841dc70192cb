"""Requests of the three protocols, short to write, and their conversion with every extension."""

from __future__ import annotations

import json
from typing import Any

from recipe.extensions import Extensions
from recipe.protocol.chat_completions.convert import ChatCompletionRequest
from recipe.protocol.messages.convert import MessagesRequest
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.request import ConversationRequest, ConversionOptions
from tests.oracle.outcome import Json

V4, V41 = "DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"
REQUESTS = {"chat_completions": ChatCompletionRequest, "responses": ResponsesRequest, "messages": MessagesRequest}
ALL = ConversionOptions().with_extensions(Extensions.all(max_n=16))
OFF = {"type": "disabled"}

CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def user(content: Any = "hi") -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def chat(*messages: Json, **fields: Any) -> Json:
    return {"model": V41, "messages": list(messages) or [user()], **fields}


def responses(**fields: Any) -> Json:
    return {"model": V41, "input": "hi", **fields}


def messages(*turns: Json, **fields: Any) -> Json:
    return {"model": V41, "max_tokens": 9, "messages": list(turns) or [user()], **fields}


def convert(protocol: str, body: Json, options: ConversionOptions = ALL) -> ConversationRequest:
    return REQUESTS[protocol](json.dumps(body), extended=True).convert(options)
