"""The part of a prompt that presents the tools and explains how to call them.

Its text is fixed except for the tag names of the dialect, the spellings of three special tokens, and the list of
schemas; so the fixed parts are split at the special tokens once, when an encoding is built.
"""

import re
from collections.abc import Sequence

from recipe.encoding.dsml import Dialect
from recipe.prompt import Prompt, SpecialToken, SpecialTokens
from recipe.tool import ToolDefinition

_EXPLANATION = """\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{dsml}CALLS>" block like the following:

<{dsml}CALLS>
<{dsml}INVOKE name="$TOOL_NAME">
<{dsml}PARAMETER name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}PARAMETER>
...
</{dsml}INVOKE>
<{dsml}INVOKE name="$TOOL_NAME2">
...
</{dsml}INVOKE>
</{dsml}CALLS>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {thinking_start}), you MUST output your complete reasoning inside \
{thinking_start}...{thinking_end} BEFORE any tool calls or final response.

Otherwise, output directly after {thinking_end} with tool calls or final response.

### Available Tool Schemas

"""
_CONCLUSION = "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class ToolBlock:
    """Writes the tools into a prompt."""

    __slots__ = ("_dialect", "_explanation")

    def __init__(self, dialect: Dialect, tokens: SpecialTokens) -> None:
        self._dialect = dialect
        self._explanation = _explanation(dialect, tokens)

    def push(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> None:
        """Write the block; deferred tools are not listed."""
        prompt.extend(self._explanation)
        prompt.push_text(self._dialect.lines([self.schema(tool) for tool in tools if not tool.defer_loading]))
        prompt.push_text(_CONCLUSION)

    def constant_texts(self) -> set[str]:
        """The ordinary stretches of the block that no schema and no system message touches."""
        return {text for text, is_special in [*self._explanation.stretches()][1:-1] if not is_special}

    def schema(self, tool: ToolDefinition) -> str:
        """Return the line that describes one tool."""
        return self._dialect.json(
            {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
        )


def _explanation(dialect: Dialect, tokens: SpecialTokens) -> Prompt:
    text = _EXPLANATION.replace("CALLS", dialect.calls).replace("INVOKE", dialect.invoke)
    text = text.replace("PARAMETER name", f"{dialect.parameter} name").replace("PARAMETER>", f"{dialect.parameter}>")
    prompt = Prompt()
    for index, part in enumerate(_PLACEHOLDER.split(text)):
        if index % 2:
            prompt.push_special(tokens.token(SpecialToken(part)))
        else:
            prompt.push_text(part)
    return prompt
