// Paged caches, for engines without one: a pool of blocks in the module's memory, and sequences
// that refer to blocks by tables.
import { Handle } from "./calls.js";

export class PagedCache extends Handle {
  constructor(plan, options) {
    super(plan.module, "kvevict_paged_cache_destroy", (out, args) => {
      plan.module.check("kvevict_paged_cache_create", plan.address,
                        args.structs("kvevict_paged_cache_options", options), out);
    });
  }

  // An empty sequence.
  sequence() {
    return new PagedSequence(this, (out) => {
      this.module.check("kvevict_paged_sequence_create", this.address, out);
    });
  }

  usage() {
    return this.module.with((args) => {
      const out = args.out("kvevict_paged_cache_usage");
      this.module.check("kvevict_paged_cache_get_usage", this.address, out.address);
      return out.get();
    });
  }

  // Evicts {cached, sequence, options} of several requests: paged sequences, and the sequences
  // that know their positions. All are checked before the first one changes.
  evict(items) {
    const most = Math.max(0, ...items.map(({ sequence }) => sequence.evictBytes));
    const { address, byteLength } = this.module.workspace(most);
    this.module.with((args) => {
      this.module.check("kvevict_paged_evict", args.structs("kvevict_paged_eviction", items),
                        items.length, address, byteLength, 0);
    }, true);
    return items.map(({ sequence }) => sequence.report());
  }
}

// The rows of one request.
export class PagedSequence extends Handle {
  constructor(cache, make) {
    super(cache.module, "kvevict_paged_sequence_destroy", make);
    this.cache = cache;
  }

  // Another sequence that holds the same tokens in the same blocks.
  fork() {
    return new PagedSequence(this.cache, (out) => {
      this.module.check("kvevict_paged_sequence_fork", this.address, out, 0);
    });
  }

  // Makes room for so many tokens in every layer.
  append(nTokens) {
    this.module.check("kvevict_paged_sequence_append", this.address, nTokens, 0);
  }

  // Drops the last tokens of layers that hold more.
  truncate(newLength) {
    this.module.check("kvevict_paged_sequence_truncate", this.address, newLength);
  }

  // Drops the last rows that a sequence no longer has, e.g. after its trimTo().
  fit(sequence) {
    this.module.check("kvevict_paged_sequence_fit", this.address, sequence.address);
  }

  length(layer = 0) {
    return this.module.with((args) => {
      const out = args.number("uint32_t");
      this.module.check("kvevict_paged_sequence_length", this.address, layer, out.address);
      return out.get();
    });
  }

  // A layer's rows where they lie; it holds until a call changes the sequence.
  view(layer = 0) {
    return this.module.with((args) => {
      const out = args.out("kvevict_view");
      this.module.check("kvevict_paged_sequence_view", this.address, layer, out.address);
      return out.get();
    });
  }

  // Copies the blocks that others share, so that they may be written through views.
  own(firstSlot = 0) {
    this.module.check("kvevict_paged_sequence_own", this.address, firstSlot, 0);
  }

  // Copies rows {layer, firstSlot, nTokens, k, v} into slots that layers hold.
  write(rows) {
    this.#copy("kvevict_paged_sequence_write", rows, false);
  }

  // Copies rows out of the cache, to the planes of `rows`.
  read(rows) {
    this.#copy("kvevict_paged_sequence_read", rows, true);
  }

  // Evicts this sequence, whose positions `sequence` knows, and frees blocks.
  evict(sequence, options) {
    return this.cache.evict([{ cached: this, sequence, options }])[0];
  }

  #copy(name, rows, writes) {
    const all = Array.isArray(rows) ? rows : [rows];
    this.module.with((args) => {
      this.module.check(name, this.address, args.structs("kvevict_paged_rows", all), all.length,
                        0);
    }, writes);
  }
}
