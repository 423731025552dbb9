// @kvevict/web: the core of kvevict as a WebAssembly module.
import { callAll, evictAll } from "./batch.js";
import { Module } from "./calls.js";
import { Heap, Memory } from "./memory.js";
import { Context } from "./plan.js";
import { Policy } from "./policy.js";
import { instantiate } from "./load.js";

export * from "./enums.js";
export { constants } from "./abi.js";
export { KvevictError } from "./calls.js";
export { Memory } from "./memory.js";
export { PagedCache, PagedSequence } from "./paged.js";
export { Context, Plan } from "./plan.js";
export { Policy } from "./policy.js";
export { Sequence } from "./sequence.js";
export { headMajor, rowBytes, tokenMajor } from "./planes.js";
export * from "./config.js";
import { setCore } from "./config.js";

// The modules that the package carries: kvevict.wasm, without quantized dtypes and without
// attention, and kvevict-full.wasm with all.
export const smallModule = new URL("./kvevict.wasm", import.meta.url);
export const fullModule = new URL("./kvevict-full.wasm", import.meta.url);

export async function load(source = smallModule) {
  const kv = new Kvevict(await instantiate(source));
  setCore(kv);
  return kv;
}

export class Kvevict {
  #module;

  constructor(exports) {
    this.#module = new Module(exports, new Heap(exports));
    this.version = this.#text("kvevict_version");
  }

  // Bytes of the module's memory, which grows and never shrinks.
  get memoryBytes() {
    return this.#module.heap.buffer.byteLength;
  }

  // Memory for caches, which calls then use where it lies.
  allocate(byteLength) {
    return new Memory(this.#module.heap, byteLength);
  }

  context(options) {
    return new Context(this.#module, options);
  }

  // By its text form or a preset's name; `values` are properties to set.
  policy(text, values) {
    return new Policy(this.#module, text, values);
  }

  policies() {
    return this.#all("kvevict_policy_at", "kvevict_policy_info");
  }

  presets() {
    return this.#all("kvevict_preset_at", "kvevict_preset_info");
  }

  dtypes() {
    return this.#all("kvevict_dtype_at", "kvevict_dtype_info");
  }

  // The parameters of a policy by name; without one, of all.
  parameters(policy) {
    return this.#module.with((args) =>
      this.#all("kvevict_parameter_at", "kvevict_parameter_info",
                policy === undefined ? 0 : args.text(policy)));
  }

  // The kernels that this module has.
  simdTargets() {
    const names = [];
    for (;;) {
      const name = this.#text("kvevict_simd_target_at", names.length);
      if (name === "") return names;
      names.push(name);
    }
  }

  reasonText(reason) {
    return this.#text("kvevict_reason_text", reason);
  }

  // A budget for a model whose full cache has so many bytes; 0: do not evict.
  autoBudget(maxTokens, fullCacheBytes) {
    return this.#module.with((args) => {
      const out = args.number("uint32_t");
      this.#module.check("kvevict_auto_budget", maxTokens, BigInt(fullCacheBytes), out.address);
      return out.get();
    });
  }

  // The same call for many sequences: {sequence, nTokens} each.
  sequencesAppend(items) {
    callAll(this.#module, "kvevict_sequences_append", "kvevict_sequence_tokens", items);
  }

  // {sequence, newLength} each.
  sequencesTrimTo(items) {
    callAll(this.#module, "kvevict_sequences_trim_to", "kvevict_sequence_length", items);
  }

  // {sequence, observations, nRows, firstPosition} each.
  sequencesObserve(items) {
    callAll(this.#module, "kvevict_sequences_observe", "kvevict_sequence_observations", items);
  }

  // {sequence, views, options} each. Returns their reports.
  sequencesEvict(items) {
    return evictAll(this.#module, items);
  }

  // Throws what is wrong with a view of so many tokens.
  validateView(view, nTokens) {
    this.#module.with((args) => {
      this.#module.check("kvevict_view_validate", args.structs("kvevict_view", view), nTokens);
    });
  }

  #text(name, ...args) {
    return this.#module.heap.text(this.#module.raw(name, ...args));
  }

  // The rows of an enumeration, up to its first error.
  #all(name, struct, ...first) {
    return this.#module.with((args) => {
      const rows = [];
      for (;;) {
        const out = args.out(struct);
        if (this.#module.raw(name, ...first, rows.length, out.address) !== 0) return rows;
        rows.push(out.get());
      }
    });
  }
}
