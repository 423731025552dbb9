import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';
import * as oracle from './oracle.js';

const device = await makeDevice();
const plain = await makeDevice({ subgroups: false });
const operationsOf = new Map([device, plain].map((on) => [on, new Operations(on)]));
const SPECIAL = [NaN, Infinity, -Infinity, 0, -0, 1e-45, -1e-45, 0.5, 0.25, -1, 3.4e38, -3.4e38];

async function select(on, scores, o) {
  const operations = operationsOf.get(on);
  const keep = makeBuffer(on, new Uint32Array(3 + o.nLists * (o.nKeep + 2)).fill(7777777));
  const from = { buffer: makeBuffer(on, scores), offset: 8, stride: o.stride };
  submit(on, (encoder) =>
    operations.encodeSelect(encoder, {
      ...o.options,
      scores: from,
      keep: { buffer: keep, offset: 12, stride: o.nKeep + 2 },
      nLists: o.nLists,
      nTokens: o.nTokens,
      nKeep: o.nKeep,
    }),
  );
  return readBuffer(on, keep, Uint32Array);
}

function expected(scores, o) {
  const out = new Uint32Array(3 + o.nLists * (o.nKeep + 2)).fill(7777777);
  for (let list = 0; list < o.nLists; list++) {
    const row = Array.from(scores.subarray(2 + list * o.stride, 2 + list * o.stride + o.nTokens));
    const { sink = 0, recent = 0, tie = 'lower' } = o.options;
    out.set(oracle.select(row, { ...o, sink, recent, tie }), 3 + list * (o.nKeep + 2));
  }
  return out;
}

async function check(values, o) {
  const draw = random(o.nTokens * 31 + o.nKeep);
  o.stride = o.nTokens + 3;
  const scores = Float32Array.from({ length: 2 + o.nLists * o.stride }, () => values(draw));
  const want = expected(scores, o);
  for (const on of [device, plain]) {
    assert.deepEqual(
      (await select(on, scores, o)).subarray(0, want.length),
      want,
      JSON.stringify({ ...o, on: on.features.size }),
    );
  }
}

test('uses subgroups where the device has them', () => {
  assert.equal(operationsOf.get(plain).subgroups, false);
  assert.equal(operationsOf.get(device).subgroups, device.features.has('subgroups'));
  assert.equal(new Operations(device, { subgroups: false }).subgroups, false);
});

const LENGTHS = [1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2050, 5000];

test('keeps the highest scores, whatever their number', async () => {
  for (const nTokens of LENGTHS) {
    for (const nKeep of new Set([0, 1, nTokens >> 1, nTokens - 1, nTokens])) {
      await check((draw) => draw() - 0.5, { nTokens, nKeep, nLists: 3, options: {} });
    }
  }
});

test('of equal scores keeps the lower or the higher slot', async () => {
  for (const tie of ['lower', 'higher']) {
    for (const nTokens of LENGTHS) {
      for (const nKeep of new Set([1, nTokens >> 2, nTokens - 1])) {
        await check((draw) => Math.floor(draw() * 3) / 2, {
          nTokens,
          nKeep,
          nLists: 2,
          options: { tie },
        });
        await check(() => 1, { nTokens, nKeep, nLists: 1, options: { tie } });
      }
    }
  }
});

test('takes NaN last, infinities at the ends, and -0 for 0', async () => {
  for (const tie of ['lower', 'higher']) {
    for (const nTokens of [12, 300, 1500]) {
      for (const nKeep of [1, 5, nTokens >> 1, nTokens - 2]) {
        await check((draw) => SPECIAL[Math.floor(draw() * SPECIAL.length)], {
          nTokens,
          nKeep,
          nLists: 2,
          options: { tie },
        });
        await check(() => NaN, { nTokens, nKeep, nLists: 1, options: { tie } });
      }
    }
  }
});

test('keeps sinks and recents, also when nothing else fits', async () => {
  for (const nTokens of [40, 700, 2500]) {
    for (const [sink, recent] of [[4, 32], [0, 1], [7, 0], [1, 39], [20, 20]]) {
      for (const nKeep of new Set([sink + recent, Math.min(sink + recent + 5, nTokens), nTokens])) {
        await check((draw) => SPECIAL[Math.floor(draw() * SPECIAL.length)], {
          nTokens,
          nKeep,
          nLists: 2,
          options: { sink, recent },
        });
      }
    }
  }
});
