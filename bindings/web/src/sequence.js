import { Handle } from "./calls.js";
import { constants } from "./abi.js";

// What one request carries from eviction to eviction.
export class Sequence extends Handle {
  // The plan may be destroyed before the sequence: what evictions need of it is asked here.
  constructor(plan, make, evictBytes = plan.workspace().bestBytes) {
    super(plan.module, "kvevict_sequence_destroy", make ?? ((out) => {
      plan.module.check("kvevict_sequence_create", plan.address, out);
    }));
    this.plan = plan;
    this.evictBytes = evictBytes;
  }

  // From here on queries that observe() shows are kept.
  beginObserving() {
    this.module.check("kvevict_sequence_begin_observing", this.address, 0, 0);
    return this;
  }

  endObserving() {
    this.module.check("kvevict_sequence_end_observing", this.address);
  }

  // Shows queries, attention sums or scores of nRows tokens: {layer, inputs} of layers, ascending.
  observe(observations, nRows, firstPosition = constants.POSITION_NEXT) {
    this.module.with((args) => {
      this.module.check("kvevict_sequence_observe", this.address,
                        args.structs("kvevict_observation", observations),
                        observations.length, nRows, firstPosition, 0);
    });
  }

  // The engine has stored so many more rows in every layer.
  append(nTokens) {
    this.module.check("kvevict_sequence_append", this.address, nTokens, 0);
  }

  endPrompt() {
    this.module.check("kvevict_sequence_end_prompt", this.address);
  }

  // Takes back the last tokens, down to a logical length.
  trimTo(length) {
    this.module.check("kvevict_sequence_trim_to", this.address, length, 0);
  }

  reset() {
    this.module.check("kvevict_sequence_reset", this.address, 0);
  }

  // Scores, selects and compacts the cache in place: a view for each layer. Arrays that do
  // not lie in the module's memory are copied there and back. Returns report().
  evict(views, options) {
    this.module.with((args) => {
      const given = args.structs("kvevict_view", views);
      const chosen = args.structs("kvevict_evict_options", options);
      const { address, byteLength } = this.module.workspace(this.evictBytes);
      this.module.check("kvevict_sequence_evict", this.address, given, views.length, chosen,
                        address, byteLength, 0);
    }, true);
    return this.report();
  }

  // How many slots of each layer the next eviction leaves, so that destinations have room.
  keptSlots(views) {
    return this.module.with((args) => {
      const out = args.bytes(4 * views.length);
      this.module.check("kvevict_sequence_kept_slots", this.address,
                        args.structs("kvevict_view", views), views.length, out, views.length);
      return Uint32Array.from(new Uint32Array(this.module.heap.buffer, out, views.length));
    });
  }

  // Bytes that an eviction's `undo` takes.
  undoBytes(views) {
    return this.module.with((args) => {
      const out = args.number("size_t");
      this.module.check("kvevict_sequence_undo_bytes", this.address,
                        args.structs("kvevict_view", views), views.length, out.address);
      return out.get();
    });
  }

  // Brings back what the last eviction moved to `undo`, a Memory.
  undo(views, undo) {
    this.module.with((args) => {
      this.module.check("kvevict_sequence_undo", this.address,
                        args.structs("kvevict_view", views), views.length, args.data(undo),
                        undo.byteLength, 0);
    }, true);
  }

  // Begins with rows that are there already: the positions of each layer's slots.
  start(layers, nTokens) {
    this.module.with((args) => {
      this.module.check("kvevict_sequence_start", this.address,
                        args.structs("kvevict_position_lists", layers), layers.length, nTokens,
                        0);
    });
  }

  // What the last eviction did.
  report() {
    return this.module.with((args) => {
      const out = args.out("kvevict_evict_report");
      this.module.check("kvevict_sequence_report", this.address, out.address, 0, 0);
      return out.get();
    });
  }

  // The slot of the next row.
  storedLength(layer = 0, kvHead = 0) {
    return this.#number("uint32_t", "kvevict_sequence_stored_length", layer, kvHead);
  }

  // The position of the next token.
  get logicalLength() {
    return this.#number("uint32_t", "kvevict_sequence_logical_length");
  }

  // The length up to which nothing has been evicted.
  get exactPrefix() {
    return this.#number("uint32_t", "kvevict_sequence_exact_prefix");
  }

  positionOfSlot(layer, kvHead, slot) {
    return this.#number("int32_t", "kvevict_sequence_position_of_slot", layer, kvHead, slot);
  }

  slotOfPosition(layer, kvHead, position) {
    return this.#number("int32_t", "kvevict_sequence_slot_of_position", layer, kvHead,
                        position);
  }

  // The positions of all slots, ascending.
  keepPositions(layer = 0, kvHead = 0) {
    const n = this.storedLength(layer, kvHead);
    return this.module.with((args) => {
      const out = args.bytes(4 * n);
      this.module.check("kvevict_sequence_keep_positions", this.address, layer, kvHead, out, n,
                        args.number("size_t").address);
      return Int32Array.from(new Int32Array(this.module.heap.buffer, out, n));
    });
  }

  // Another sequence in the same state, whose rows the engine copies.
  fork(options) {
    return new Sequence(options?.plan ?? this.plan, (out, args) => {
      this.module.check("kvevict_sequence_fork", this.address,
                        args.structs("kvevict_fork_options", options), out, 0);
    }, options?.plan === undefined ? this.evictBytes : undefined);
  }

  // The state as bytes, for load().
  save() {
    return this.module.with((args) => {
      const length = args.number("size_t");
      this.module.check("kvevict_sequence_save", this.address, 0, 0, length.address);
      const n = length.get();
      const out = args.bytes(n);
      this.module.check("kvevict_sequence_save", this.address, out, n, length.address);
      return Uint8Array.from(new Uint8Array(this.module.heap.buffer, out, n));
    });
  }

  load(bytes) {
    this.module.with((args) => {
      this.module.check("kvevict_sequence_load", this.address, args.data(bytes), bytes.length,
                        0);
    });
  }

  #number(type, name, ...numbers) {
    return this.module.with((args) => {
      const out = args.number(type);
      this.module.check(name, this.address, ...numbers, out.address);
      return out.get();
    });
  }
}
