// Wrong arguments are errors that name parameter, value and bound, before any
// byte of the cache moves.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createEvictor, Operations } from '../index.js';
import { makeCache } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';

const device = await makeDevice({ subgroups: false });
const shape = { nQHeads: 4, nKvHeads: 2, kHeadDim: 64, maxTokens: 100 };
const policy = { kind: 'knorm', budget: 20 };

function throwsWith(call, message, name = 'RangeError') {
  assert.throws(call, { name, message });
}

test('a wrong shape or policy', () => {
  const make = (more) => createEvictor(device, { shape, policy, ...more });
  for (const [more, message, name] of [
    [{ shape: { ...shape, nQHeads: 3 } }, 'shape.nQHeads 3 is not a multiple of nKvHeads 2'],
    [{ shape: { ...shape, kHeadDim: 0 } }, 'shape.kHeadDim 0 < 1'],
    [{ shape: { ...shape, kHeadDim: 2000 } }, 'shape.kHeadDim 2000 > 1024'],
    [
      { shape: { ...shape, kHeadDim: 65, dtype: 'f16' } },
      'shape.kHeadDim 65 is odd: a row of f16 takes whole 32-bit words',
    ],
    [{ shape: { ...shape, dtype: 'i8' } }, 'shape.dtype i8 is none of f32, f16'],
    [
      { shape: { ...shape, maxTokens: 2 ** 30 } },
      /^shape\.maxTokens 1073741824: 2 rows of scores are 8589934592 bytes > [0-9]+, the device's maxStorageBufferBindingSize$/,
    ],
    [{ shape: { ...shape, maxTokens: 1.5 } }, 'shape.maxTokens 1.5 is not an integer', 'TypeError'],
    [{ shape: { ...shape, heads: 3 } }, /^shape\.heads is unknown: shape has nQHeads, /],
    [{ shape: { ...shape, logitSoftcap: -1 } }, 'shape.logitSoftcap -1 < 0'],
    [
      { policy: { kind: 'cur' } },
      'policy.kind cur is none of none, streaming-llm, snapkv, pyramidkv, tova, knorm, keydiff, lagkv, h2o, custom',
    ],
    [{ policy: { kind: 'knorm' } }, 'policy.budget undefined is not an integer', 'TypeError'],
    [{ policy: { ...policy, budget: 0 } }, 'policy.budget 0 < 1'],
    [
      { policy: { ...policy, budget: 10, sink: 4, recent: 8 } },
      'policy.budget 10 < sink 4 + recent 8',
    ],
    [
      { policy: { kind: 'snapkv', budget: 36 } },
      'policy.budget 36 <= sink 4 + max(window 32, recent 0)',
    ],
    [{ policy: { kind: 'streaming-llm', budget: 4 } }, 'policy.budget 4 <= sink 4'],
    [{ policy: { ...policy, window: 3 } }, /^policy\.window is unknown/],
    [{ policy: { ...policy, pool: 'avg4' } }, "policy.pool's width 4 is even"],
    [{ policy: { ...policy, pool: 'max2000' } }, "policy.pool's width 2000 > 1023"],
    [{ policy: { ...policy, pool: 'median3' } }, 'policy.pool median3 is none of none, avgN, maxN'],
    [{ policy: { ...policy, tie: 'newer' } }, 'policy.tie newer is none of lower, higher'],
    [{ policy: { kind: 'lagkv', budget: 20, block: 1 } }, 'policy.block 1 < 2'],
    [{ policy: { ...policy, rotate: true } }, 'rope undefined is not an object', 'TypeError'],
    [
      { policy: { ...policy, rotate: true }, rope: { invFreq: Array(33).fill(1) } },
      'rope.invFreq.length 33 > 32, half of headDim',
    ],
    [
      { policy: { ...policy, rotate: true }, rope: { invFreq: [1, NaN] } },
      'rope.invFreq[1] NaN is not a finite number',
      'TypeError',
    ],
    [{ subgroups: true }, 'subgroups true: the device was made without the feature "subgroups"'],
    [{ color: 1 }, /^options\.color is unknown/],
  ]) {
    throwsWith(() => make(more), message, name);
  }
  throwsWith(
    () => createEvictor(null, { shape, policy }),
    'device null is not an object',
    'TypeError',
  );
});

