// Pipelines, their parameters and dispatches. Nothing here waits for the GPU.
import { refuse } from './check.js';

// Parameter blocks with the same content share one uniform buffer, which never
// changes, so that encoded work may run whenever the engine submits it.
const MOST_BLOCKS = 256;
const MOST_GROUPS = 65535; // maxComputeWorkgroupsPerDimension of every device

/**
 * What a kernel's text is made of.
 * @typedef {object} KernelText
 * @property {string[][]} fields  Names and types, u32 or f32, of the block `p`.
 * @property {{ name: string, type: string, write?: boolean }[]} buffers  In
 *   the order of bindings 1, 2 ...; at most 8.
 * @property {string} code  With an entry point `main`.
 * @property {boolean} [subgroups]  Whether it uses them.
 *
 * @typedef {{ buffer: GPUBuffer, offset?: number, size?: number }} Binding
 */

/** @type {WeakMap<GPUDevice, Pipelines>} */
const ofDevices = new WeakMap();

/**
 * The pipelines of a device, which all its evictors share.
 * @param {GPUDevice} device
 */
export function pipelinesOf(device) {
  let pipelines = ofDevices.get(device);
  if (pipelines === undefined) ofDevices.set(device, (pipelines = new Pipelines(device)));
  return pipelines;
}

class Pipelines {
  #device;
  #made = new Map();
  #blocks = new Map();

  /** @param {GPUDevice} device */
  constructor(device) {
    this.#device = device;
  }

  /**
   * Compiles what `encode` would need, without blocking. Kernels that were not
   * prepared are compiled when they are first encoded.
   * @param {(pass: GPUComputePassEncoder) => void} encode
   */
  async prepare(encode) {
    /** @type {any} */
    const pass = { collected: [], dispatchWorkgroups() {} };
    encode(pass);
    await Promise.all(
      pass.collected.map(async ([kernel, variant]) => {
        const key = this.#key(kernel, variant);
        if (this.#made.has(key)) return;
        const { text, descriptor, layout } = this.#describe(kernel, variant);
        const pipeline = await this.#device.createComputePipelineAsync(descriptor);
        this.#made.set(key, { text, pipeline, layout });
      }),
    );
  }

  /**
   * Encodes one dispatch.
   * @param {GPUComputePassEncoder & { collected?: unknown[] }} pass  One of
   *   prepare() collects kernels and encodes nothing.
   * @param {(variant: any) => KernelText} kernel
   * @param {object} variant  Constants of the text.
   * @param {Record<string, number>} params  The fields' values.
   * @param {Binding[]} buffers
   * @param {[number, number?, number?]} groups  Workgroups; none are encoded if
   *   one is 0.
   */
  run(pass, kernel, variant, params, buffers, groups) {
    if (groups.includes(0)) return;
    for (const n of groups) {
      if (n > MOST_GROUPS) refuse(`${kernel.name}: ${n} workgroups > ${MOST_GROUPS}`);
    }
    if (pass.collected !== undefined) {
      pass.collected.push([kernel, variant]);
      return;
    }
    const key = this.#key(kernel, variant);
    let made = this.#made.get(key);
    if (made === undefined) {
      const { text, descriptor, layout } = this.#describe(kernel, variant);
      made = { text, layout, pipeline: this.#device.createComputePipeline(descriptor) };
      this.#made.set(key, made);
    }
    const resources = [{ buffer: this.#block(made.text.fields, params) }, ...buffers];
    pass.setPipeline(made.pipeline);
    pass.setBindGroup(
      0,
      this.#device.createBindGroup({
        layout: made.layout,
        entries: resources.map((resource, binding) => ({ binding, resource })),
      }),
    );
    pass.dispatchWorkgroups(...groups);
  }

  #key(kernel, variant) {
    return kernel.name + JSON.stringify(variant);
  }

  #describe(kernel, variant) {
    const text = kernel(variant);
    const buffers = text.buffers.map(
      ({ name, type, write }, i) =>
        `@group(0) @binding(${i + 1}) var<storage, ${write ? 'read_write' : 'read'}> ${name}: ${type};`,
    );
    const code = [
      text.subgroups ? 'enable subgroups;' : '',
      `struct Params { ${text.fields.map(([name, type]) => `${name}: ${type}`).join(', ')} };`,
      '@group(0) @binding(0) var<uniform> p: Params;',
      ...buffers,
      text.code,
    ].join('\n');
    const label = `kvevict ${kernel.name}`;
    const device = this.#device;
    const visibility = 4; // GPUShaderStage.COMPUTE
    const layout = device.createBindGroupLayout({
      label,
      entries: [
        { binding: 0, visibility, buffer: { type: 'uniform' } },
        ...text.buffers.map(({ write }, i) => ({
          binding: i + 1,
          visibility,
          buffer: {
            type: /** @type {GPUBufferBindingType} */ (write ? 'storage' : 'read-only-storage'),
          },
        })),
      ],
    });
    const descriptor = {
      label,
      layout: device.createPipelineLayout({ label, bindGroupLayouts: [layout] }),
      compute: { module: device.createShaderModule({ label, code }), entryPoint: 'main' },
    };
    return { text, descriptor, layout };
  }

  #block(fields, params) {
    const words = new Uint32Array(Math.ceil(fields.length / 4) * 4);
    const floats = new Float32Array(words.buffer);
    fields.forEach(([name, type], i) => {
      const value = params[name];
      if (value === undefined) throw new Error(`no value for ${name}`);
      (type === 'f32' ? floats : words)[i] = value;
    });
    const key = words.join();
    let buffer = this.#blocks.get(key);
    if (buffer === undefined) {
      buffer = this.#device.createBuffer({
        label: 'kvevict parameters',
        size: words.byteLength,
        usage: 64, // GPUBufferUsage.UNIFORM
        mappedAtCreation: true,
      });
      new Uint32Array(buffer.getMappedRange()).set(words);
      buffer.unmap();
    }
    // The one used last comes last. One that is dropped lives on in what is
    // encoded with it.
    this.#blocks.delete(key);
    this.#blocks.set(key, buffer);
    if (this.#blocks.size > MOST_BLOCKS) {
      this.#blocks.delete(this.#blocks.keys().next().value);
    }
    return buffer;
  }
}
