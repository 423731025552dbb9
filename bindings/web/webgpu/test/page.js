// What browser.test.js opens: evictions, compared with the double oracle.
import { createEvictor } from '../index.js';
import * as oracle from './oracle.js';

const messages = [];
for (const level of ['warn', 'error'])
  console[level] = (...words) => messages.push(words.join(' '));
addEventListener('error', (event) => messages.push(event.message));

const [nHeads, nSlots, dim, window] = [2, 700, 64, 8];

async function read(device, buffer) {
  const staging = device.createBuffer({
    size: buffer.size,
    usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
  });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  return new Float32Array(staging.getMappedRange().slice(0));
}

function put(device, data) {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const buffer = device.createBuffer({ size: data.byteLength, usage });
  device.queue.writeBuffer(buffer, 0, data);
  return buffer;
}

const rowsOf = (rows, head) =>
  Array.from({ length: nSlots }, (_, s) =>
    Array.from(rows.subarray((head * nSlots + s) * dim, (head * nSlots + s + 1) * dim)),
  );

async function evict(device, policy, wanted) {
  let state = 12345;
  const draw = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32) * 4 - 2;
  const k = Float32Array.from({ length: nHeads * nSlots * dim }, draw);
  const v = Float32Array.from(
    { length: nHeads * nSlots * dim },
    (_, i) => Math.floor(i / dim) % nSlots,
  );
  const q = Float32Array.from({ length: nHeads * window * dim }, draw);
  const strides = { tokenStrideBytes: dim * 4, headStrideBytes: nSlots * dim * 4 };
  const view = {
    k: { buffer: put(device, k), ...strides },
    v: { buffer: put(device, v), ...strides },
  };
  const queries = {
    buffer: put(device, q),
    tokenStrideBytes: dim * 4,
    headStrideBytes: window * dim * 4,
  };
  const evictor = createEvictor(device, {
    shape: { nKvHeads: nHeads, kHeadDim: dim, maxTokens: nSlots },
    policy,
  });
  const options = { view, nTokens: nSlots, ...(policy.window ? { queries } : {}) };
  await evictor.prepare(options);
  const encoder = device.createCommandEncoder();
  const { nTokens } = evictor.encode(encoder, options);
  device.queue.submit([encoder.finish()]);
  const [nowK, nowV] = [await read(device, view.k.buffer), await read(device, view.v.buffer)];
  let [wrongSlots, wrongBytes] = [0, 0];
  for (let head = 0; head < nHeads; head++) {
    wanted({ k, q }, head).forEach((slot, i) => {
      const to = (head * nSlots + i) * dim;
      const from = (head * nSlots + slot) * dim;
      if (nowV[to] !== slot) wrongSlots++;
      for (let d = 0; d < dim; d++) if (nowK[to + d] !== k[from + d]) wrongBytes++;
    });
  }
  return { name: policy.kind, n: nTokens, wrongSlots, wrongBytes };
}

async function run() {
  if (!navigator.gpu) return { error: 'no navigator.gpu' };
  const adapter = await navigator.gpu.requestAdapter();
  if (adapter === null) return { error: 'no adapter' };
  const device = await adapter.requestDevice({
    requiredFeatures: adapter.features.has('subgroups') ? ['subgroups'] : [],
  });
  device.addEventListener('uncapturederror', (event) => messages.push(event.error.message));
  const select = (scores, nKeep, sink, recent) =>
    oracle.select(scores, { nTokens: nSlots, nKeep, sink, recent, tie: 'lower' });
  const cases = [
    await evict(device, { kind: 'streaming-llm', budget: 100 }, () =>
      select(Array(nSlots).fill(0), 100, 4, 96),
    ),
    await evict(device, { kind: 'knorm', budget: 150, sink: 4, recent: 10 }, ({ k }, head) =>
      select(oracle.keyNorms(rowsOf(k, head)), 150, 4, 10),
    ),
    await evict(device, { kind: 'snapkv', budget: 120, window }, ({ k, q }, head) => {
      const all = oracle.windowScores({
        keys: k,
        queries: q,
        nKvHeads: nHeads,
        nQHeads: nHeads,
        nTokens: nSlots,
        window,
        dim,
        scale: 1 / Math.sqrt(dim),
        softcap: 0,
        rows: 'mean',
      });
      const row = all.subarray(head * nSlots, head * nSlots + nSlots - window);
      return select(
        [...oracle.pool(row, 7, 'avg', 'pad'), ...Array(window).fill(0)],
        120,
        4,
        window,
      );
    }),
  ];
  return { cases, console: messages };
}

const result = await run().catch((error) => ({ error: String(error.stack ?? error) }));
await fetch('/result', { method: 'POST', body: JSON.stringify(result) });
