// What is this package's own: memory, lifetimes, errors, what is left out, the surface.
import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const web = await import(process.env.KVEVICT_WEB);
const { load, fullModule, smallModule, tokenMajor, headMajor, DType, KvevictError, Status } = web;
const kv = await load();
const full = await load(fullModule);
const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const layers = { nQHeads: 2, nKvHeads: 1, kHeadDim: 8, vHeadDim: 8 };
const planOf = (core, text, more = {}) =>
  core.context().plan({ nLayers: 1, maxTokens: 64, layers: { ...layers, ...more } },
                      core.policy(text));

function refused(use, statusName, sentence) {
  assert.throws(use, (error) => {
    assert.ok(error instanceof KvevictError, String(error));
    assert.equal(error.statusName, statusName);
    assert.match(error.message, sentence);
    return true;
  });
}

test("a module is loaded from bytes, a URL, a module and a promise", async () => {
  const bytes = await readFile(smallModule);
  const { version } = kv;
  for (const source of [bytes, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset +
                        bytes.byteLength), smallModule, String(smallModule),
                        await WebAssembly.compile(bytes), Promise.resolve(bytes)]) {
    assert.equal((await load(source)).version, version);
  }
  await assert.rejects(load(new URL("./missing.wasm", smallModule)), /missing\.wasm/);
});

test("errors carry status and sentence", () => {
  refused(() => kv.policy("snapkv:budget=0"), "INVALID_ARGUMENT", /budget="0" is not/);
  refused(() => planOf(kv, "knorm:budget=8", { nKvHeads: 3 }), "INVALID_ARGUMENT",
          /n_q_heads 2 is not a multiple of n_kv_heads 3/);
  assert.equal(new KvevictError("x", Status.UNSUPPORTED).statusName, "UNSUPPORTED");
});

test("fields that structs do not have are refused", () => {
  assert.throws(() => planOf(kv, "knorm:budget=8", { nHeads: 2 }), /has no field nHeads/);
  assert.throws(() => kv.policy("knorm", { budgets: 1 }), /no parameter budgets/);
});

test("the small module refuses what it leaves out, the full one does not", () => {
  const quantized = { kDtype: DType.Q8_0, kHeadDim: 32 };
  refused(() => planOf(kv, "knorm:budget=8", quantized), "UNSUPPORTED",
          /k_dtype q8_0: this build leaves it out/);
  planOf(full, "knorm:budget=8", quantized);
  const rows = new Float32Array(8);
  const job = { nTokens: 1, view: { nKvHeads: 1, k: tokenMajor(rows, 1, 8),
                                    v: tokenMajor(rows.slice(), 1, 8) },
                queries: tokenMajor(rows.slice(), 1, 8), nQHeads: 1, nQueries: 1,
                out: tokenMajor(new Float32Array(8), 1, 8) };
  refused(() => kv.context().attend(job), "UNSUPPORTED", /leaves out attention/);
  full.context().attend(job);
  const built = (core) => core.dtypes().filter((row) => row.canMove).map((row) => row.name);
  assert.deepEqual(built(kv), ["opaque", "f32", "f16", "bf16"]);
  assert.equal(built(full).length, 12);
});

test("handles may be destroyed twice and in any order, and not used then", () => {
  const context = kv.context();
  const policy = kv.policy("knorm:budget=8");
  const plan = context.plan({ nLayers: 1, maxTokens: 64, layers }, policy);
  const sequence = plan.sequence();
  for (const handle of [context, policy, plan, plan]) handle.destroy();
  sequence.append(13);
  const fork = sequence.fork();
  const rows = () => tokenMajor(new Float32Array(13 * 8), 1, 8);
  for (const one of [sequence, fork]) {
    assert.equal(one.evict([{ nKvHeads: 1, k: rows(), v: rows() }]).evicted, 1);
    assert.equal(one.logicalLength, 13);
  }
  assert.throws(() => plan.layer(0), /this Plan has been destroyed/);
  sequence.destroy();
  assert.throws(() => sequence.append(1), /this Sequence has been destroyed/);
});

test("calls leave no memory behind", () => {
  const [k, v] = [new Float32Array(64 * 8), new Float32Array(64 * 8)];
  const one = () => {
    const plan = planOf(kv, "knorm:budget=8");
    const sequence = plan.sequence();
    sequence.append(40);
    sequence.evict([{ nKvHeads: 1, k: tokenMajor(k, 1, 8), v: tokenMajor(v, 1, 8) }]);
    sequence.destroy();
    plan.destroy();
  };
  for (let i = 0; i < 20; ++i) one();
  const { memoryBytes } = kv;
  for (let i = 0; i < 2000; ++i) one();
  // Contexts and policies are the collector's to destroy.
  assert.ok(kv.memoryBytes - memoryBytes <= 2 ** 22, `${kv.memoryBytes - memoryBytes} bytes`);
});

