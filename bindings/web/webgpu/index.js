// Eviction on WebGPU: see index.d.ts for what it offers.
import { Evictor } from './evictor.js';

export { Evictor } from './evictor.js';
export { Operations } from './operations.js';

/**
 * Makes an evictor.
 * @param {GPUDevice} device
 * @param {any} options  See EvictorOptions.
 */
export function createEvictor(device, options) {
  return new Evictor(device, options);
}
