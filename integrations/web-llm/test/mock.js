// A stand-in for what the adapter uses of web-llm 0.2.86: the runtime's objects and scopes, and a
// model library whose paged cache checks the order and the arguments of every call, as the
// runtime does. Its pages lie in any order.
import assert from "node:assert/strict";

const PREFIX = "vm.builtin.";
const BYTES = { float32: 4, float16: 2 };
const LAYOUT = "1,num_logical_pages,2,num_kv_heads,page_size,qk_head_dim";

export function toHalf(x) {
  const bits = new Uint32Array(Float32Array.of(x).buffer)[0];
  const sign = (bits >>> 16) & 0x8000;
  const size = Math.abs(x);
  if (size === 0) return sign;
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const units = size * 2 ** (10 - exponent);
  const floor = Math.floor(units);
  const rest = units - floor;
  const rounded = rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
  return sign | (rounded < 1024 ? rounded : (exponent + 14) * 1024 + rounded);
}
export function fromHalf(bits) {
  const [sign, exponent, mantissa] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25));
}

class Tensor {
  constructor(shape, dtype, device) {
    Object.assign(this, { shape, dtype, device });
    this.bytes = new Uint8Array(shape.reduce((a, b) => a * b, 1) * BYTES[dtype]);
  }

  copyFrom(other) {
    assert.deepEqual([this.shape, this.dtype], [other.shape, other.dtype]);
    this.pending = other; // until the device is synchronized
  }

  copyFromRawBytes(bytes) {
    assert.ok(bytes instanceof Uint8Array);
    assert.equal(bytes.length, this.bytes.length, "Expect the data's length equals nbytes");
    this.bytes.set(bytes);
  }

  toRawBytes() {
    assert.equal(this.device, "cpu");
    return this.bytes.slice();
  }
}

export class Pipeline {
  calls = [];
  kvStateKind = "kv_cache";
  contextWindowSize = 512;
  filledKVCacheLength = 0;
  nResets = 0;
  failAt = undefined; // a call that throws
  #scopes = 0;
  #copies = [];

