"""The official `openai` client against the real server with the real model.

Run by `cargo xtask test`, which sets TOKENSPEED_BIN (the built command) and TOKENSPEED_HOME (where the model was pulled).
"""
import os
import re
import signal
import subprocess
import threading
import unittest

import openai

MODEL = "smollm2-135m"
READY_S = 120
STOP_S = 30


class Server:
    """`tokenspeed serve` on a free port."""

    def __init__(self, *options):
        command = [os.environ["TOKENSPEED_BIN"], "serve", MODEL, "--host", "127.0.0.1", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output, self.ready, self.url = [], threading.Event(), None
        threading.Thread(target=self.read, daemon=True).start()
        if not self.ready.wait(READY_S) or self.url is None:
            self.process.kill()
            raise AssertionError("the server named no address:\n" + "".join(self.output))

    def read(self):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"ready.*?(http://[^\s/]+)", line)
            if found and self.url is None:
                self.url = found.group(1)
                self.ready.set()
        self.ready.set()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="unused", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0, "".join(cls.server.output)

    def chat(self, **more):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        return self.client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=24, **more
        )

    def test_chat_streamed_equals_unstreamed(self):
        whole = self.chat()
        text = whole.choices[0].message.content
        self.assertIn("Paris", text)
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)

        pieces, reasons, usage = [], [], None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                reasons += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual("".join(pieces), text)
        self.assertGreater(len([p for p in pieces if p]), 1, "the answer came in one piece")
        self.assertEqual(reasons, [whole.choices[0].finish_reason])
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completion_with_logprobs(self):
        answer = self.client.completions.create(
            model=MODEL, prompt="One, two, three, four,", temperature=0, max_tokens=6, logprobs=3
        )
        choice = answer.choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(len(choice.logprobs.token_logprobs), answer.usage.completion_tokens)
        for chosen, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
            self.assertLessEqual(chosen, 0.0)
            self.assertGreaterEqual(len(top), 3)
            # Greedy: what was chosen is the most likely one.
            self.assertAlmostEqual(chosen, max(top.values()), places=5)
            values = list(top.values())
            self.assertEqual(values, sorted(values, reverse=True))

    def test_a_second_turn_is_cached(self):
        prompt = "A long introduction about rivers, mountains and cities. " * 40
        first = self.client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=2)
        again = self.client.completions.create(model=MODEL, prompt=prompt + "And so", temperature=0, max_tokens=2)
        cached = again.usage.prompt_tokens_details.cached_tokens
        self.assertGreater(cached, first.usage.prompt_tokens // 2)
        self.assertLess(cached, again.usage.prompt_tokens)

    def test_bad_requests_are_readable_and_lose_nothing(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"temperature": 99})
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="no-such-model", prompt="x")
        self.assertIn("no-such-model", str(caught.exception))
        self.assertIn("Paris", self.chat().choices[0].message.content)

    def test_models_lists_the_served_name(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])


if __name__ == "__main__":
    unittest.main()
