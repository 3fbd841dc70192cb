"""How many tokens may be generated, once it is known how many the prompt holds."""

from __future__ import annotations

from typing import NamedTuple

from recipe.errors import ConversionError

_U32_MAX = 2**32 - 1


class MaxTokens(NamedTuple):
    """What a request says of the length of its answer. Small, so that it can wait for images to be counted.

    `requested` is None where the request sets nothing; `default` holds then.
    """

    requested: int | None
    default: int
    min_tokens: int = 0

    def resolve(self, prompt_tokens: int, context_limit: int) -> int:
        """The number of tokens to generate at most, at least 1: rejects first, then clips to what the context has left.

        ConversionError when the prompt and the requested tokens exceed the context, or when `min_tokens` exceeds the
        result.
        """
        requested = self.requested or 0
        total = min(prompt_tokens + requested, _U32_MAX)
        if total > context_limit:
            raise ConversionError(
                f"This model's maximum context length is {context_limit} tokens. However, you requested {total} tokens "
                f"({prompt_tokens} in the messages, {requested} in the completion). "
                "Please reduce the length of the messages or completion."
            )
        wanted = self.default if self.requested is None else self.requested
        resolved = max(1, min(wanted, context_limit - prompt_tokens))
        if self.min_tokens > resolved:
            raise ConversionError(f"Invalid min_tokens value, at most {resolved} tokens can be generated")
        return resolved
