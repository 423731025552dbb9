// node bench/run.js: the table of bench.js, in Dawn.
import { makeDevice } from '../test/gpu.js';
import { measure, SHAPE, table } from './bench.js';

console.log(table(await measure(await makeDevice(), SHAPE)));
process.exit(0);