test('a wrong view, before the first byte moves', async () => {
  const evictor = createEvictor(device, { shape, policy });
  const cache = makeCache(device);
  const { k, v } = cache.view;
  const noStorage = makeBuffer(device, 50 * 2 * 256, 4 | 8);
  const small = makeBuffer(device, 400);
  const table = { buffer: makeBuffer(device, new Uint32Array(4)) };
  const paged = { blockTable: table, blockSize: 16 };
  submit(device, (encoder) => {
    const encode = (more) => evictor.encode(encoder, { view: cache.view, nTokens: 50, ...more });
    const view = (more) => ({ view: { ...cache.view, ...more } });
    for (const [more, message, name] of [
      [{ nTokens: 101 }, 'nTokens 101 > 100'],
      [{ nTokens: -1 }, 'nTokens -1 < 0'],
      [{ nTokens: 51 }, 'view.k.headStrideBytes 12800 < 13056: rows would overlap'],
      [{ budget: 3 }, 'budget 3 < sink 4 + recent 0'],
      [{ view: undefined }, 'view undefined is not an object', 'TypeError'],
      [view({ nKvHeads: 3 }), "view.nKvHeads 3 is not 2, the shape's"],
      [view({ k: undefined }), 'view.k undefined is not an object', 'TypeError'],
      [view({ v: undefined }), 'view.v undefined is not an object', 'TypeError'],
      [view({ k: { ...k, dtype: 'f16' } }), "view.k.dtype f16 is not f32, the shape's"],
      [view({ k: { ...k, headDim: 32 } }), "view.k.headDim 32 is not 64, the shape's"],
      [view({ k: { ...k, buffer: {} } }), 'view.k.buffer is not a GPUBuffer', 'TypeError'],
      [
        view({ k: { ...k, buffer: noStorage } }),
        'view.k.buffer: its usage 12 lacks GPUBufferUsage.STORAGE',
      ],
      [
        view({ v: { ...v, buffer: small } }),
        "view.v reaches to byte 25600 > 400, its buffer's size",
      ],
      [view({ k: { ...k, offset: 2 } }), 'view.k.offset 2 is not a multiple of 4'],
      [
        view({ k: { ...k, tokenStrideBytes: 130 } }),
        'view.k.tokenStrideBytes 130 is not a multiple of 4',
      ],
      [
        view({ k: { ...k, tokenStrideBytes: 128 } }),
        'view.k.tokenStrideBytes 128 < 256: rows would overlap',
      ],
      [
        view({ v: { ...v, headStrideBytes: 0 } }),
        'view.v.headStrideBytes 0 < 256: rows would overlap',
      ],
      [
        view({ v: { ...v, headStrideBytes: undefined } }),
        'view.v has only one of tokenStrideBytes and headStrideBytes',
      ],
      [view({ blockSize: 16 }), 'view.blockSize 16 without a blockTable'],
      [view(paged), 'view.k lacks blockStrideBytes'],
      [view({ ...paged, blockSize: 0 }), 'view.blockSize 0 < 1'],
      [
        view({ ...paged, blockTable: { ...table, headStride: 3 } }),
        'view.blockTable.headStride 3 < 4 blocks of 50 tokens',
      ],
      [
        view({ ...paged, blockSize: 2 }),
        "view.blockTable reaches to byte 100 > 16, its buffer's size",
      ],
      [
        view({ companions: [{ buffer: small, dtype: 'opaque', rowBytes: 3 }] }),
        'view.companions[0].rowBytes 3 is not a multiple of 4',
      ],
      [
        view({ companions: [{ buffer: small, dtype: 'opaque', rowBytes: 8 }] }),
        "view.companions[0] reaches to byte 800 > 400, its buffer's size",
      ],
      [{ keep: { buffer: small, stride: 5 } }, 'keep.stride 5 < 20'],
      [
        { keep: { buffer: small, offset: 396 } },
        "keep reaches to byte 556 > 400, its buffer's size",
      ],
    ]) {
      throwsWith(() => encode(more), message, name);
    }
    throwsWith(
      () => evictor.encode({}, { view: cache.view, nTokens: 50 }),
      'encoder is neither a GPUCommandEncoder nor a GPUComputePassEncoder',
      'TypeError',
    );
  });
  for (const plane of [cache.k, cache.v]) {
    assert.deepEqual(await readBuffer(device, plane.plane.buffer, Uint8Array), plane.bytes);
  }
});

