"""server_test.py PROGRAMS PRELOAD ADAPTER KVEVICT WRITE_MODEL REFERENCE PROGRAM: a real
llama-server with libkvevict-llama-preload.so, over HTTP.

Where the budget covers a prompt, answers are those of the server without the library.
Else they are those of the adapter's own functions (reference.cc), token by token."""
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from server import HttpError, Paths, Reference, Server, task, text_of

POLICY = "snapkv:budget=64,margin=16"
# This cache and attention round less than the defaults.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
N = 24  # tokens of an answer
PATHS = None


def random_tokens(length, seed):
    draw = random.Random(seed)
    return [draw.randrange(3, 256) for _ in range(length)]


def steady_prompts(reference, n):
    """Prompts whose answers do not hang on how llama.cpp rounds. It takes other ways for
    other sizes of batches, whose attention differs by some thousandths; where two tokens
    are nearly as likely, or score nearly the same, the other one is taken then."""
    prompts, answers = [], []
    for seed in range(1000):
        prompt = random_tokens(80 + 40 * (seed % 13), seed)
        answer = reference.answer(prompt, N)
        if reference.margin > 0.02 and all(
                reference.answer(prompt, N, piece) == answer and reference.margin > 0.02
                for piece in (100, 24, 1)):
            prompts.append(prompt)
            answers.append(answer)
            if len(prompts) == n:
                return prompts, answers
    raise RuntimeError("the model is never sure")


class ServerCase(unittest.TestCase):
    maxDiff = 600

    def assert_said(self, server, *sentences):
        """These, each once, are all that is said beside evictions."""
        said = [line for line in server.said() if " cells, " not in line]
        self.assertEqual(len(said), len(sentences), said)
        for sentence in sentences:
            self.assertEqual(sum(sentence in line for line in said), 1, (sentence, said))


class SlotsCase(ServerCase):
    """One server for all tests of a class."""

    ARGUMENTS = ()
    N_CTX = 16384
    CACHE_TYPE = "f16"

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            Server(PATHS, POLICY, *cls.ARGUMENTS, n_ctx=cls.N_CTX))
        cls.reference = cls.enterClassContext(
            Reference(PATHS, POLICY, n_ctx=cls.N_CTX, cache_type=cls.CACHE_TYPE))

    @classmethod
    def tearDownClass(cls):
        others = [line for line in cls.server.said()
                  if " cells, " not in line and "is not evicted yet: " not in line]
        cls("run").assertEqual(len(others), 1, others)
        cls("run").assertIn("a context of 16384 cells and 4 sequences is evicted", others[0])


