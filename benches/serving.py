"""A `tokenspeed serve` to measure, and the command to start it with. Only the Python standard library is needed."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arguments(parser):
    """Reads the command line: MODEL and --tokenspeed beside the parser's own, and what stands behind `--`."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    release = os.path.join(ROOT, "target/release/tokenspeed")
    default = release if os.path.exists(release) else shutil.which("tokenspeed")
    parser.add_argument("model")
    parser.add_argument("--tokenspeed", default=default)
    args = parser.parse_args(sys.argv[1:split])
    if not args.tokenspeed:
        sys.exit("no command tokenspeed: cargo build --release --workspace, or name one with --tokenspeed")
    return args, sys.argv[split + 1 :]


class Server:
    """A process that serves a model at `url`, from when it is healthy until `stop`."""

    def __init__(self, args, options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        command = [args.tokenspeed, "serve", args.model, "--port", port, *options]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                with urllib.request.urlopen(self.url + "/v1/models", timeout=5) as answer:
                    self.model = json.load(answer)["data"][0]["id"]
                return
            except OSError:
                if self.process.poll() is not None:
                    self.log.seek(0)
                    sys.exit(f"{' '.join(command)}\n{self.log.read().decode()}")
                time.sleep(0.1)

    def choices(self, path, body):
        """The choices of a streamed answer's pieces, as they come; an error of the server is urllib's."""
        data = json.dumps({"model": self.model, "stream": True, "ignore_eos": True, **body}).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as stream:
            for line in stream:
                if line.startswith(b"data: {"):
                    yield from json.loads(line[6:]).get("choices", ())

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
