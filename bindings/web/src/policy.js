import { Handle } from "./calls.js";
import { Input, Need } from "./enums.js";
import { parameters } from "./parameters.js";

// What survives. It has a property for each parameter; a policy only has those of its kind.
export class Policy extends Handle {
  constructor(module, text, values = {}) {
    super(module, "kvevict_policy_destroy", (out, args) => {
      module.check("kvevict_policy_create", args.text(text), out);
    });
    for (const [name, value] of Object.entries(values)) {
      if (!(name in parameters)) throw new TypeError(`a policy has no parameter ${name}`);
      if (value !== undefined) this[name] = value;
    }
  }

  // By a parameter's key in the text form, e.g. "keep_window".
  get(key) {
    return this.module.with((args) => {
      const text = args.bytes(256);
      this.module.check("kvevict_policy_get", this.address, args.text(key), text, 256, 0);
      return this.module.heap.text(text);
    });
  }

  set(key, value) {
    this.module.with((args) => {
      const name = args.text(key);
      if (typeof value === "number" || typeof value === "boolean") {
        this.module.check("kvevict_policy_set_number", this.address, name, Number(value));
      } else {
        this.module.check("kvevict_policy_set", this.address, name, args.text(value));
      }
    });
    return this;
  }

  // Throws if parameters do not go together.
  validate() {
    this.module.check("kvevict_policy_validate", this.address);
    return this;
  }

  // The numbers of tokens in a context of so many.
  resolve(nContext) {
    return this.module.with((args) => {
      const out = args.out("kvevict_resolved_policy");
      this.module.check("kvevict_policy_resolve", this.address, nContext, out.address);
      return out.get();
    });
  }

  // The budgets of layers in a context of so many tokens.
  layerBudgets(nContext, nLayers) {
    return this.module.with((args) => {
      const out = args.bytes(4 * nLayers);
      this.module.check("kvevict_policy_layer_budgets", this.address, nContext, out, nLayers);
      return Uint32Array.from(new Uint32Array(this.module.heap.buffer, out, nLayers));
    });
  }

  // Whether it reads an input, a value of Input: a value of Need.
  need(input) {
    return this.module.with((args) => {
      const out = args.number("int32_t");
      this.module.check("kvevict_policy_need", this.address, input, out.address);
      return out.get();
    });
  }

  // Whether it scores by queries that the engine has to show.
  get needsQueries() {
    return this.need(Input.QUERIES) === Need.REQUIRED;
  }

  // The text form, from which the same policy can be made.
  toString() {
    return this.module.with((args) => {
      const length = args.number("size_t");
      this.module.check("kvevict_policy_format", this.address, 0, 0, length.address);
      const capacity = length.get() + 1;
      const text = args.bytes(capacity);
      this.module.check("kvevict_policy_format", this.address, text, capacity, 0);
      return this.module.heap.text(text);
    });
  }
}

const read = {
  number: Number,
  count: Number,
  seed: BigInt,
  flag: (text) => text === "yes",
  word: (text) => text,
};
for (const [name, [key, kind]] of Object.entries(parameters)) {
  Object.defineProperty(Policy.prototype, name, {
    enumerable: true,
    get() {
      return read[kind](this.get(key));
    },
    set(value) {
      this.set(key, typeof value === "bigint" ? String(value) : value);
    },
  });
}