test("a cache in the module's memory is compacted where it lies, also when memory grows", () => {
  const [n, dim] = [64, 8];
  const k = kv.allocate(4 * n * dim);
  const v = kv.allocate(4 * n * dim);
  const before = k.array(Float32Array);
  before.forEach((_, i) => { before[i] = i; });
  const big = kv.allocate(2 ** 25);
  assert.equal(before.length, 0, "the memory did not grow");
  const sequence = planOf(kv, "streaming-llm:budget=12,sink=4").sequence();
  sequence.append(40);
  const plane = (data) => tokenMajor(data, 1, dim, DType.F32);
  const report = sequence.evict([{ nKvHeads: 1, k: plane(k), v: plane(v) }]);
  assert.equal(report.evicted, 1);
  const positions = Array.from(sequence.keepPositions());
  assert.deepEqual(positions, [0, 1, 2, 3, 32, 33, 34, 35, 36, 37, 38, 39]);
  assert.deepEqual(Array.from(k.array(Float32Array, 0, 12 * dim)),
                   positions.flatMap((p) => Array.from({ length: dim }, (_, i) => p * dim + i)));
  for (const memory of [k, v, big]) memory.free();
  k.free();
  assert.throws(() => k.array(Float32Array), /has been freed/);
});

test("arrays of the engine's own are copied there and back, bytes behind them stay", () => {
  const dim = 8;
  const all = new Float32Array(64 * dim + 16).fill(-1);
  const k = all.subarray(8, 8 + 64 * dim);
  k.forEach((_, i) => { k[i] = i; });
  const v = k.slice();
  const sequence = planOf(kv, "streaming-llm:budget=12,sink=4").sequence();
  sequence.append(40);
  sequence.evict([{ nKvHeads: 1, k: headMajor(k, 64, dim), v: headMajor(v, 64, dim) }]);
  assert.deepEqual(Array.from(k.subarray(4 * dim, 6 * dim)),
                   Array.from({ length: 2 * dim }, (_, i) => 32 * dim + i));
  assert.ok([0, 7, 8 + 64 * dim, 15 + 64 * dim].every((i) => all[i] === -1));
});

test("halves evict as floats do", () => {
  const dim = 8;
  const halves = Uint16Array.from({ length: 64 * dim }, (_, i) => 0x3c00 + (i * 37) % 256);
  const plan = planOf(kv, "knorm:budget=12", { kDtype: DType.F16, vDtype: DType.F16 });
  const sequence = plan.sequence();
  sequence.append(40);
  const before = halves.slice();
  sequence.evict([{ nKvHeads: 1, k: tokenMajor(halves, 1, dim),
                    v: tokenMajor(halves.slice(), 1, dim) }]);
  sequence.keepPositions().forEach((position, slot) => {
    assert.deepEqual(halves.subarray(slot * dim, (slot + 1) * dim),
                     before.subarray(position * dim, (position + 1) * dim));
  });
});

test("selection ties go to the lower slot, NaN last", () => {
  const scores = Float32Array.from([0.5, NaN, 1, 0.5, Infinity, 0.5, -0, 0,
                                    0, 0, NaN, 0, 0, 1, 0, 2]);
  const lists = kv.context().select({ nTokens: 8, scores, nRows: 2 }, 4, 2);
  assert.deepEqual(lists.map((slots) => Array.from(slots)), [[0, 2, 3, 4], [0, 1, 5, 7]]);
});

test("a sequence is saved, loaded and forked", () => {
  const plan = planOf(kv, "streaming-llm:budget=12,sink=4");
  const sequence = plan.sequence();
  const rows = new Float32Array(64 * 8);
  sequence.append(40);
  sequence.evict([{ nKvHeads: 1, k: tokenMajor(rows, 1, 8), v: tokenMajor(rows.slice(), 1, 8) }]);
  const again = plan.sequence();
  again.load(sequence.save());
  for (const other of [again, sequence.fork()]) {
    assert.deepEqual(other.keepPositions(), sequence.keepPositions());
    assert.equal(other.logicalLength, 40);
  }
  assert.equal(sequence.positionOfSlot(0, 0, 4), 32);
  assert.equal(sequence.slotOfPosition(0, 0, 33), 5);
});

test("properties of a policy are those of params.inc", () => {
  const policy = kv.policy("random", { budget: 0.5, seed: 2n ** 63n, pool: "max3", every: 4 });
  assert.equal(policy.seed, 2n ** 63n);
  assert.equal(policy.every, 4);
  assert.equal(String(policy), "random:budget=0.5,pool=max3,seed=9223372036854775808,every=4");
  const keys = kv.parameters().map((row) => row.key);
  const camel = (key) => key.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
  const own = Object.keys(Object.getPrototypeOf(policy));
  assert.deepEqual(keys.map(camel).filter((name) => !own.includes(name)), []);
  assert.throws(() => { policy.window = 3; }, /random has no key "window"/);
});

test("every function of the headers is called or named in not_wrapped.txt", async () => {
  const symbols = (await readFile(here("../../../pkg/abi/kvevict.symbols"), "utf8"))
    .trim().split("\n").map((line) => line.split("@")[0]);
  const files = (await readdir(here("../src"))).filter((name) => name.endsWith(".js"));
  const text = (await Promise.all(files.map((name) => readFile(here(`../src/${name}`), "utf8"))))
    .join("\n");
  const left = (await readFile(here("../../not_wrapped.txt"), "utf8"))
    .split("\n").filter((line) => line.startsWith("web ")).map((line) => line.split(" ")[1]);
  // #execute() and #all() put names together.
  const called = symbols.filter((name) =>
    text.includes(`"${name}"`) || text.includes(`"${name.replace(/_workspace$/, "")}"`));
  assert.deepEqual(symbols.filter((name) => !called.includes(name)).sort(), left.sort());
});
