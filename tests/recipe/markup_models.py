"""Models of every markup family: a chat template, a tiny tokenizer with the family's tokens, and outputs as the real
models write them.
"""

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from recipe.encoding.tokenizer import Tokenizer
from recipe.markup.detection import detect_markup
from recipe.markup.output_markup import OutputMarkup
from tests.oracle.tokenizer_files import tiny_tokenizer_json
from tests.recipe.chat_templates import ADDED, LLAMA, MISTRAL, QWEN

R1 = """
{%- if not add_generation_prompt is defined %}{%- set add_generation_prompt = false %}{%- endif %}
{%- set ns = namespace(is_tool=false, system_prompt='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- set ns.system_prompt = message['content'] %}{%- endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false %}
        {{- '<｜User｜>' + message['content'] }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] %}
        {%- set ns.is_tool = false %}
        {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
        {%- for tool in message['tool_calls'] %}
            {%- if not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' }}
            {{- tool['function']['name'] + '\\n```json\\n' }}
            {{- tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {{- ('<｜tool▁outputs▁end｜>' if ns.is_tool else '<｜Assistant｜>') + content + '<｜end▁of▁sentence｜>' }}
        {%- set ns.is_tool = false %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {%- if not ns.is_tool %}{{- '<｜tool▁outputs▁begin｜>' }}{%- endif %}
        {%- set ns.is_tool = true %}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' }}{%- endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}
"""

MAGISTRAL = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {%- if loop.last and tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.reasoning_content %}{{- '[THINK]' + message.reasoning_content + '[/THINK]' }}{%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

WEATHER = ("get_weather", '{"city": "Zürich", "days": 2}')
TIME = ("get_time", '{"zone": {"name": "Europe/Zurich", "list": [1, {"a": "}"}]}}')


class Model(NamedTuple):
    """`call` and `two_calls` are outputs with calls of WEATHER, or WEATHER and TIME, behind the content `said`.

    `reasoning` is an output that thinks "Hm.\\nYes." and answers "42".
    """

    template: str
    added: str
    said: str
    call: str
    two_calls: str
    reasoning: str | None = None
    variables: Mapping[str, str] = MappingProxyType({})


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def _mistral(*calls: tuple[str, str]) -> str:
    written = [f'{{"name": "{name}", "arguments": {arguments}, "id": "abc]}}123"}}' for name, arguments in calls]
    return f"[TOOL_CALLS] [{', '.join(written)}]"


def _deepseek(*calls: tuple[str, str]) -> str:
    written = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    ]
    return f"<｜tool▁calls▁begin｜>{chr(10).join(written)}<｜tool▁calls▁end｜>"


_R1_ADDED = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> "
    "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <think> </think>"
)
_MAGISTRAL_ADDED = (
    "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [ARGS] "
    "[CALL_ID] [TOOL_RESULTS] [/TOOL_RESULTS] [THINK] [/THINK]"
)
_BOS = {"bos_token": "<s>", "eos_token": "</s>"}

MODELS: dict[str, Model] = {
    "qwen": Model(
        QWEN,
        ADDED["qwen"],
        "Let me look.",
        "Let me look.\n" + _hermes(*WEATHER),
        "Let me look.\n\n" + _hermes(*WEATHER) + "\n" + _hermes(*TIME),
        "<think>\nHm.\nYes.\n</think>\n\n42",
    ),
    "hermes of text": Model(
        QWEN,
        "<|im_start|> <|im_end|>",
        "Let me look.",
        "Let me look.\n" + _hermes(*WEATHER),
        "Let me look.\n\n" + _hermes(*WEATHER) + "\n" + _hermes(*TIME),
        "<think>\nHm.\nYes.\n</think>\n\n42",
    ),
    "llama": Model(
        LLAMA,
        ADDED["llama"],
        "",
        _llama(*WEATHER),
        f"{_llama(*WEATHER)}; {_llama(*TIME)}",
        None,
        {"bos_token": "<|begin_of_text|>", "date_string": "26 Jul 2024"},
    ),
    "llama with a tag": Model(
        LLAMA,
        ADDED["llama"],
        "",
        "<|python_tag|>" + _llama(*WEATHER),
        f"<|python_tag|>{_llama(*WEATHER)}; {_llama(*TIME)}",
        None,
        {"bos_token": "<|begin_of_text|>", "date_string": "26 Jul 2024"},
    ),
    "mistral": Model(MISTRAL, ADDED["mistral"], "", _mistral(WEATHER), _mistral(WEATHER, TIME), None, _BOS),
    "magistral": Model(
        MAGISTRAL,
        _MAGISTRAL_ADDED,
        "Wait.",
        "Wait.[TOOL_CALLS]get_weather[ARGS]" + WEATHER[1],
        f"Wait.[TOOL_CALLS]get_weather[ARGS]{WEATHER[1]}[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{TIME[1]}",
        "[THINK]Hm.\nYes.[/THINK]42",
        _BOS,
    ),
    "r1": Model(
        R1,
        _R1_ADDED,
        "Let me look.",
        "Hm.\n</think>\n\nLet me look.\n\n" + _deepseek(WEATHER),
        "Hm.\n</think>\n\nLet me look.\n\n" + _deepseek(WEATHER, TIME),
        "Hm.\nYes.\n</think>\n\n42",
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
}


@cache
def tokenizer_json(name: str) -> str:
    """The tiny byte-level tokenizer with the added tokens of a model, from ID 500."""
    tokenizer: dict[str, Any] = json.loads(tiny_tokenizer_json())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        {**like, "id": 500 + index, "content": spelling} for index, spelling in enumerate(MODELS[name].added.split())
    ]
    return json.dumps(tokenizer)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(name))


@cache
def markup_of(name: str) -> OutputMarkup:
    """The markup that is detected."""
    return detect_markup(MODELS[name].template, set(tokenizer_of(name).added_spellings.values()))
