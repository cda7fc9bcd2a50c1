"""Block events as a router reads them: libzmq and msgspec against the real server with the real model."""
import json
import re
import unittest
import urllib.request

import msgspec
import zmq

from test_openai import MODEL, Server

WAIT_MS = 60_000


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Typed(Batch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


DECODER = msgspec.msgpack.Decoder(Typed)


class KvEvents(unittest.TestCase):
    def setUp(self):
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@here", "buffer_steps": 100,
                  "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}
        self.server = Server("--kv-events-config", json.dumps(config))
        found = re.search(r"block events.* endpoint=(\S+) replay=(\S+)", "".join(self.server.output))
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.live.connect(found.group(1))
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.connect(found.group(2))
        self.context.setsockopt(zmq.LINGER, 0)

    def tearDown(self):
        self.context.destroy(0)
        self.assertEqual(self.server.stop(), 0, "".join(self.server.output))

    def post(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    def ask(self, prompt, **fields):
        return self.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields})

    def hear(self, wanted):
        """Messages until an event of that kind came: (sequence, payload, events)."""
        messages = []
        while True:
            self.assertTrue(self.live.poll(WAIT_MS), f"no {wanted} in {WAIT_MS} ms, only {messages}")
            topic, sequence, payload = self.live.recv_multipart()
            self.assertEqual((topic, len(sequence)), (b"kv@here", 8))
            batch = DECODER.decode(payload)
            messages.append((int.from_bytes(sequence, "big"), payload, batch.events))
            if any(isinstance(event, wanted) for event in batch.events):
                return messages

    def again(self, first):
        self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        messages = []
        while True:
            self.assertTrue(self.replay.poll(WAIT_MS), "the replay did not end")
            _, sequence, payload = self.replay.recv_multipart()
            if sequence == b"\xff" * 8:
                self.assertEqual(payload, b"")
                return messages
            messages.append((int.from_bytes(sequence, "big"), payload))

    def test_a_router_hears_what_is_stored_and_cleared(self):
        text = "The quick brown fox jumps over the lazy dog. " * 40
        # Subscriptions travel: the first messages may come before this one has arrived.
        tenants = (f"early {n}" for n in range(1000))
        while not self.live.poll(200):
            self.ask("warm up " * 200, cache_salt=next(tenants))
        self.post("/flush_cache", {})
        messages = self.hear(AllBlocksCleared)
        ids = self.post("/tokenize", {"prompt": text})["tokens"]
        salted = self.ask(ids, cache_salt="tenant")
        messages += self.hear(BlockStored)
        stored = [event for event in messages[-1][2] if isinstance(event, BlockStored)]
        size = stored[0].block_size
        whole = len(ids) // size * size
        self.assertGreater(whole, 0)
        self.assertEqual(salted["usage"]["prompt_tokens"], len(ids))
        self.assertEqual(stored[0].token_ids, ids[:whole])
        self.assertEqual((stored[0].parent_block_hash, stored[0].medium), (None, "GPU"))
        self.assertEqual(len(stored[0].block_hashes), whole // size)
        self.assertEqual(stored[0].extra_keys[0], ["tenant"])

        # The next turn continues the last block.
        self.ask(ids + ids[:100], cache_salt="tenant")
        messages += self.hear(BlockStored)
        more = [event for event in messages[-1][2] if isinstance(event, BlockStored)][0]
        self.assertEqual(more.parent_block_hash, stored[0].block_hashes[-1])

        self.post("/flush_cache", {})
        messages += self.hear(AllBlocksCleared)
        numbers = [number for number, _, _ in messages]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))), "no gap")
        self.assertEqual(self.again(numbers[0]), [(number, payload) for number, payload, _ in messages])


if __name__ == "__main__":
    unittest.main()
