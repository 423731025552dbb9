// The README's example runs as it is printed: in the tree, and from the package that
// consumer.sh has installed.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { makeBuffer, readBuffer, requestAdapter } from './gpu.js';

const installed = process.env.KVEVICT_CONSUMER;
const module =
  installed === undefined
    ? new URL('../index.js', import.meta.url)
    : pathToFileURL(createRequire(`${installed}/`).resolve('@kvevict/web/webgpu'));
const { createEvictor } = await import(module);

test("the README's example evicts", async () => {
  const page = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const [, code] = /```js\nimport [^\n]*\n([^]*?)```/.exec(page);
  const [setup, step] = code.split('// After the prompt');
  const AsyncFunction = (async () => {}).constructor;
  const { device, evictor } = await new AsyncFunction(
    'adapter',
    'createEvictor',
    `${setup}; return { device, evictor };`,
  )(await requestAdapter(), createEvictor);
  const [nHeads, nSlots, row] = [8, 4096, 64];
  // Values are their slots, as f16 numbers of their low bits.
  const slots = Uint16Array.from(
    { length: nHeads * nSlots * row },
    (_, i) => Math.floor(i / row) % nSlots,
  );
  const keys = makeBuffer(device, slots);
  const values = makeBuffer(device, slots);
  const lastQueries = makeBuffer(device, new Float32Array(32 * 32 * row).fill(0.1));
  const encoder = device.createCommandEncoder();
  const nTokens = new Function(
    'encoder',
    'evictor',
    'keys',
    'values',
    'lastQueries',
    `//${step}; return nTokens;`,
  )(encoder, evictor, keys, values, lastQueries);
  device.queue.submit([encoder.finish()]);
  assert.equal(nTokens, 1024);
  const now = await readBuffer(device, values, Uint16Array);
  for (let head = 0; head < nHeads; head++) {
    const kept = Array.from({ length: nTokens }, (_, i) => now[(head * nSlots + i) * row]);
    assert.deepEqual(kept.slice(0, 4), [0, 1, 2, 3]);
    assert.deepEqual(kept.slice(-32), Array.from({ length: 32 }, (_, i) => 2968 + i));
    assert.ok(kept.every((slot, i) => i === 0 || slot > kept[i - 1]));
  }
});