test('what a policy needs and is not given', () => {
  const cache = makeCache(device);
  const encoder = device.createCommandEncoder();
  const encode = (of, more) =>
    createEvictor(device, { shape, policy: of }).encode(encoder, {
      view: cache.view,
      nTokens: 50,
      ...more,
    });
  const snapkv = { kind: 'snapkv', budget: 20, window: 8 };
  throwsWith(() => encode(snapkv), 'queries are missing: policy snapkv scores by them');
  const queries = { buffer: makeBuffer(device, 4 * 8 * 256) };
  throwsWith(
    () => encode(snapkv, { queries, firstQuery: 1 }),
    "queries reaches to byte 9216 > 8192, its buffer's size",
  );
  throwsWith(
    () => encode({ kind: 'custom', budget: 20 }),
    'scores are missing: policy custom ranks by them',
  );
  const scores = { buffer: makeBuffer(device, 399) };
  throwsWith(
    () => encode({ kind: 'custom', budget: 20 }, { scores: { ...scores, offset: 8 } }),
    "scores reaches to byte 408 > 400, its buffer's size",
  );
});

test('wrong arguments of single operations', () => {
  const operations = new Operations(device);
  const encoder = device.createCommandEncoder();
  const a = { buffer: makeBuffer(device, 4000) };
  const b = { buffer: makeBuffer(device, 4000) };
  const select = (more) =>
    operations.encodeSelect(encoder, {
      scores: a,
      keep: b,
      nLists: 1,
      nTokens: 30,
      nKeep: 10,
      ...more,
    });
  throwsWith(() => select({ nKeep: 31 }), 'nKeep 31 > nTokens 30');
  throwsWith(() => select({ sink: 8, recent: 3 }), 'nKeep 10 < sink 8 + recent 3');
  throwsWith(
    () => select({ keep: a }),
    'scores.buffer is keep.buffer: one dispatch cannot read and write a buffer',
  );
  throwsWith(() => select({ nLists: 70000 }), 'nLists 70000 > 65535');
  const cache = makeCache(device, { dtype: 'f16' });
  const common = { view: cache.view, nTokens: 50 };
  throwsWith(
    () => operations.encodeCompact(encoder, { ...common, nKeep: 9, keep: { ...b, nLists: 3 } }),
    'keep.nLists 3 is neither 1 nor nKvHeads 2',
  );
  throwsWith(
    () =>
      operations.encodeGather(encoder, { ...common, nKeep: 9, keep: b, destination: cache.view }),
    'destination.k.buffer is view.k.buffer: one dispatch cannot read and write a buffer',
  );
  throwsWith(
    () =>
      operations.encodeWindowScores(encoder, {
        ...common,
        queries: a,
        nQHeads: 2,
        window: 51,
        scores: b,
      }),
    'window 51 > nTokens 50',
  );
  throwsWith(
    () => operations.encodeLagScores(encoder, { ...common, scores: b, block: 1025 }),
    'block 1025 > 1024',
  );
  const rope = { invFreq: Array(31).fill(0.5) };
  throwsWith(
    () => operations.encodeRotate(encoder, { view: cache.view, nRows: 9, rope, offsets: b }),
    'rope.invFreq.length 31 is odd: f16 elements rotate two pairs at a time',
  );
  throwsWith(
    () =>
      operations.encodeRotate(encoder, { view: cache.view, nRows: 9, rope, keep: a, offsets: b }),
    'rope.invFreq.length 31 is odd: f16 elements rotate two pairs at a time',
  );
});

test('prepare() compiles what encode() needs, and encodes nothing', async () => {
  const evictor = createEvictor(device, { shape, policy: { ...policy, pool: 'max3' } });
  const cache = makeCache(device, { seed: 2, layout: 'token-major' });
  await evictor.prepare({ view: cache.view, nTokens: 50 });
  assert.deepEqual(await readBuffer(device, cache.k.plane.buffer, Uint8Array), cache.k.bytes);
  const compile = device.createComputePipeline;
  device.createComputePipeline = () => assert.fail('compiled again');
  try {
    submit(device, (encoder) => evictor.encode(encoder, { view: cache.view, nTokens: 50 }));
  } finally {
    device.createComputePipeline = compile;
  }
  assert.notDeepEqual(await readBuffer(device, cache.k.plane.buffer, Uint8Array), cache.k.bytes);
});
