"""The official client against a running server: python openai_client.py URL [--tools] [--api-key KEY].

Needs the package in requirements.txt. Every step prints one line; any surprise ends with a traceback and exit code 1.
--tools expects the scripted test server, whose answers hold tool calls on demand.
"""

import argparse
import json
import math

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def chat(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=24, temperature=0, seed=1)
    choice = whole.choices[0]
    check(choice.message.role == "assistant", choice)
    check(choice.message.content, "an empty answer")
    check(choice.finish_reason in ("stop", "length"), choice.finish_reason)
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage)
    check(whole.usage.prompt_tokens_details.cached_tokens <= whole.usage.prompt_tokens - 1, whole.usage)
    print("chat:", repr(choice.message.content))
    return whole


def streamed_chat(client, model, whole):
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reasons, usage, ids = "", [], None, set()
    for number, chunk in enumerate(stream):
        ids.add(chunk.id)
        if chunk.usage:
            check(usage is None and not chunk.choices, "usage comes once, in a chunk of its own")
            usage = chunk.usage
            continue
        delta = chunk.choices[0].delta
        check((delta.role == "assistant") == (number == 0), "the role comes first and once")
        text += delta.content or ""
        if chunk.choices[0].finish_reason:
            reasons.append(chunk.choices[0].finish_reason)
    check(len(ids) == 1, ids)
    check(text == whole.choices[0].message.content, (text, whole.choices[0].message.content))
    check(reasons == [whole.choices[0].finish_reason], reasons)
    check(usage.completion_tokens == whole.usage.completion_tokens, (usage, whole.usage))
    print("streamed chat: equal,", usage.completion_tokens, "tokens,", usage.prompt_tokens_details.cached_tokens, "cached")


def stream_helper(client, model, whole):
    """The client's own accumulator is stricter than most users."""
    with client.chat.completions.stream(
        model=model, messages=QUESTION, max_tokens=24, temperature=0, seed=1
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check(final.choices[0].message.content == whole.choices[0].message.content, final)
    print("stream helper: equal")


def chat_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    check(content, "no log-probabilities")
    for token in content:
        check(math.isfinite(token.logprob) and token.logprob <= 0, token)
        check(len(token.top_logprobs) == 2, token)
        check(token.token.startswith("bytes:") or bytes(token.bytes).decode() == token.token, token)
    print("chat logprobs:", len(content), "tokens")


def completion(client, model):
    answer = client.completions.create(
        model=model, prompt=["One, two, three,", "Once upon a time"], max_tokens=8, temperature=0, logprobs=2, n=2, echo=True
    )
    check([choice.index for choice in answer.choices] == [0, 1, 2, 3], answer)
    for choice in answer.choices:
        prompt = "One, two, three," if choice.index < 2 else "Once upon a time"
        check(choice.text.startswith(prompt), choice)
        report = choice.logprobs
        lengths = {len(report.tokens), len(report.token_logprobs), len(report.top_logprobs), len(report.text_offset)}
        check(len(lengths) == 1, lengths)
        check(report.token_logprobs[0] is None, report.token_logprobs)
        check(all(value <= 0 for value in report.token_logprobs[1:]), report.token_logprobs)
        check(report.text_offset == sorted(report.text_offset), report.text_offset)
    print("completion with logprobs:", repr(answer.choices[0].text))


def errors(client, model):
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=9)
    except openai.BadRequestError as error:
        check(error.status_code == 400 and error.param == "temperature", error)
        check("temperature" in error.message and "2" in error.message, error.message)
        print("bad request:", error.message)
    else:
        raise AssertionError("temperature 9 was accepted")
    try:
        client.chat.completions.create(model=model + "-not", messages=QUESTION)
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", error)
    else:
        raise AssertionError("an unknown model was accepted")
    try:
        client.embeddings.create(model=model, input="hello")
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("embeddings were accepted")


def tools(client, model):
    names = ("f_one", "f_two")
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    arguments = dict(model=model, messages=[{"role": "user", "content": "x D"}], tools=tools)
    whole = client.chat.completions.create(**arguments).choices[0]
    check(whole.finish_reason == "tool_calls", whole)
    check([call.function.name for call in whole.message.tool_calls] == list(names), whole)
    parsed = [json.loads(call.function.arguments) for call in whole.message.tool_calls]
    check(parsed == [{"x": 1}, {}], parsed)
    with client.chat.completions.stream(**arguments) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    streamed = [json.loads(call.function.arguments) for call in final.message.tool_calls]
    check(streamed == parsed and final.finish_reason == "tool_calls", final)
    # What came out goes back in.
    history = arguments["messages"] + [whole.message.model_dump(exclude_none=False)]
    history += [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in whole.message.tool_calls]
    again = client.chat.completions.create(
        model=model, messages=history + [{"role": "user", "content": "x B"}], tools=tools
    )
    check(again.choices[0].message.content == "alpha beta gamma delta", again)
    print("tools: two calls, replayed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    url = url if url.endswith("/v1") else url + "/v1"
    # No retries: a request that fails once has failed.
    client = openai.OpenAI(base_url=url, api_key=arguments.api_key, max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    check(client.models.retrieve(model).id == model, model)
    whole = chat(client, model)
    streamed_chat(client, model, whole)
    stream_helper(client, model, whole)
    chat_logprobs(client, model)
    completion(client, model)
    errors(client, model)
    if arguments.tools:
        tools(client, model)
    print("ok")


if __name__ == "__main__":
    main()
