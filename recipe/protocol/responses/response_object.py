"""The response object of the Responses protocol: what is fixed, what the request said, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as json_string

from recipe.protocol.json_text import compact_json
from recipe.protocol.responses.echo import ResponsesEcho
from recipe.protocol.responses.items import OutputItem
from recipe.stream.finish import Usage


class ResponseHead:
    """What does not change during the life of a response. `created_at` is in seconds since the epoch."""

    __slots__ = ("after_incomplete", "after_output", "after_usage", "before_status")

    def __init__(self, response_id: str, model: str, created_at: int, echo: ResponsesEcho) -> None:
        echoed = {name: compact_json(value) for name, value in echo.fields().items()}
        self.before_status = (
            f'{{"id":{json_string(response_id)},"object":"response","created_at":{created_at},"status":"'
        )
        self.after_incomplete = (
            f',"instructions":{echoed["instructions"]},"max_output_tokens":{echoed["max_output_tokens"]}'
            f',"max_tool_calls":null,"model":{json_string(model)},"moderation":null,"output":['
        )
        self.after_output = (
            '],"parallel_tool_calls":'
            f'{echoed["parallel_tool_calls"]},"presence_penalty":0.0,"previous_response_id":null,"prompt_cache_key":null'
            f',"prompt_cache_retention":null,"reasoning":{echoed["reasoning"]},"safety_identifier":null'
            f',"service_tier":"default","store":false,"temperature":{echoed["temperature"]},"text":{echoed["text"]}'
            f',"tool_choice":{echoed["tool_choice"]},"tools":{echoed["tools"]},"top_logprobs":{echoed["top_logprobs"]}'
            f',"top_p":{echoed["top_p"]},"truncation":"disabled","usage":'
        )
        self.after_usage = f',"user":{echoed["user"]},"metadata":{echoed["metadata"]}}}'


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """A response at a point of its life. `completed_at` is in seconds since the epoch."""

    head: ResponseHead
    items: Sequence[OutputItem] = ()
    status: str = "in_progress"
    completed_at: int | None = None
    incomplete_reason: str | None = None
    usage: Usage | None = None

    def to_json(self) -> str:
        """The object as JSON."""
        head = self.head
        incomplete = "null" if self.incomplete_reason is None else f'{{"reason":"{self.incomplete_reason}"}}'
        completed_at = "null" if self.completed_at is None else self.completed_at
        usage = "null" if self.usage is None else usage_json(self.usage)
        return (
            f'{head.before_status}{self.status}","background":false,"completed_at":{completed_at}'
            f',"content_filters":null,"error":null,"frequency_penalty":0.0,"incomplete_details":{incomplete}'
            f"{head.after_incomplete}{','.join(item.to_json() for item in self.items)}"
            f"{head.after_output}{usage}{head.after_usage}"
        )


def usage_json(usage: Usage) -> str:
    """The usage object; reasoning tokens that were not counted are shown as none."""
    return (
        f'{{"input_tokens":{usage.prompt_tokens}'
        f',"input_tokens_details":{{"cached_tokens":{usage.prompt_cache_hit_tokens}}}'
        f',"output_tokens":{usage.completion_tokens}'
        f',"output_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens or 0}}}'
        f',"total_tokens":{usage.prompt_tokens + usage.completion_tokens}}}'
    )