  constructor(options) {
    this.kvCache = new PagedCache(options);
    this.device = { sync: async () => {
      for (const tensor of this.#copies.splice(0)) tensor.bytes.set(tensor.pending.bytes);
    } };
    this.tvm = {
      scalar: (value, dtype) => ({ value, dtype }),
      cpu: () => "cpu",
      beginScope: () => { ++this.#scopes; },
      endScope: () => { --this.#scopes; },
      detachFromCurrentScope: (object) => object,
      empty: (shape, dtype, device) => {
        assert.ok(this.#scopes > 0, "an object outside of any scope");
        assert.ok(device === "cpu" || device === this.device);
        const tensor = new Tensor(shape, dtype, device);
        this.#copies.push(tensor);
        tensor.pending = tensor;
        return tensor;
      },
      getGlobalFunc: (name) => {
        assert.ok(this.#scopes > 0, "a function outside of any scope");
        assert.ok(name.startsWith(PREFIX));
        const method = name.slice(PREFIX.length);
        assert.equal(typeof this.kvCache[method], "function", name);
        const call = (cache, ...args) => {
          assert.equal(cache, this.kvCache);
          this.calls.push(method);
          if (this.failAt === method) throw new Error(`${method} fails`);
          return cache[method](...args.map((arg) => {
            if (arg?.dtype !== "int64") return arg;
            return arg.value;
          }));
        };
        call.dispose = () => {};
        return call;
      },
    };
  }

  get nScopes() {
    return this.#scopes;
  }

  resetChat(keepStats) {
    assert.equal(keepStats, true);
    ++this.nResets;
    this.filledKVCacheLength = 0;
    this.kvCache.kv_state_clear();
    this.kvCache.kv_state_add_sequence(0);
  }
}

export class PagedCache {
  #sequence; // { length, pages, importing }
  #free;
  #pools;

  constructor({ nLayers, nKvHeads, headDim, pageSize, dtype = "float16", nPages = 40, more = {} }) {
    Object.assign(this, { nLayers, nKvHeads, headDim, pageSize, dtype, more });
    this.pageBytes = 2 * nKvHeads * pageSize * headDim * BYTES[dtype];
    this.#pools = Array.from({ length: nLayers }, () =>
      new Uint8Array(nPages * this.pageBytes).fill(0xff));
    // 7 has no factor in common with the number of pages.
    this.all = Array.from({ length: nPages }, (_, i) => (7 * i + 3) % nPages);
    this.#free = [...this.all];
    this.kv_state_add_sequence(0);
  }

  get nFreePages() {
    return this.#free.length;
  }

  #place(layer, plane, head, slot) {
    const page = this.#sequence.pages[Math.floor(slot / this.pageSize)];
    const row = (plane * this.nKvHeads + head) * this.pageSize + (slot % this.pageSize);
    return { pool: this.#pools[layer],
             at: page * this.pageBytes + row * this.headDim * BYTES[this.dtype] };
  }

  // What the model's kernels do: a row of each plane, layer and head behind the last slot.
  append(rowOf) {
    assert.equal(this.#sequence.importing, undefined,
                 "before checkpoint import is finished");
    const slot = this.#sequence.length++;
    if (slot % this.pageSize === 0) this.#sequence.pages.push(this.#free.shift());
    for (let layer = 0; layer < this.nLayers; ++layer) {
      for (let head = 0; head < this.nKvHeads; ++head) {
        for (const plane of [0, 1]) {
          const { pool, at } = this.#place(layer, plane, head, slot);
          const row = rowOf({ layer, head, plane, slot });
          const bytes = this.dtype === "float32" ? Float32Array.from(row)
            : Uint16Array.from(row, toHalf);
          pool.set(new Uint8Array(bytes.buffer), at);
        }
      }
    }
  }

  row(layer, plane, head, slot) {
    assert.ok(slot < this.#sequence.length);
    const { pool, at } = this.#place(layer, plane, head, slot);
    const { buffer } = pool.slice(at, at + this.headDim * BYTES[this.dtype]);
    return this.dtype === "float32" ? Array.from(new Float32Array(buffer))
      : Array.from(new Uint16Array(buffer), fromHalf);
  }

  #check(id) {
    assert.equal(id, 0, "sequence id 0");
    assert.notEqual(this.#sequence, undefined, "no such sequence");
  }

  kv_state_clear() {
    this.#sequence = undefined;
    this.#free = [...this.all];
  }

  kv_state_add_sequence(id) {
    assert.equal(id, 0);
    assert.equal(this.#sequence, undefined, "the sequence is there already");
    this.#sequence = { length: 0, pages: [], importing: undefined };
  }

  attention_kv_cache_get_sequence_length(id) {
    this.#check(id);
    assert.equal(this.#sequence.importing, undefined, "until checkpoint import is finished");
    return this.#sequence.length;
  }

  attention_kv_cache_get_checkpoint_metadata(id) {
    this.#check(id);
    assert.equal(this.#sequence.importing, undefined);
    return JSON.stringify({ ...this.describe(this.#sequence.length), ...this.more });
  }

  describe(length) {
    const { nLayers, nKvHeads, headDim, pageSize, dtype } = this;
    const nPages = Math.ceil(length / pageSize);
    return {
      format_version: 1,
      cache_type: "relax.vm.PagedAttentionKVCache",
      layout_hash: "of this model",
      seq_id: 0,
      seq_length: length,
      page_size: pageSize,
      dtype,
      layer_begin: 0,
      layer_end: nLayers,
      num_kv_heads: nKvHeads,
      qk_head_dim: headDim,
      v_head_dim: headDim,
      reserved_num_seqs: 1,
      attn_kinds: new Array(nLayers).fill("mha"),
      page_group_layout: LAYOUT,
      logical_pages: Array.from({ length: nPages }, (_, i) => ({
        start_pos: i * pageSize, length: Math.min(pageSize, length - i * pageSize) })),
      groups: Array.from({ length: nLayers }, (_, i) => ({
        group_index: i, layer_begin: i, layer_end: i + 1, num_logical_pages: nPages, dtype,
        shape: [1, nPages, 2, nKvHeads, pageSize, headDim], nbytes: nPages * this.pageBytes })),
    };
  }

  attention_kv_cache_export_page_group(id, group, tensor) {
    this.#check(id);
    assert.ok(group >= 0 && group < this.nLayers, "group id");
    const { pages, importing } = this.#sequence;
    assert.equal(importing, undefined);
    assert.deepEqual(tensor.shape, [1, pages.length, 2, this.nKvHeads, this.pageSize, this.headDim],
                     "ExportPageGroup expects");
    assert.equal(tensor.dtype, this.dtype, "dtype mismatches");
    pages.forEach((page, i) => tensor.bytes.set(
      this.#pools[group].subarray(page * this.pageBytes, (page + 1) * this.pageBytes),
      i * this.pageBytes));
  }

  attention_kv_cache_prepare_import(id, text) {
    this.#check(id);
    assert.equal(this.#sequence.length, 0, "the sequence is not empty");
    const metadata = JSON.parse(text);
    assert.deepEqual(metadata, { ...this.describe(metadata.seq_length), ...this.more });
    const nPages = Math.ceil(metadata.seq_length / this.pageSize);
    assert.ok(nPages <= this.#free.length, `only has ${this.#free.length} pages`);
    Object.assign(this.#sequence, { length: metadata.seq_length, importing: new Set(),
                                    pages: this.#free.splice(0, nPages) });
  }

  attention_kv_cache_import_page_group(id, group, tensor) {
    this.#check(id);
    const { pages, importing } = this.#sequence;
    assert.notEqual(importing, undefined, "has not been prepared");
    assert.ok(group >= 0 && group < this.nLayers, "group id");
    assert.ok(!importing.has(group), "already imported");
    assert.deepEqual(tensor.shape, [1, pages.length, 2, this.nKvHeads, this.pageSize, this.headDim],
                     "ImportPageGroup expects");
    assert.equal(tensor.dtype, this.dtype, "dtype mismatches");
    importing.add(group);
    pages.forEach((page, i) => this.#pools[group].set(
      tensor.bytes.subarray(i * this.pageBytes, (i + 1) * this.pageBytes), page * this.pageBytes));
  }

  attention_kv_cache_finish_import(id) {
    this.#check(id);
    const { importing } = this.#sequence;
    assert.notEqual(importing, undefined, "has not been prepared");
    for (let i = 0; i < this.nLayers; ++i) assert.ok(importing.has(i), `missing group ${i}`);
    this.#sequence.importing = undefined;
  }
}
