"""What conversion understands beyond the reference: each extension is a named switch or limit, off by default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Extensions:
    """Which extensions are on. With all of them off, conversion equals the reference."""

    developer_role: bool = False
    """Chat Completions: the role `developer` is `system`."""
    null_content: bool = False
    """Chat Completions: an assistant message without content and calls is an empty one."""
    max_completion_tokens: bool = False
    """Chat Completions: the newer name of `max_tokens`, which wins over the older."""
    max_n: int = 1
    """Chat Completions: the most answers (`n`) to one request."""
    usage_chunk: bool = False
    """Chat Completions: `stream_options.include_usage` brings the usage in a last chunk of its own, without choices."""
    prefill: bool = False
    """Messages: a last message of the assistant is continued. Chat Completions: `continue_final_message`."""
    any_requires_call: bool = False
    """Messages: the tool choice `any` demands a call."""
    custom_tool_type: bool = False
    """Messages: tools of the type `custom` are client tools like those without a type."""
    output_format: bool = False
    """Messages: `output_config.format` asks for an answer in JSON."""
    single_call: bool = False
    """`parallel_tool_calls: false` and `disable_parallel_tool_use` allow one call at most."""
    required_call_after_thinking: bool = False
    """In thinking mode a call may be demanded; the model makes it when it has thought."""
    sampling: bool = False
    """Fields of the sampler: `top_k`, `min_p`, penalties, `logit_bias`, `min_tokens`, `stop_token_ids` and others."""
    structured_outputs: bool = False
    """`structured_outputs` constrains the answer to a JSON Schema, a regular expression, choices or a grammar."""
    template_arguments: bool = False
    """`chat_template_kwargs` and `enable_thinking`."""
    scheduling: bool = False
    """`priority` and `cache_salt`."""
    refusals: bool = False
    """Known fields that would change the answer, but have no effect here, are refused by name."""

    @classmethod
    def all(cls, *, max_n: int = 1) -> Self:
        """Every extension, with `n` up to `max_n`."""
        switches = {field.name: True for field in fields(cls) if field.name != "max_n"}
        return cls(max_n=max_n, **switches)
