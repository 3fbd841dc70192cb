"""DSML, the markup of tool calls in DeepSeek prompts.

<D calls>            D is a special token of its own inside each tag. The two encodings spell the tag
<D invoke name="f">  names differently, and disagree on a call without parameters; a `Dialect` holds
<D parameter name="k" string="true">v</D parameter>                                     what differs.
</D invoke>
</D calls>
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipe.encoding.pyjson import python_json, short_exponent_json
from recipe.json_value import JsonValue, parse_json
from recipe.prompt import Prompt
from recipe.tool import ToolCall


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one encoding writes inside the tags, and how it writes JSON and lists."""

    calls: str
    invoke: str
    parameter: str
    json: Callable[[JsonValue], str]
    end_each_line: bool
    """Whether a newline ends each line; otherwise it stands between lines, and an empty list leaves a blank one."""

    def lines(self, lines: Sequence[str]) -> str:
        """Return the lines of a list, up to and including the newline before what follows."""
        return "".join([f"{line}\n" for line in lines]) if self.end_each_line else "\n".join(lines) + "\n"


V4_DIALECT = Dialect("tool_calls", "invoke", "parameter", short_exponent_json, end_each_line=True)
V41_DIALECT = Dialect(" calls", " invoke", " parameter", python_json, end_each_line=False)


class Dsml:
    """Writes tool calls into a prompt, in one dialect and with one spelling of the token."""

    __slots__ = ("_close", "_dialect", "_open", "_token")

    def __init__(self, dialect: Dialect, token: str) -> None:
        self._dialect = dialect
        self._token = token
        self._open = f"{dialect.calls}>\n"
        self._close = f"{dialect.calls}>"

    def constant_texts(self) -> set[str]:
        """The ordinary stretches between the tokens of a block that are the same for all calls."""
        dialect = self._dialect
        ends = (self._open, f"{dialect.invoke}>\n", f"{dialect.parameter}>\n")
        return {self._close, *(end + start for end in ends for start in ("<", "</"))}

    def push_open(self, prompt: Prompt) -> None:
        """Open a block of calls, for the model to go on inside it."""
        prompt.push_text("\n\n<")
        prompt.push_special(self._token)
        prompt.push_text(self._open)

    def push_calls(self, prompt: Prompt, calls: Sequence[ToolCall]) -> None:
        """Write a whole block of calls."""
        self.push_open(prompt)
        for call in calls:
            self._push_call(prompt, call)
        prompt.push_text("</")
        prompt.push_special(self._token)
        prompt.push_text(self._close)

    def _push_call(self, prompt: Prompt, call: ToolCall) -> None:
        dialect, token = self._dialect, self._token
        prompt.push_text("<")
        prompt.push_special(token)
        prompt.push_text(f'{dialect.invoke} name="{call.name}">\n')
        parameters = _parameters(call.arguments)
        for name, value in parameters.items():
            self._push_parameter(prompt, name, value)
        prompt.push_text("</" if parameters or dialect.end_each_line else "\n</")
        prompt.push_special(token)
        prompt.push_text(f"{dialect.invoke}>\n")

    def _push_parameter(self, prompt: Prompt, name: str, value: JsonValue) -> None:
        dialect, token = self._dialect, self._token
        is_string = isinstance(value, str)
        prompt.push_text("<")
        prompt.push_special(token)
        prompt.push_text(f'{dialect.parameter} name="{name}" string="{"true" if is_string else "false"}">')
        prompt.push_text(value if is_string else dialect.json(value))
        prompt.push_text("</")
        prompt.push_special(token)
        prompt.push_text(f"{dialect.parameter}>\n")


def _parameters(arguments: str) -> dict[str, JsonValue]:
    """The parameters of a call; arguments that are no JSON object become one parameter with their text."""
    try:
        value = parse_json(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
