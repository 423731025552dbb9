// The checkpoint functions of a model library, in the order in which web-llm calls them.
const PREFIX = "vm.builtin.";
const NAMES = {
  getMetadata: "attention_kv_cache_get_checkpoint_metadata",
  exportPageGroup: "attention_kv_cache_export_page_group",
  prepareImport: "attention_kv_cache_prepare_import",
  importPageGroup: "attention_kv_cache_import_page_group",
  finishImport: "attention_kv_cache_finish_import",
  getLength: "attention_kv_cache_get_sequence_length",
  clear: "kv_state_clear",
  addSequence: "kv_state_add_sequence",
};

export class Checkpoints {
  #pipeline;
  #functions = {};
  #sequence;

  /** @param {any} pipeline  web-llm's, with `tvm`, `device` and `kvCache`. */
  constructor(pipeline) {
    this.#pipeline = pipeline;
    const { tvm } = pipeline;
    this.#sequence = tvm.scalar(0, "int64");
    this.#scoped(() => {
      for (const [key, name] of Object.entries(NAMES)) {
        this.#functions[key] = tvm.detachFromCurrentScope(tvm.getGlobalFunc(PREFIX + name));
      }
    });
  }

  get #cache() {
    return this.#pipeline.kvCache;
  }

  // Objects that are made within belong to the scope and end with it.
  #scoped(use) {
    const { tvm } = this.#pipeline;
    tvm.beginScope();
    let result;
    try {
      result = use();
    } catch (error) {
      tvm.endScope();
      throw error;
    }
    if (!(result instanceof Promise)) {
      tvm.endScope();
      return result;
    }
    return result.finally(() => tvm.endScope());
  }

  /** The description of what sequence 0 holds, as JSON. */
  metadata() {
    return this.#scoped(() => String(this.#functions.getMetadata(this.#cache, this.#sequence)));
  }

  length() {
    return Number(this.#functions.getLength(this.#cache, this.#sequence));
  }

  /** The bytes of a group of pages. */
  exportGroup({ group_index: index, shape, dtype }) {
    const { tvm, device } = this.#pipeline;
    return this.#scoped(async () => {
      const pages = tvm.empty(shape, dtype, device);
      this.#functions.exportPageGroup(this.#cache, this.#sequence, tvm.scalar(index, "int64"),
                                      pages);
      const onHost = tvm.empty(shape, dtype, tvm.cpu());
      onHost.copyFrom(pages);
      await device.sync();
      return onHost.toRawBytes();
    });
  }

  /** Puts groups in the place of what sequence 0 holds; bytesOf(i) gives those of groups[i]. */
  async import(metadata, bytesOf) {
    const { tvm, device } = this.#pipeline;
    const { clear, addSequence, prepareImport, importPageGroup, finishImport } = this.#functions;
    clear(this.#cache);
    addSequence(this.#cache, this.#sequence);
    prepareImport(this.#cache, this.#sequence, JSON.stringify(metadata));
    metadata.groups.forEach(({ group_index: index, shape, dtype }, i) => {
      this.#scoped(() => {
        const pages = tvm.empty(shape, dtype, device);
        pages.copyFromRawBytes(bytesOf(i));
        importPageGroup(this.#cache, this.#sequence, tvm.scalar(index, "int64"), pages);
      });
    });
    finishImport(this.#cache, this.#sequence);
    await device.sync();
  }

  /** Frees the functions. */
  dispose() {
    for (const func of Object.values(this.#functions)) func.dispose?.();
    this.#functions = {};
  }
}
