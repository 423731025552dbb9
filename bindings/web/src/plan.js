import { Handle } from "./calls.js";
import { Operation } from "./enums.js";
import { PagedCache } from "./paged.js";
import { Sequence } from "./sequence.js";

// A device, which here is the CPU: `options` are those of kvevict_context_create().
export class Context extends Handle {
  constructor(module, options = {}) {
    super(module, "kvevict_context_destroy", (out, args) => {
      module.check("kvevict_context_create", args.structs("kvevict_context_options", options),
                   out);
    });
  }

  plan(geometry, policy, options) {
    return new Plan(this, geometry, policy, options);
  }

  // kvevict_select(): returns, for each of the lists, the slots that stay. `options.scores`
  // are [lists, nTokens].
  select(options, count, nLists = 1) {
    const { module } = this;
    return module.with((args) => {
      const need = args.out("kvevict_workspace");
      module.check("kvevict_select_workspace", this.address, options.nTokens, nLists,
                   need.address);
      const { address, byteLength } = module.workspace(need.get().bestBytes);
      const slots = args.bytes(4 * count * nLists);
      const keep = args.structs("kvevict_keep_lists",
                                { nLists, slots, slotsLen: count * nLists, count });
      module.check("kvevict_select", this.address,
                   args.structs("kvevict_select_options", options), keep, address, byteLength,
                   0);
      return Array.from({ length: nLists }, (_, i) =>
        Int32Array.from(new Int32Array(module.heap.buffer, slots + 4 * count * i, count)));
    });
  }

  // kvevict_budget_for_mass(): the least budget of each layer that keeps a share of the mass of
  // its scores, [{scores, ...}].
  budgetsForMass(layers, options) {
    const { module } = this;
    return module.with((args) => {
      const out = args.bytes(4 * layers.length);
      module.check("kvevict_budget_for_mass", this.address,
                   args.structs("kvevict_layer_scores", layers), layers.length,
                   args.structs("kvevict_mass_options", options), out, layers.length);
      return Uint32Array.from(new Uint32Array(module.heap.buffer, out, layers.length));
    });
  }

  // kvevict_compact(): moves the rows that stay.
  compact(moves) {
    this.#execute("kvevict_compact", "kvevict_move", moves);
  }

  // kvevict_reorder(): permutes rows.
  reorder(moves) {
    this.#execute("kvevict_reorder", "kvevict_move", moves);
  }

  // kvevict_attend(); the full module has it.
  attend(jobs) {
    this.#execute("kvevict_attend", "kvevict_attention_job", jobs);
  }

  #execute(name, struct, items) {
    const all = Array.isArray(items) ? items : [items];
    const { module } = this;
    module.with((args) => {
      const need = args.out("kvevict_workspace");
      const given = args.structs(struct, all);
      module.check(`${name}_workspace`, this.address, given, all.length, need.address);
      const { address, byteLength } = module.workspace(need.get().bestBytes);
      module.check(name, this.address, given, all.length, address, byteLength, 0);
    }, true);
  }
}

// Geometry and policy, checked once.
export class Plan extends Handle {
  constructor(context, geometry, policy, options) {
    const { module } = context;
    super(module, "kvevict_plan_destroy", (out, args) => {
      module.check("kvevict_plan_create", context.address,
                   args.structs("kvevict_geometry", geometry), policy.address,
                   args.structs("kvevict_plan_options", options), out);
    });
    this.nLayers = geometry.nLayers;
  }

  sequence() {
    return new Sequence(this);
  }

  // A cache of blocks, by the plan's geometry and maxTokens.
  pagedCache(options) {
    return new PagedCache(this, options);
  }

  // Bytes of such a cache.
  pagedCacheBytes(options) {
    return this.module.with((args) => {
      const out = args.number("size_t");
      this.module.check("kvevict_paged_cache_bytes", this.address,
                        args.structs("kvevict_paged_cache_options", options), out.address);
      return out.get();
    });
  }

  layer(layer) {
    return this.#describe("kvevict_plan_layer", "kvevict_layer_info", layer);
  }

  // What the plan can do with a layer, and why not.
  capabilities(layer) {
    return this.#describe("kvevict_plan_capabilities", "kvevict_capabilities", layer);
  }

  // The workspace of an operation, by default of an eviction; 0 tokens are the most.
  workspace(operation = Operation.EVICT, nTokens = 0) {
    return this.#describe("kvevict_plan_workspace", "kvevict_workspace", operation, nTokens);
  }

  // What each layer keeps of so many tokens.
  layerBudgets(nTokens) {
    const { module, nLayers } = this;
    return module.with((args) => {
      const out = args.bytes(4 * nLayers);
      module.check("kvevict_plan_layer_budgets", this.address, nTokens, out, nLayers);
      return Uint32Array.from(new Uint32Array(module.heap.buffer, out, nLayers));
    });
  }

  // kvevict_score(): writes the scores of jobs.
  score(jobs) {
    const all = Array.isArray(jobs) ? jobs : [jobs];
    const { bestBytes } = this.workspace(Operation.SCORE);
    this.module.with((args) => {
      const given = args.structs("kvevict_score_job", all);
      const { address, byteLength } = this.module.workspace(bestBytes);
      this.module.check("kvevict_score", this.address, given, all.length, address, byteLength,
                        0);
    }, true);
  }

  // kvevict_rotate(): turns keys to other positions.
  rotate(rotations) {
    const all = Array.isArray(rotations) ? rotations : [rotations];
    this.module.with((args) => {
      this.module.check("kvevict_rotate", this.address,
                        args.structs("kvevict_rotation", all), all.length, 0);
    }, true);
  }

  // What select() is to be asked for a layer that holds nTokens of nSeen: its options, and the
  // number and length of its lists.
  selection(layer, nTokens, nSeen = nTokens) {
    return this.module.with((args) => {
      const options = args.out("kvevict_select_options");
      const keep = args.out("kvevict_keep_lists");
      this.module.check("kvevict_plan_selection", this.address, layer, nTokens, nSeen,
                        options.address, keep.address);
      const { tokenCounts, scores, scoresLen, protectedSlots, protectedSlotsLen, ranges,
              rangesLen, ...wanted } = options.get();
      const { nLists, count } = keep.get();
      return { options: wanted, nLists, count };
    });
  }

  #describe(name, struct, ...numbers) {
    return this.module.with((args) => {
      const out = args.out(struct);
      this.module.check(name, this.address, ...numbers, out.address);
      return out.get();
    });
  }
}
