"""Real programs of llama.cpp, with and without the preloaded library, and the adapter's
own answers beside them."""
import dataclasses
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

# The tokens of write_model.cc, see random_model.cc.
CHARACTERS = ["", "", "", "\n", " "] + [chr(c) for c in range(0x21, 0x7F)]
CHARACTERS += [chr(c) for c in range(0xC0, 0xC0 + 256 - len(CHARACTERS))]


def text_of(tokens):
    return "".join(CHARACTERS[t] for t in tokens)


@dataclasses.dataclass
class Paths:
    """What the build has made, and where the programs of llama.cpp lie."""

    programs: pathlib.Path
    preload: pathlib.Path
    adapter: pathlib.Path
    kvevict: pathlib.Path
    write_model: pathlib.Path
    reference: pathlib.Path
    program: pathlib.Path
    work: pathlib.Path

    @property
    def libraries(self):
        return self.programs / "usr/lib/x86_64-linux-gnu"

    @property
    def backends(self):
        return self.libraries / "ggml/backends0"

    def command(self, program):
        """Starts a program with the C library that it came with."""
        folders = [self.libraries, self.libraries / "llama", self.adapter.parent,
                   self.kvevict.parent]
        return [str(self.libraries / "ld-linux-x86-64.so.2"), "--library-path",
                ":".join(map(str, folders)), str(program)]

    def environment(self, policy, **others):
        """of a program that evicts, or with policy None of one that does not."""
        settings = {k: v for k, v in os.environ.items()
                    if not k.startswith(("KVEVICT_", "LD_"))}
        if policy is not None:
            settings.update(LD_PRELOAD=str(self.preload), KVEVICT_POLICY=policy)
        settings.update(others)
        return settings

    def model(self, arch):
        path = self.work / f"{arch}.gguf"
        if not path.exists():
            subprocess.run([self.write_model, path, arch], check=True)
        return path

    def calibration(self, arch, text):
        """A file that `kvevict-llama-cli calibrate` makes of a model and a text."""
        words, path = self.work / f"{arch}.txt", self.work / f"{arch}.kvcal"
        words.write_text(text)
        subprocess.run([self.program, "calibrate", "-m", self.model(arch), "-f", words,
                        "-o", path, "--tokens", "200"], check=True, capture_output=True)
        return path


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=300)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class HttpError(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class Server:
    """A llama-server at a socket of its own; one thread, since more spin where others
    work too."""

    count = 0

    def __init__(self, paths, policy, *arguments, arch="llama", n_ctx=4096, **environment):
        Server.count += 1
        self.socket = paths.work / f"{Server.count}.sock"
        self.log_path = paths.work / f"{Server.count}.log"
        self.slots = paths.work / "slots"
        self.slots.mkdir(exist_ok=True)
        command = paths.command(paths.programs / "usr/bin/llama-server")
        command += ["-m", str(paths.model(arch)), "--host", str(self.socket), "-c", str(n_ctx),
                    "-t", "1", "-tb", "1", "--slot-save-path", str(self.slots),
                    *map(str, arguments)]
        environment = {"KVEVICT_LOG": "1", **environment}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=paths.backends, env=paths.environment(policy, **environment),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        deadline = time.monotonic() + 300
        while True:
            try:
                self.get("/health")
                return self
            except (OSError, HttpError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"llama-server does not start:\n{self.log()}") from None
                time.sleep(0.02)

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def said(self, words=""):
        """The lines of the preloaded library that contain these words."""
        return [line for line in self.log().splitlines()
                if line.startswith("kvevict: ") and words in line]

    def evictions(self):
        return [re.match(r"kvevict: seq (\d+) at (\d+): (\d+) -> (\d+) cells", line).groups()
                for line in self.said(" cells, ")]

    def request(self, method, path, body=None):
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise HttpError(response.status, content)
        return json.loads(content)

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, **body):
        return self.request("POST", path, body)

    def complete(self, prompt, n, **more):
        return self.post("/completion", **task(prompt, n, **more))

    def answer(self, prompt, n, **more):
        return self.complete(prompt, n, **more)["tokens"]

    def answers(self, prompts, n, stream=False):
        """of requests that are made at once."""
        ask = self.stream if stream else self.answer
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: ask(prompt, n), prompts))

    def stream(self, prompt, n, most_events=None, seconds=None, **more):
        """The tokens of the events of a stream, whose reader goes away after so many, or
        after so long."""
        connection = UnixConnection(self.socket)
        connection.request("POST", "/completion",
                           json.dumps(task(prompt, n, stream=True, **more)),
                           {"Content-Type": "application/json"})
        tokens, n_events = [], 0
        if seconds is not None:
            time.sleep(seconds)
            most_events = 0
        response = None
        while most_events is None or n_events < most_events:
            response = response or connection.getresponse()
            line = response.readline()
            if not line:
                break
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                tokens += json.loads(line[6:])["tokens"]
                n_events += 1
        if response is not None:
            response.close()
        connection.close()
        return tokens


def task(prompt, n, **more):
    return {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True,
            "return_tokens": True, **more}


class Reference:
    """Sequences that a program evicts by the adapter's own functions."""

    def __init__(self, paths, policy, n_ctx=4096, cache_type="f16", unified=True, arch="llama",
                 calibration=None):
        self.process = subprocess.Popen(
            paths.command(paths.reference)
            + [str(paths.model(arch)), str(paths.backends), policy, str(n_ctx), cache_type,
               str(int(unified))] + ([] if calibration is None else [str(calibration)]),
            env=paths.environment(None), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.n_evictions, self.margin = 0, 0.0  # of the last answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if not words:
            raise RuntimeError("the reference program has ended")
        self.n_evictions, self.margin = int(words[0]), float(words[1])
        return [int(t) for t in words[2:]]

    def answer(self, tokens, n, piece=0):
        return self.ask("new", piece, n, *tokens)

    def goes_on(self, tokens, n):
        return self.ask("continue", n, *tokens)

    def trim(self, length, tokens, n):
        return self.ask("trim", length, n, *tokens)

    def reload(self):
        self.ask("reload")
