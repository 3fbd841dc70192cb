"""DSML, the markup of tool calls in DeepSeek prompts.

<D calls>            D is a special token of its own inside each tag. The two encodings spell the tag
<D invoke name="f">  names differently, and disagree on a call without parameters; a `Dialect` holds
<D parameter name="k" string="true">v</D parameter>                                     what differs.
</D invoke>
</D calls>             Calls come again with every turn of their conversation, so short ones are remembered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from recipe.encoding.pyjson import python_json, short_exponent_json
from recipe.json_value import JsonValue, parse_json
from recipe.prompt import Prompt
from recipe.tool import ToolCall

_REMEMBERED_CALLS = 2048
_REMEMBERED_CHARS = 1024
"""Calls with longer arguments are written anew whenever they come."""


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

    __slots__ = ("_close", "_dialect", "_invoke_end", "_open", "_parameter_end", "_remembered", "_token")

    def __init__(self, dialect: Dialect, token: str) -> None:
        self._dialect = dialect
        self._token = token
        self._open = f"{dialect.calls}>\n"
        self._close = f"{dialect.calls}>"
        self._invoke_end = f"{dialect.invoke}>\n"
        self._parameter_end = f"{dialect.parameter}>\n"
        self._remembered = lru_cache(_REMEMBERED_CALLS)(self._inside)

    def constant_texts(self) -> set[str]:
        """The ordinary stretches between the tokens of a block that are the same for all calls."""
        ends = (self._open, self._invoke_end, self._parameter_end)
        return {self._close, *(end + start for end in ends for start in ("<", "</"))}

    def push_open(self, prompt: Prompt) -> None:
        """Open a block of calls, for the model to go on inside it."""
        prompt.push_between(self._token, ("\n\n<", self._open))

    def push_calls(self, prompt: Prompt, calls: Sequence[ToolCall]) -> None:
        """Write a whole block of calls."""
        texts = ["\n\n<"]
        rest = self._open
        for call in calls:
            is_short = len(call.arguments) <= _REMEMBERED_CHARS
            texts += (f"{rest}<", *(self._remembered if is_short else self._inside)(call.name, call.arguments))
            rest = self._invoke_end
        prompt.push_between(self._token, [*texts, f"{rest}</", self._close])

    def _inside(self, name: str, arguments: str) -> tuple[str, ...]:
        """The texts between the first token of one call and its last."""
        dialect = self._dialect
        parameters = _parameters(arguments)
        texts: list[str] = []
        rest = f'{dialect.invoke} name="{name}">\n'
        for key, value in parameters.items():
            texts += (f"{rest}<", self._parameter(key, value))
            rest = self._parameter_end
        return (*texts, f"{rest}</" if parameters or dialect.end_each_line else f"{rest}\n</")

    def _parameter(self, name: str, value: JsonValue) -> str:
        if isinstance(value, str):
            return f'{self._dialect.parameter} name="{name}" string="true">{value}</'
        return f'{self._dialect.parameter} name="{name}" string="false">{self._dialect.json(value)}</'


def _parameters(arguments: str) -> dict[str, JsonValue]:
    """The parameters of a call; arguments that are no JSON object become one parameter with their text."""
    try:
        value = parse_json(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
