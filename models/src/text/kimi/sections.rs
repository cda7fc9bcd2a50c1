//! Kimi Linear's chat format, which is Kimi K2's: `<|im_user|>name<|im_middle|>content<|im_end|>`, and tool calls in
//! sections. As a Jinja template, for folders that bring none of their own; one that they bring is used instead.
//!
//! Left out on purpose: the sentence that the published template puts in when a chat has no system message. It is the
//! publisher's, and a chat without a system message is valid without it.

/// Markers that the template writes.
pub(crate) const CHAT_MARKERS: [&str; 5] =
    ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"];

/// The template.
pub(crate) const TEMPLATE: &str = "\
{%- if tools -%}
<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
{%- set name = message.name or message.role -%}
{%- if message.role == 'user' -%}
<|im_user|>{{ name }}<|im_middle|>
{%- elif message.role == 'assistant' -%}
<|im_assistant|>{{ name }}<|im_middle|>
{%- else -%}
<|im_system|>{{ name }}<|im_middle|>
{%- endif -%}
{%- if message.role == 'tool' -%}
{{ '## Return of ' + message.tool_call_id + '\\n' + message.content }}
{%- else -%}
{{ message.content }}
{%- endif -%}
{%- if message.role == 'assistant' and message.tool_calls -%}
<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>
{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_assistant|>assistant<|im_middle|>
{%- endif -%}
";
