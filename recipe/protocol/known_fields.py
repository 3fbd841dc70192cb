"""Fields of the protocols that have no effect here.

Two tables a protocol. A field that would change the answer is refused by name, unless its value asks for nothing: the
client would otherwise take the answer for another. A hint (about cost, caching, tracing or storage) is ignored: the
answer is as good without it. Whatever stands in neither table and in no schema is unknown, and ignored as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from recipe.errors import ConversionError
from recipe.json_value import JsonValue

_NOTHING: tuple[JsonValue, ...] = (False, "", [], {})
_ON_BY_DEFAULT: tuple[JsonValue, ...] = (True,)


class Refusal(NamedTuple):
    """`harmless` are the values that ask for nothing; `advice` is what to do instead, a sentence."""

    harmless: tuple[JsonValue, ...] = _NOTHING
    advice: str = ""


STATELESS = "Nothing is stored: send the whole conversation."
_STRUCTURED = Refusal(advice="Use structured_outputs.")

_ENGINES: Mapping[str, Refusal] = {
    "allowed_token_ids": Refusal(),
    "best_of": Refusal((1,), "Use n."),
    "chat_template": Refusal(advice="The template is chosen when the server starts."),
    "custom_logit_processor": Refusal(),
    "documents": Refusal(),
    "ebnf": _STRUCTURED,
    "grammar": _STRUCTURED,
    "guided_choice": _STRUCTURED,
    "guided_grammar": _STRUCTURED,
    "guided_json": _STRUCTURED,
    "guided_regex": _STRUCTURED,
    "guided_whitespace_pattern": _STRUCTURED,
    "include_reasoning": Refusal(_ON_BY_DEFAULT),
    "include_stop_str_in_output": Refusal(),
    "kv_transfer_params": Refusal(),
    "length_penalty": Refusal((1,)),
    "logits_processors": Refusal(),
    "lora_path": Refusal(),
    "mirostat": Refusal((0,)),
    "mm_processor_kwargs": Refusal(),
    "no_stop_trim": Refusal(),
    "prompt_logprobs": Refusal(),
    "regex": _STRUCTURED,
    "repeat_penalty": Refusal((1,), "Use repetition_penalty."),
    "return_hidden_states": Refusal(),
    "return_token_ids": Refusal(),
    "return_tokens_as_token_ids": Refusal(),
    "separate_reasoning": Refusal(_ON_BY_DEFAULT),
    "skip_special_tokens": Refusal(_ON_BY_DEFAULT),
    "stop_regex": Refusal(),
    "structural_tag": _STRUCTURED,
    "thinking_token_budget": Refusal(),
    "truncate_prompt_tokens": Refusal(),
    "typical_p": Refusal((1,)),
    "use_beam_search": Refusal(),
    "vllm_xargs": Refusal(),
}

CHAT_COMPLETIONS_REFUSED: Mapping[str, Refusal] = {
    **_ENGINES,
    "add_special_tokens": Refusal(),
    "audio": Refusal(),
    "echo": Refusal(),
    "function_call": Refusal(advice="Use tool_choice."),
    "functions": Refusal(advice="Use tools."),
    "modalities": Refusal((["text"], []), "Only text is produced."),
    "web_search_options": Refusal((), "Search the web on the client's side, with a tool."),
}
COMPLETIONS_REFUSED: Mapping[str, Refusal] = {
    **_ENGINES,
    "prompt_embeds": Refusal(),
    "response_format": _STRUCTURED,
    "suffix": Refusal(advice="The model continues the prompt; nothing can follow it."),
}
RESPONSES_REFUSED: Mapping[str, Refusal] = {
    **_ENGINES,
    "background": Refusal(),
    "context_management": Refusal(),
    "conversation": Refusal(advice=STATELESS),
    "previous_response_id": Refusal(advice=STATELESS),
    "prompt": Refusal(advice="Send instructions and input."),
    "truncation": Refusal(("disabled",), "Nothing is left out of the input."),
}
MESSAGES_REFUSED: Mapping[str, Refusal] = {
    **_ENGINES,
    "container": Refusal(),
    "mcp_servers": Refusal(advice="Call MCP servers on the client's side, with tools."),
}

_COMMON_HINTS = ("guided_decoding_backend", "request_id", "spaces_between_special_tokens")

CHAT_COMPLETIONS_IGNORED: tuple[str, ...] = (
    *_COMMON_HINTS,
    "messages[].name",
    "metadata",
    "moderation",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options.include_obfuscation",
    "thinking.budget_tokens",
    "user",
    "verbosity",
)
RESPONSES_IGNORED: tuple[str, ...] = (
    *_COMMON_HINTS,
    "client_metadata",
    "max_tool_calls",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning.summary",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "text.verbosity",
)
MESSAGES_IGNORED: tuple[str, ...] = (
    *_COMMON_HINTS,
    "cache_control",
    "context_management",
    "inference_geo",
    "messages[].content[].cache_control",
    "metadata",
    "output_config.task_budget",
    "service_tier",
    "speed",
    "system[].cache_control",
    "thinking.budget_tokens",
    "thinking.display",
    "tools[].cache_control",
    "tools[].eager_input_streaming",
    "tools[].input_examples",
    "tools[].strict",
)


class RefusedFields:
    """Looks for the fields of one table in decoded bodies."""

    __slots__ = ("_nothing", "_number", "_refusals")

    def __init__(self, refusals: Mapping[str, Refusal]) -> None:
        self._refusals = refusals
        self._number = len(refusals)
        self._nothing = (None,) * len(refusals)

    def check(self, body: msgspec.Struct) -> None:
        """ConversionError for the first field by which `body`, whose last fields they are, asks for something."""
        values = msgspec.structs.astuple(body)[-self._number :]
        if values == self._nothing:
            return
        for (name, refusal), value in zip(self._refusals.items(), values, strict=True):
            if value is not None and value not in refusal.harmless:
                raise ConversionError(f"{name} is not supported. {refusal.advice}".rstrip())
