// A device for the tests: Dawn, by the npm package `webgpu`, on any Vulkan driver.
import { createRequire } from 'node:module';

/** Where npm put the package; run.sh sets it. */
const modules = process.env.KVEVICT_WEBGPU_MODULES ?? import.meta.url;
const { create, globals } = await import(createRequire(modules).resolve('webgpu'));
Object.assign(globalThis, globals);
const gpu = create([]);
const errors = [];

/** An adapter; each makes one device. */
export async function requestAdapter() {
  const adapter = await gpu.requestAdapter();
  if (adapter === null) throw new Error('no adapter: VK_ICD_FILENAMES names no Vulkan driver');
  return adapter;
}

/**
 * A device with default limits, so that no kernel needs more than 8 storage
 * buffers.
 * @param {{ subgroups?: boolean }} [options]
 */
export async function makeDevice({ subgroups = true } = {}) {
  const adapter = await requestAdapter();
  const device = await adapter.requestDevice({
    requiredFeatures: subgroups && adapter.features.has('subgroups') ? ['subgroups'] : [],
  });
  device.addEventListener('uncapturederror', (event) => errors.push(event.error.message));
  return device;
}

const ALL = 128 | 4 | 8; // STORAGE, COPY_SRC, COPY_DST

/** @param {GPUDevice} device @param {ArrayBufferView | number} content  Bytes or their number. */
export function makeBuffer(device, content, usage = ALL) {
  const bytes = typeof content === 'number' ? content : content.byteLength;
  const buffer = device.createBuffer({ size: Math.max(16, Math.ceil(bytes / 4) * 4), usage });
  if (typeof content !== 'number' && bytes > 0) {
    const padded = new Uint8Array(Math.ceil(bytes / 4) * 4);
    padded.set(new Uint8Array(content.buffer, content.byteOffset, bytes));
    device.queue.writeBuffer(buffer, 0, padded);
  }
  return buffer;
}

/**
 * @template {Float32Array | Uint32Array | Int32Array | Uint16Array | Uint8Array} T
 * @param {GPUDevice} device
 * @param {GPUBuffer} buffer
 * @param {new (buffer: ArrayBuffer) => T} Type
 * @returns {Promise<T>}
 */
export async function readBuffer(device, buffer, Type) {
  const staging = device.createBuffer({ size: buffer.size, usage: 1 | 8 }); // MAP_READ, COPY_DST
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(1);
  const copy = new Type(staging.getMappedRange().slice(0));
  staging.destroy();
  if (errors.length > 0) throw new Error(errors.splice(0).join('\n'));
  return copy;
}

/** Encodes, submits. @param {GPUDevice} device @param {(encoder: GPUCommandEncoder) => void} encode */
export function submit(device, encode) {
  const encoder = device.createCommandEncoder();
  encode(encoder);
  device.queue.submit([encoder.finish()]);
}
