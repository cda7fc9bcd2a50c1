"""Writes text_templates.json: what Python's jinja2 makes of templates that use each construct chat templates use.

    pip install jinja2==3.1.6 && python text_templates.py

The environment is the one transformers builds for chat templates; `tojson` follows json.dumps as it does there.
Dates are taken from a fixed clock, in UTC. A case whose rendering fails in Python records "error": true.
"""
import datetime
import json
import os

from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
import jinja2
from jinja2 import nodes

NOW = 1_753_455_600  # 2025-07-25 15:00:00 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(lineno)

    def _keep(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def strftime_now(pattern):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(pattern)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = tojson
ENV.filters["fromjson"] = json.loads
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = strftime_now

DATA = {
    "t": "é<\"&'>\\ \n\t\x01\x7f 🙂",
    "n": None, "yes": True, "no": False, "zero": 0, "one": 1, "big": 9007199254740993, "f": 1.0, "g": 1e-7, "h": 1e20, "i": 0.1,
    "empty": {}, "none_list": [], "list": [3, 1, 2, 2], "words": ["b", "A", "c"], "mixed": [1, "a'b", None, True, 1.5, {"k": [1]}],
    "d": {"z": 1, "a": {"y": [1, 2, {"x": None}], "b": "é"}, "ключ": "<tag>"},
    "text": "  Hello, World  ", "lines": "one\ntwo\r\n\nthree\n", "csv": "a,b,,c", "think": "<think>\nwhy\n</think>\n\nBecause",
    "rows": [{"n": "x", "v": 1}, {"n": "y", "v": 0}, {"n": "z"}],
}

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Wetter für <Ort>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "f_two", "parameters": {"type": "object", "properties": {}}}},
]
CHAT = {
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": TOOLS,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in \"Par'is\" & <b>Rome</b>? é"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Par\"is", "days": 2, "x": None, "y": 1.5}}},
            {"id": "call_2", "type": "function", "function": {"name": "f_two", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{\"temp\": 21.0}"},
        {"role": "tool", "tool_call_id": "call_2", "content": "ok"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."},
        {"role": "user", "content": "Thanks"},
    ],
}

CHAT_TEMPLATE = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set loop_messages = messages %}
{%- endif %}
[system]{{ system }}
{% if tools is defined and tools is not none %}
# Tools
    {% for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
        {%- for key, spec in tool['function']['parameters'].properties.items() %}

 - {{ key }}: {{ spec.type }}{% if spec.default is defined %} = {{ spec.default }}{% endif %}
        {%- endfor %}

    {% endfor %}
{% endif %}
{%- set ns = namespace(last=-1, tools=0) %}
{%- for message in loop_messages[::-1] %}
    {%- set index = (loop_messages|length - 1) - loop.index0 %}
    {%- if ns.last == -1 and message.role == 'user' and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- macro call(c, close=True) -%}
<call id={{ c.id }}>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}{% if close %}</call>{% endif %}
{%- endmacro %}
{%- for message in loop_messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
[assistant {{ loop.index0 > ns.last }}]{% generation %}{{ content }}{{ '(' ~ thought ~ ')' if thought }}
        {%- for c in message.tool_calls or [] %}
            {%- set ns.tools = ns.tools + 1 %}
{{ call(c, close=not loop.last) }}
        {%- endfor %}
{% endgeneration %}{{ eos_token }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop_messages[loop.index0 - 1].role != 'tool' %}
[tools]
        {%- endif %}
 <{{ message.tool_call_id }}>{{ message['content'] }}
        {%- if loop.last or loop.nextitem.role != 'tool' %} end{% endif %}
    {%- elif message.role == 'user' %}
[user]{{ message.content }}
    {%- else %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
{%- endfor %}
 tools={{ ns.tools }}
{%- if add_generation_prompt %}
[assistant]
{%- endif %}
"""

SNIPPETS = {
    "trim_tags": "a\n  {%- if yes -%}\n  b  \n{%- endif -%}\n c",
    "trim_blocks": "x\n    {% if yes %}\n  y\n    {% endif %}\nz\n",
    "plus_tags": "x\n    {%+ if yes %}\n  y\n    {% endif +%}\nz\n",
    "comments": "a {# hidden {% if %} #}b\n{#- gone -#}\n c",
    "raw": "{% raw %}{{ not }} {% if %}{% endraw %}",
    "trailing_newline": "a\n\n",
    "namespace": "{% set ns = namespace(a=1) %}{% for x in list %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
    "loop_scope": "{% set a = 1 %}{% for x in list %}{% set a = x %}{% endfor %}{{ a }}",
    "tojson": "{{ t|tojson }} {{ d|tojson }} {{ mixed|tojson }} {{ empty|tojson }}{{ none_list|tojson }} {{ n|tojson }}{{ yes|tojson }}",
    "tojson_numbers": "{{ f|tojson }} {{ g|tojson }} {{ h|tojson }} {{ i|tojson }} {{ big|tojson }} {{ zero|tojson }}",
    "tojson_indent": "{{ d|tojson(indent=2) }}\n{{ mixed|tojson(indent=4) }}\n{{ empty|tojson(indent=2) }}{{ [[]]|tojson(indent=1) }}",
    "tojson_options": "{{ d|tojson(ensure_ascii=True) }}{{ t|tojson(ensure_ascii=True) }}{{ d|tojson(separators=(',', ':'), sort_keys=true) }}",
    "tojson_undefined": "{{ missing|tojson }}",
    "fromjson": "{% set v = '{\"b\": [1, 2.0], \"a\": null}'|fromjson %}{{ v.b[1] }} {{ v.a }} {{ v|tojson }}",
    "str_values": "{{ n }} {{ yes }} {{ no }} {{ zero }} {{ f }} {{ g }} {{ h }} {{ i }} {{ missing }}|{{ '' }}",
    "str_containers": "{{ mixed }} {{ d }} {{ list }} {{ empty }} {{ (1,) }} {{ (1, 'a') }} {{ [t] }}",
    "string_filter": "{{ yes|string + '!' }} {{ list|string }} {{ f|string }}",
    "concat": "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ 'é' }} {{ 'a' + 'b' }} {{ [1] + [2] }}",
    "slices": "{{ text[::-1] }}|{{ text[2:7] }}|{{ list[1:] }}|{{ list[:-1] }}|{{ list[-2:] }}|{{ list[::2] }}|{{ list[::-1]|list }}",
    "trim_filter": "[{{ text|trim }}] [{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] [{{ 'xxaxx'.strip('x') }}]",
    "case_methods": "{{ text.upper() }}{{ text.lower() }}{{ 'ab cd'.title() }}{{ 'aB'.swapcase() }}{{ 'hELLO'.capitalize() }}",
    "split": "{{ csv.split(',') }} {{ csv.split(',', 1) }} {{ text.split() }} {{ csv.rsplit(',', 1) }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }}",
    "split_last": "{{ (csv.split('x')|last) }} {{ csv.split(',')|first }} {{ csv.split(',')[-1] }}",
    "splitlines": "{{ lines.splitlines() }} {{ lines.splitlines(true) }}",
    "partition": "{{ csv.partition(',') }} {{ csv.rpartition(',') }} {{ csv.partition('x') }} {{ csv.rpartition('x') }}",
    "prefixes": "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }}",
    "find": "{{ 'éabc'.find('b') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'éabc'.index('c') }} {{ 'aXbX'.count('X') }}",
    "pads": "[{{ 'a'.ljust(4) }}] [{{ 'a'.rjust(4, '.') }}] [{{ 'ab'.center(5, '*') }}] [{{ 'abc'.center(6, '*') }}] {{ '-7'.zfill(4) }}",
    "replace": "{{ 'aXbX'.replace('X', 'é') }} {{ 'aXbX'.replace('X', '', 1) }} {{ 'aXbX'|replace('X', '-') }}",
    "join": "{{ words|join(', ') }} {{ ','.join(words) }} {{ list|join('+') }} {{ [true, none, 1.0]|join(' ') }} {{ rows|join('/', attribute='n') }}",
    "percent_operator": "{{ '%s is %d' % ('a', 3) }}",
    "format": "{{ '%s'|format('x') }} {{ '{} {}'.format('a', 1) }}",
    "tests": "{{ d is mapping }}{{ list is mapping }} {{ list is sequence }}{{ 'a' is sequence }}{{ d is sequence }}{{ 1 is sequence }} {{ 'a' is string }}{{ 1 is string }} {{ 1 is number }}{{ 1.0 is number }} {{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }} {{ none is none }}{{ missing is none }} {{ missing is defined }}{{ n is defined }}{{ missing is undefined }} {{ true is boolean }}{{ 1 is boolean }} {{ yes is true }}{{ no is false }}{{ one is true }}",
    "tests_more": "{{ list is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ d is iterable }} {{ 2 is even }}{{ 3 is odd }} {{ 6 is divisibleby 3 }} {{ 'a' in words }}{{ 'b' in words }}{{ 'z' in d }}{{ 'ell' in text }} {{ 1 is eq 1 }}{{ 'a' is in ['a'] }} {{ 'a' is lower }}{{ 'A' is upper }} {{ list is not mapping }}",
    "none_tests": "{{ n is iterable }}{{ n is sequence }}{{ missing is iterable }}{{ n is mapping }}{{ n is string }}{{ 1 is iterable }}",
    "mutator_reached": "{% set x = list.append(1) %}{{ list }}",
    "mutator_not_reached": "{% if no %}{% set x = list.append(1) %}{% endif %}{{ list }}",
    "truth": "{% for v in [none, '', 'a', 0, 1, [], [0], {}, {'a': 0}, 0.0] %}{{ 1 if v else 0 }}{% endfor %} {{ not missing }} {{ missing or 'dflt' }} {{ n|default('x') }} {{ missing|default('x') }} {{ n|default('x', true) }} {{ ''|d('y', true) }}",
    "compare": "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ none == false }} {{ missing == none }} {{ 1 < 2 < 3 }} {{ 'a' != 'b' }}",
    "arithmetic": "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 1 + 2 * 3 }} {{ 'ab' * 2 }} {{ 1.5 + 1 }}",
    "break_continue": "{% for x in list %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 9 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in range(10) %}{% if x > 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "loop_vars": "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "loop_else_filter": "{% for x in list if x > 1 %}{{ x }}{{ loop.index }} {% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
    "loop_cycle": "{% for x in list %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "items": "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{{ d.keys()|list }}{{ d.values()|list|length }}{{ d|items|list|length }}",
    "dict_get": "{{ d.get('z') }} {{ d.get('q') }} {{ d.get('q', 'dflt') }} {{ d['a']['b'] }} {{ d.a.y[2].x }} {{ d.q }}|{{ d['q'] }}|",
    "undefined_attribute": "{{ missing.attribute }}",
    "undefined_item": "{% if missing['a'] %}x{% endif %}",
    "undefined_concat": "{{ 'a' + missing }}",
    "undefined_loop": "[{% for x in missing %}{{ x }}{% endfor %}]{{ missing|length }}",
    "none_attribute": "[{{ n.attribute }}]",
    "macro": "{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c='C') }} {{ m('x', 'y') }}",
    "macro_caller": "{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap('b') %}in{% endcall %}",
    "set_block": "{% set x %}a{{ one }}b{% endset %}[{{ x }}] {% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "with": "{% with q = 5 %}{{ q }}{% endwith %}{{ q }}",
    "filter_block": "{% filter upper %}abc{{ words[0] }}{% endfilter %}",
    "generation": "a{% generation %}b{{ one }}\n{% endgeneration %}\nc {%- generation -%} d {%- endgeneration %}e",
    "select": "{{ rows|selectattr('v')|map(attribute='n')|list }} {{ rows|rejectattr('v')|map(attribute='n')|join }} {{ rows|selectattr('v', 'defined')|list|length }} {{ rows|selectattr('n', 'equalto', 'y')|list }} {{ list|select('odd')|list }} {{ list|reject('odd')|list }}",
    "map_filters": "{{ words|map('upper')|list }} {{ list|map('string')|list }} {{ rows|map(attribute='v', default='-')|list }}",
    "list_filters": "{{ list|sort }} {{ list|sort(reverse=true) }} {{ list|unique|list }} {{ list|sum }} {{ list|min }} {{ list|max }} {{ list|first }} {{ list|last }} {{ list|length }} {{ list|reverse|list }} {{ words|sort }}",
    "dict_filters": "{{ d|dictsort|list|length }} {{ {'b': 1, 'a': 2}|dictsort }} {{ rows|groupby('n')|list|length }} {{ dict(a=1, b=2) }}",
    "text_filters": "{{ 'a b'|upper }} {{ 'A'|lower }} {{ 'hello world'|title }} {{ 'hello'|capitalize }} {{ 'a\nb'|indent(2) }} {{ 'a\nb'|indent(2, true) }} {{ ' a'|trim }} {{ 'ab'|list }} {{ 'ab'|length }} {{ 'ab'|first }}",
    "number_filters": "{{ '42'|int }} {{ 'x'|int }} {{ '1.5'|float }} {{ 3.7|int }} {{ 2.5|round }} {{ 3.14159|round(2) }} {{ -3|abs }}",
    "safe_escape": "{{ t|safe }} {{ '<a>'|safe }}",
    "batch": "{{ list|batch(3)|list }} {{ range(3)|list }} {{ range(1, 10, 3)|list }}",
    "conditional_expression": "{{ 'a' if yes else 'b' }} {{ 'a' if no }}| {{ ('x' if no else 'y') ~ 'z' }}",
    "strftime_now": "{{ strftime_now('%d %B %Y, %H:%M %A %j %-d %b %y') }}",
    "raise": "{{ raise_exception('no ' ~ one) }}",
    "string_escapes": "{{ 'a\\nb\\t\\'c\\\\ \\u00e9' }}",
    "multi_line_expression": "{{ {'a': 1,\n  'b': [1,\n 2]}['b'][1] }}",
    "adjacent_strings": "{{ 'a' 'b' }}",
    "nested_quotes": "{{ '{\"a\": \"}}\"}' }}",
    "list_index": "{{ words.index('A') }} {{ list.count(2) }}",
    "is_in_not": "{{ 'q' not in d }} {{ 3 in list and not 7 in list }}",
    "unicode_identifiers": "{{ d['ключ'] }} {{ '🙂é'|length }} {{ '🙂é'[0] }}",
}


def run(name, template, data):
    case = {"name": name, "template": template, "data": data}
    try:
        case["expect"] = ENV.from_string(template).render(**data)
    except Exception as error:  # noqa: BLE001: any failure is the expectation
        case["error"] = True
        if isinstance(error, Refused):
            case["raised"] = str(error)
    return case


def main():
    cases = [run(name, template, DATA) for name, template in SNIPPETS.items()]
    cases += [run("chat_with_tools", CHAT_TEMPLATE, CHAT)]
    cases += [run("chat_without_tools", CHAT_TEMPLATE, {**CHAT, "tools": None, "add_generation_prompt": False})]
    cases += [run("chat_unknown_role", CHAT_TEMPLATE, {**CHAT, "messages": [{"role": "owl", "content": "hu"}]})]
    shared = {"DATA": DATA}
    for case in cases:
        if case["data"] is DATA:
            case["data"] = "DATA"
    out = {"jinja2": jinja2.__version__, "now_unix_s": NOW, "shared": shared, "cases": cases}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "text_templates.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=1)
        file.write("\n")
    for case in cases:
        print(case["name"], "ERROR" if case.get("error") else "")


main()