class DefaultsTest(SlotsCase):
    """Four slots in a unified cache, continuous batching, prompt caching."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prompts, cls.wanted = steady_prompts(cls.reference, 8)

    def test_answers_are_those_of_the_adapter(self):
        before = len(self.server.evictions())
        self.assertEqual([self.server.answer(p, N) for p in self.prompts], self.wanted)
        self.assertEqual(len(self.server.evictions()) - before, 2 * len(self.prompts))
        with Server(PATHS, None) as whole:
            differ = [whole.answer(p, N) != w for p, w in zip(self.prompts, self.wanted)]
            self.assertEqual(whole.said(), [])
        self.assertGreater(4 * sum(differ), 3 * len(differ), "the evictions change nothing")

    def test_texts(self):
        for prompt, wanted in zip(self.prompts[:4], self.wanted):
            self.assertEqual(self.server.complete(text_of(prompt), N)["content"],
                             text_of(wanted))

    def test_streams(self):
        for prompt, wanted in zip(self.prompts[:4], self.wanted):
            self.assertEqual(self.server.stream(prompt, N), wanted)

    def test_cancelled_requests(self):
        n_cancelled = self.server.log().count("cancel task")
        for prompt, wanted in zip(self.prompts[:4], self.wanted):
            self.assertEqual(self.server.stream(prompt, 8000, most_events=N), wanted)
        for i in range(4):  # while the prompt is read
            self.server.stream(random_tokens(3000, 77 + i), N, seconds=0.02)
        for prompt, wanted in zip(self.prompts, self.wanted):
            self.assertEqual(self.server.answer(prompt, N), wanted)
        self.assertGreaterEqual(self.server.log().count("cancel task") - n_cancelled, 8)


class SlotsTest(SlotsCase):
    """What a slot holds serves later requests."""

    ARGUMENTS = EXACT
    CACHE_TYPE = "f32"

    def test_a_chat_is_not_read_again(self):
        prompt = random_tokens(300, 20)
        answer = self.server.answer(prompt, N, id_slot=0)
        self.assertEqual(answer, self.reference.answer(prompt, N))
        for turn in range(5):
            n_cached = len(prompt) + N - 1
            more = random_tokens(40, 30 + turn)
            prompt = prompt + answer + more
            result = self.server.complete(prompt, N, id_slot=0)
            answer = result["tokens"]
            self.assertEqual(answer, self.reference.goes_on(more, N), turn)
            self.assertEqual(result["timings"]["cache_n"], n_cached)

    def test_a_tail_from_before_the_eviction_is_read_again(self):
        prompt = random_tokens(300, 50)
        for length in (300, 299, 200, 10):
            self.server.answer(prompt, N, id_slot=1)
            other = prompt[:length] + random_tokens(30 if length < 300 else 0, length)
            result = self.server.complete(other, N, id_slot=1)
            self.assertEqual(result["tokens"], self.reference.answer(other, N))
            self.assertEqual(result["timings"]["cache_n"], 0)

    def test_a_tail_from_after_the_eviction_goes(self):
        prompt = random_tokens(300, 51)
        answer = self.server.answer(prompt, 10, id_slot=1)
        self.assertEqual(answer, self.reference.answer(prompt, 10))
        for kept in (9, 5, 0):
            more = random_tokens(3, kept)
            result = self.server.complete(prompt + answer[:kept] + more, 3, id_slot=1)
            self.assertEqual(result["timings"]["cache_n"], 300 + kept)
            self.assertEqual(result["tokens"], self.reference.trim(300 + kept, more, 3))

    def test_saved_slots(self):
        prompt, more = random_tokens(300, 60), random_tokens(50, 61)
        answer = self.server.answer(prompt, N, id_slot=1)
        self.server.post("/slots/1?action=save", filename="saved")
        self.server.post("/slots/1?action=erase")
        self.reference.answer(prompt, N)
        self.reference.reload()
        wanted = self.reference.goes_on(more, N)
        self.assertGreater(self.reference.n_evictions, 0)
        for slot in (1, 2):
            self.server.post(f"/slots/{slot}?action=restore", filename="saved")
            result = self.server.complete(prompt + answer + more, N, id_slot=slot)
            self.assertEqual(result["tokens"], wanted)
            self.assertEqual(result["timings"]["cache_n"], 300 + N - 1)
        with Server(PATHS, None) as other:
            with self.assertRaisesRegex(HttpError, "^400: .*Unable to restore slot"):
                other.post("/slots/0?action=restore", filename="saved")
            self.assertEqual(len(other.answer(prompt, N)), N)

    def test_prompts_that_were_put_aside(self):
        prompt, more = random_tokens(300, 70), random_tokens(5, 71)
        answer = self.server.answer(prompt, N)
        self.reference.answer(prompt, N)
        self.reference.reload()
        for seed in range(5):
            self.server.answer(random_tokens(300, 72 + seed), N)
        n_waits = len(self.server.said("is not evicted yet: "))
        result = self.server.complete(prompt + answer + more, N)
        self.assertEqual(result["timings"]["cache_n"], 300 + N - 1)
        self.assertEqual(result["tokens"], self.reference.goes_on(more, N))
        self.assertEqual(len(self.server.said("is not evicted yet: ")), n_waits + 1)


class AtOnceTest(ServerCase):
    """Requests at once, where llama.cpp's rounding changes no answer: with positions that
    are chosen without scores, and with exact attention."""

    def check(self, policy, *arguments, **reference):
        with Reference(PATHS, policy, **reference) as own, \
                Server(PATHS, policy, *arguments) as server:
            prompts, wanted = steady_prompts(own, 6)
            for _ in range(2):
                self.assertEqual(server.answers(prompts, N), wanted)
            self.assertEqual({slot for slot, *_ in server.evictions()}, {"0", "1", "2", "3"})
            self.assertEqual(server.answers(prompts, N, stream=True), wanted)
            for prompt, answer in zip(prompts[:2], wanted):
                results = server.post("/completion", **task(prompt, N, n_cmpl=3))
                self.assertEqual([result["tokens"] for result in results], 3 * [answer])
            self.assert_said(server, "is evicted")

    def test_defaults(self):
        self.check("streaming-llm:budget=64,margin=16")

    def test_scores(self):
        self.check(POLICY, *EXACT, cache_type="f32")

    def test_a_stream_for_each_slot(self):
        self.check(POLICY, *EXACT, "--no-kv-unified", "-np", 4, cache_type="f32", unified=False)


class OtherCachesTest(ServerCase):
    def check(self, *arguments, **reference):
        with Reference(PATHS, POLICY, **reference) as own, \
                Server(PATHS, POLICY, *arguments) as server:
            prompts, wanted = steady_prompts(own, 4)
            self.assertEqual([server.answer(p, N) for p in prompts], wanted)
            self.assert_said(server, "is evicted")
            self.assertEqual(len(server.evictions()), 2 * len(prompts))

    def test_a_stream_for_each_slot(self):
        self.check("--no-kv-unified", "-np", 4, unified=False)

    def test_quantized(self):
        self.check("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", cache_type="q8_0")


class DraftsTest(ServerCase):
    def test_tokens_of_a_draft_may_be_taken_back(self):
        arguments = ("-md", PATHS.model("llama"), "--spec-type", "draft-simple")
        with Reference(PATHS, POLICY) as own, Server(PATHS, POLICY, *arguments) as server:
            prompts, wanted = steady_prompts(own, 4)
            for prompt, answer in zip(prompts, wanted):
                result = server.complete(prompt, N)
                # Compares up to where the reference evicts again: here that would be among
                # drafts.
                self.assertEqual(result["tokens"][:17], answer[:17])
                self.assertGreater(result["timings"]["draft_n"],
                                   result["timings"]["draft_n_accepted"])
            self.assert_said(server, "4 sequences is evicted", "only the first one is evicted")


class UnchangedTest(ServerCase):
    """Answers of the server without the library."""

    @classmethod
    def setUpClass(cls):
        cls.whole = cls.enterClassContext(Server(PATHS, None))
        cls.prompts = [random_tokens(40 + 45 * i, i) for i in range(12)]
        cls.answers = [cls.whole.answer(p, N) for p in cls.prompts]

    def test_a_budget_that_covers_the_prompt(self):
        policy = "snapkv:budget=4000"
        chat = self.prompts[3]
        with Reference(PATHS, policy) as reference, Server(PATHS, policy) as server:
            self.assertEqual([server.complete(text_of(p), N)["content"] for p in self.prompts],
                             [text_of(answer) for answer in self.answers])
            self.assertEqual([server.stream(p, N) for p in self.prompts], self.answers)
            for prompt in (chat, chat[:100], chat[:99] + chat, chat[:50]):
                a, b = (s.complete(prompt, N, id_slot=0) for s in (server, self.whole))
                self.assertEqual(a["tokens"], b["tokens"])
                self.assertEqual(a["timings"]["cache_n"], b["timings"]["cache_n"])
            prompts, wanted = steady_prompts(reference, 8)
            for s in (server, self.whole):
                self.assertEqual(s.answers(prompts, N), wanted)
            self.assertEqual(server.evictions(), [])
            messages = [{"role": "user", "content": "What is a cache?"}]
            a, b = (s.post("/v1/chat/completions", **task(None, N), messages=messages)
                    for s in (server, self.whole))
            self.assertEqual(a["choices"], b["choices"])

    def test_a_policy_that_is_refused(self):
        for policy, why in (("snapkv:budget=-3", "budget"), ("no-such-policy", "no-such-policy"),
                            ("pyramidkv:budget=64", "one list of cells")):
            with Server(PATHS, policy) as server:
                self.assertEqual(server.answer(self.prompts[5], N), self.answers[5])
                self.assert_said(server, "nothing is evicted: ")
                self.assertIn(why, server.said()[0])

    def test_models_that_are_left_as_they_are(self):
        for arch, why in (("gemma3", "sliding window"), ("lfm2", "recurrent layers")):
            with Server(PATHS, None, arch=arch) as whole, \
                    Server(PATHS, POLICY, arch=arch) as server:
                for prompt in self.prompts[:3]:
                    self.assertEqual(server.answer(prompt, N), whole.answer(prompt, N))
                self.assert_said(server, "a context is left as it is: the model has")
                self.assertIn(why, server.said()[0])

    def test_a_slot_that_was_saved_without_the_library(self):
        prompt, more = random_tokens(300, 90), random_tokens(50, 91)
        answer = self.whole.answer(prompt, N, id_slot=1)
        self.whole.post("/slots/1?action=save", filename="whole")
        wanted = self.whole.answer(prompt + answer + more, N, id_slot=1)
        with Server(PATHS, POLICY) as server:
            server.post("/slots/2?action=restore", filename="whole")
            for _ in range(2):
                result = server.complete(prompt + answer + more, N, id_slot=2)
                self.assertEqual(result["tokens"], wanted)
            self.assert_said(server, "is evicted", "seq 2 is not evicted: ")
            self.assertEqual(server.evictions(), [])

    def test_context_shift_is_off(self):
        with Server(PATHS, POLICY, "--context-shift", n_ctx=512) as server, \
                Reference(PATHS, POLICY, n_ctx=512) as reference:
            (prompt,), (answer,) = steady_prompts(reference, 1)
            result = server.complete(prompt, 1000)
            self.assertEqual(result["tokens"][:N], answer)
            self.assertEqual(len(result["tokens"]), 512 - len(prompt))
            self.assertEqual(result["stop_type"], "limit")
            self.assertIn("shifting is not supported", server.log())
            with self.assertRaisesRegex(HttpError, "^400: .*exceeds the available context size"):
                server.answer(random_tokens(512, 92), N)


class LengthTest(ServerCase):
    """KVEVICT_N_CTX: more tokens than cells."""

    def test_a_chat_outgrows_the_cells(self):
        with Reference(PATHS, POLICY, n_ctx=1024, cache_type="f32") as reference, \
                Server(PATHS, POLICY, *EXACT, n_ctx=1024, KVEVICT_N_CTX="8000") as server:
            prompt = random_tokens(400, 80)
            answer = server.answer(prompt, N, id_slot=0)
            self.assertEqual(answer, reference.answer(prompt, N))
            for turn in range(8):
                more = random_tokens(400, 81 + turn)
                prompt = prompt + answer + more
                answer = server.answer(prompt, N, id_slot=0)
                self.assertEqual(answer, reference.goes_on(more, N), turn)
            self.assertGreater(len(prompt), 3000)

    def test_a_prompt_without_room_ends_all_answers(self):
        with Server(PATHS, POLICY, n_ctx=1024, KVEVICT_N_CTX="8000") as server, \
                ThreadPoolExecutor() as pool:
            other = pool.submit(server.answer, random_tokens(100, 89), 7000)
            while not server.evictions():
                time.sleep(0.01)
            for refused in (lambda: server.answer(random_tokens(2000, 90), N), other.result):
                with self.assertRaisesRegex(HttpError, "500: .*Context size has been exceeded"):
                    refused()
            with Reference(PATHS, POLICY, n_ctx=1024) as reference:
                prompts, wanted = steady_prompts(reference, 2)
                self.assertEqual([server.answer(p, N) for p in prompts], wanted)

    def test_no_number(self):
        with Server(PATHS, POLICY, KVEVICT_N_CTX="8k") as server:
            self.assert_said(server, "is evicted", "KVEVICT_N_CTX=8k is not in [0, ")
            self.assertEqual(server.get("/props")["default_generation_settings"]["n_ctx"], 4096)


class CalibrationTest(ServerCase):
    """KVEVICT_CALIBRATION: a file of `kvevict-llama-cli calibrate`."""

    TEXT = text_of(random_tokens(2000, 7))

    def test_answers_are_those_of_the_adapter(self):
        file = PATHS.calibration("llama", self.TEXT)
        for policy in ("triattention:budget=64,margin=16",
                       "expected-attention:budget=64,margin=16"):
            with Reference(PATHS, policy, calibration=file) as own, \
                    Server(PATHS, policy, KVEVICT_CALIBRATION=str(file)) as server:
                prompts, wanted = steady_prompts(own, 8)
                self.assertEqual([server.answer(p, N) for p in prompts], wanted)
                self.assert_said(server, "is evicted")
                self.assertEqual(len(server.evictions()), 2 * len(prompts))
        with Reference(PATHS, policy) as without:
            self.assertNotEqual([without.answer(p, N) for p in prompts], wanted)

    def test_a_file_that_is_missing_or_of_another_model(self):
        prompt, policy = random_tokens(300, 95), "triattention:budget=64"
        with Server(PATHS, None) as whole:
            wanted = whole.answer(prompt, N)
        for file, why in (
                (PATHS.work / "none", "none cannot be read"), (PATHS.work, "cannot be read"),
                (PATHS.calibration("qwen3", self.TEXT), "rope_layout 0 is not the plan's 1")):
            with Server(PATHS, policy, KVEVICT_CALIBRATION=str(file)) as server:
                for _ in range(2):
                    self.assertEqual(server.answer(prompt, N), wanted)
                said = [line for line in server.said() if "nothing is evicted: " in line]
                self.assertEqual(len(said), 1, server.said())
                self.assertIn(why, said[0])
                self.assertEqual(server.evictions(), [])


class CompletionTest(ServerCase):
    def test_llama_completion(self):
        with Reference(PATHS, POLICY) as reference:
            (prompt,), (answer,) = steady_prompts(reference, 1)
        log = PATHS.work / "completion.log"
        command = PATHS.command(PATHS.programs / "usr/bin/llama-completion") + [
            "-m", PATHS.model("llama"), "-p", text_of(prompt), "-n", str(N), "-c", "4096",
            "-t", "1", "--temp", "0", "--ignore-eos", "-no-cnv", "--no-display-prompt",
            "--no-warmup"]
        expected = text_of(answer).strip()
        # The program prints in a thread of its own. On a busy machine it sometimes exits
        # before that has printed the end of its answer, and then it runs again.
        for _ in range(20):
            log.unlink(missing_ok=True)
            run = subprocess.run(
                command, cwd=PATHS.backends, env=PATHS.environment(POLICY, KVEVICT_LOG=str(log)),
                stdin=subprocess.DEVNULL, capture_output=True, check=True)
            text = run.stdout.decode(errors="ignore").strip()
            if text == expected or not expected.startswith(text):
                break
        self.assertEqual(text, expected)
        self.assertEqual(len(log.read_text().splitlines()), 2)


def main():
    global PATHS
    if sys.version_info < (3, 11):
        print("Python 3.11 or newer is needed")
        sys.exit(77)
    work = pathlib.Path(tempfile.mkdtemp(prefix="kvevict-"))
    PATHS = Paths(*map(pathlib.Path, sys.argv[1:8]), work)
    try:
        test = unittest.main(argv=[sys.argv[0], *sys.argv[8:]], exit=False)
    finally:
        shutil.rmtree(work)
    sys.exit(not test.result.wasSuccessful())


if __name__ == "__main__":
    main()
