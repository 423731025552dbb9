import assert from 'node:assert/strict';
import { test } from 'node:test';
import { measure, SHAPE, table } from '../bench/bench.js';
import { makeDevice } from './gpu.js';

test('the benchmark measures every step', async () => {
  const rows = await measure(await makeDevice(), {
    ...SHAPE,
    nQHeads: 8,
    nTokens: 300,
    budget: 100,
  });
  assert.deepEqual(
    rows.map(({ name }) => name),
    ['window attention', 'pooling', 'selection', 'compaction', 'knorm', 'keydiff', 'lagkv'],
  );
  for (const { ms, copyMs } of rows) assert.ok(ms > 0 && copyMs > 0);
  assert.equal(table(rows).split('\n').length, rows.length + 1);
});
