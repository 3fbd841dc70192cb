"""Chat templates written for the tests, each with the constructs of one family of models, and tokenizers for them."""

import json
from functools import cache

from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.encoding.tokenizer import Tokenizer
from tests.oracle.tokenizer_files import tiny_tokenizer_json

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n\\nSignatures stand between <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer in <tool_call></tool_call> with a name and arguments.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set is_result = content.startswith('<tool_response>') and content.endswith('</tool_response>') %}
    {%- if ns.searching and message.role == "user" and not is_result %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set call = tool_call.function if tool_call.function else tool_call %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

LLAMA = """
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today is " + date_string + ".\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
    {{- "<|start_header_id|>user<|end_header_id|>\\n\\nYou may call these:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("This model makes one call at a time!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content | tojson + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs have 9 letters!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

R1 = """
{%- set ns = namespace(is_tool=false, system_prompt='', is_first=true) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- if not ns.is_first %}{%- set ns.system_prompt = ns.system_prompt + '\\n\\n' %}{%- endif %}
        {%- set ns.system_prompt = ns.system_prompt + message['content'] %}
        {%- set ns.is_first = false %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- continue %}{%- endif %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false %}
        {{- '<|User|>' + message['content'] }}
    {%- elif message['role'] == 'assistant' and message['tool_calls'] %}
        {%- set ns.is_tool = false %}
        {{- '<|Assistant|>' + (message['content'] or '') + '<|calls|>' }}
        {%- for call in message['tool_calls'] %}
            {{- '<|call|>' + call['type'] + '<|sep|>' + call['function']['name'] + '\\n```json\\n' }}
            {{- call['function']['arguments'] | tojson(ensure_ascii=True) + '\\n```<|end_call|>' }}
        {%- endfor %}
        {{- '<|end_calls|>' + eos_token }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|end_outputs|>' if ns.is_tool else '<|Assistant|>' }}
        {%- set ns.is_tool = false %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {%- generation %}{{- content + eos_token }}{%- endgeneration %}
    {%- elif message['role'] == 'tool' %}
        {%- if not ns.is_tool %}{{- '<|outputs|>' }}{%- endif %}
        {%- set ns.is_tool = true %}
        {{- '\\n<|output|>' + message['content'] + '<|end_output|>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{- '<|end_outputs|>' }}{%- endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<|Assistant|><think>\\n' }}{%- endif %}
"""

ADDED = {
    "qwen": "<|im_start|> <|im_end|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think>",
    "llama": "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|python_tag|>",
    "mistral": "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] "
    "[TOOL_RESULTS] [/TOOL_RESULTS]",
    "r1": "<|bos|> <|eos|> <|User|> <|Assistant|> <|calls|> <|call|> <|sep|> <|end_call|> <|end_calls|> <|outputs|> "
    "<|output|> <|end_output|> <|end_outputs|> <think> </think>",
    "smollm": "<|endoftext|> <|im_start|> <|im_end|> <repo_name> <file_sep> <filename>",
    "named": "<|system|> <|user|> <|assistant|> <|tool|> <|ada|> <|end|>",
}
TEMPLATES = {"qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL, "r1": R1}
VARIABLES = {
    "llama": {"bos_token": "<|begin_of_text|>", "date_string": "26 Jul 2024"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "r1": {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
}


def tokenizer_json(family: str) -> str:
    """The tiny byte-level tokenizer with the added tokens of one family, from ID 500."""
    tokenizer = json.loads(tiny_tokenizer_json())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        {**like, "id": 500 + index, "content": spelling} for index, spelling in enumerate(ADDED[family].split())
    ]
    return json.dumps(tokenizer)


@cache
def family_tokenizer(family: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(family))


@cache
def family_encoding(family: str) -> ChatTemplateEncoding:
    variables = VARIABLES.get(family, {})
    return ChatTemplateEncoding(TEMPLATES[family], family_tokenizer(family), special_tokens=variables)
