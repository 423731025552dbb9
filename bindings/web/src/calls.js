// Calls of the C API: a status that is no OK becomes an error with the core's sentence.
import { Arguments } from "./memory.js";
import { Status } from "./enums.js";

export class KvevictError extends Error {
  // `status` is a value of Status, `statusName` its name.
  constructor(message, status) {
    super(message);
    this.name = "KvevictError";
    this.status = status;
    this.statusName = Object.keys(Status).find((name) => Status[name] === status) ?? "UNKNOWN";
  }
}

// What all objects of one loaded module share.
export class Module {
  #exports;
  #workspace = { address: 0, byteLength: 0 };

  constructor(exports, heap) {
    this.#exports = exports;
    this.heap = heap;
    // Objects that nobody destroyed.
    this.forgotten = new FinalizationRegistry(({ destroy, address }) => destroy(address));
  }

  // Calls a function with numbers, and throws if it fails.
  check(name, ...args) {
    const status = this.#exports[name](...args);
    if (status !== Status.OK) {
      throw new KvevictError(this.heap.text(this.raw("kvevict_last_error_message")), status);
    }
  }

  raw(name, ...args) {
    return this.#exports[name](...args);
  }

  // Calls use(arguments), and frees what they took.
  with(use, writes = false) {
    const args = new Arguments(this.heap);
    try {
      const result = use(args);
      if (writes) args.copyBack();
      return result;
    } finally {
      args.free();
    }
  }

  // Memory for one call; its content is nobody's. There is one thread, so one will do.
  workspace(byteLength) {
    const { address } = this.#workspace;
    if (byteLength > this.#workspace.byteLength) {
      this.#workspace = { address: 0, byteLength: 0 };
      if (address !== 0) this.heap.free(address);
      this.#workspace = { address: this.heap.allocate(byteLength), byteLength };
    }
    return this.#workspace;
  }
}

// A handle of the C API.
export class Handle {
  #address;
  #destroy;

  // make(out) writes the handle to the address `out`.
  constructor(module, destroy, make) {
    this.module = module;
    this.#destroy = (address) => module.raw(destroy, address);
    this.#address = module.with((args) => {
      const out = args.number("size_t");
      make(out.address, args);
      return out.get();
    });
    module.forgotten.register(this, { destroy: this.#destroy, address: this.#address }, this);
  }

  get address() {
    if (this.#address === 0) throw new Error(`this ${this.constructor.name} has been destroyed`);
    return this.#address;
  }

  // Frees what the object holds. It may be called twice.
  destroy() {
    if (this.#address === 0) return;
    this.module.forgotten.unregister(this);
    this.#destroy(this.#address);
    this.#address = 0;
  }
}
if (Symbol.dispose) Handle.prototype[Symbol.dispose] = Handle.prototype.destroy;
