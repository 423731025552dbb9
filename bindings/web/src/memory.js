// The memory of the module, and what lies in it: regions that callers keep, and the arguments
// of a call.
import { structs } from "./abi.js";

const cacheLine = 64;
const readers = {
  int8_t: ["Int8", 1],
  uint8_t: ["Uint8", 1],
  int16_t: ["Int16", 2],
  uint16_t: ["Uint16", 2],
  int32_t: ["Int32", 4],
  uint32_t: ["Uint32", 4],
  size_t: ["Uint32", 4],
  float: ["Float32", 4],
  double: ["Float64", 8],
  int64_t: ["BigInt64", 8],
  uint64_t: ["BigUint64", 8],
};
// Fields that hold an address in a number.
const isAddress = (name) => name === "data" || name === "addressTable";

// A region of the module's memory, which calls read and write in place. Arrays on it end when
// the memory grows, so `array` makes a new one each time.
export class Memory {
  constructor(heap, byteLength, address = heap.allocate(byteLength)) {
    this.heap = heap;
    this.byteLength = byteLength;
    this.address = address;
  }

  array(type, byteOffset = 0, length = (this.byteLength - byteOffset) / type.BYTES_PER_ELEMENT) {
    if (this.address === 0) throw new Error("this memory has been freed");
    if (byteOffset + length * type.BYTES_PER_ELEMENT > this.byteLength) {
      throw new RangeError(`${length} elements from byte ${byteOffset} of ${this.byteLength}`);
    }
    return new type(this.heap.buffer, this.address + byteOffset, length);
  }

  // The memory from a byte on; not to be freed.
  at(byteOffset) {
    return new Memory(this.heap, this.byteLength - byteOffset, this.address + byteOffset);
  }

  free() {
    if (this.address !== 0) this.heap.free(this.address);
    this.address = 0;
  }
}

export class Heap {
  #exports;
  #view;

  constructor(exports) {
    this.#exports = exports;
  }

  get buffer() {
    return this.#exports.memory.buffer;
  }

  get view() {
    if (this.#view?.buffer !== this.buffer) this.#view = new DataView(this.buffer);
    return this.#view;
  }

  allocate(byteLength) {
    const rounded = Math.max(1, Math.ceil(byteLength / cacheLine)) * cacheLine;
    const address = rounded < 2 ** 32 ? this.#exports.aligned_alloc(cacheLine, rounded) >>> 0 : 0;
    if (address === 0) throw new RangeError(`no ${byteLength} bytes of WebAssembly memory`);
    return address;
  }

  free(address) {
    this.#exports.free(address);
  }

  read(type, at) {
    const value = this.view[`get${readers[type][0]}`](at, true);
    if (typeof value !== "bigint") return value;
    return value <= Number.MAX_SAFE_INTEGER && value >= -Number.MAX_SAFE_INTEGER
      ? Number(value)
      : value;
  }

  write(type, at, value) {
    const [name, size] = readers[type];
    this.view[`set${name}`](at, size === 8 && type !== "double" ? BigInt(value) : value, true);
  }

  text(pointer) {
    const at = pointer >>> 0; // exports return it as a signed number
    if (at === 0) return "";
    const bytes = new Uint8Array(this.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  readStruct(name, at) {
    const out = {};
    for (const [field, [offset, type, length]] of Object.entries(structs[name].fields)) {
      if (field === "structSize" || field.startsWith("reserved")) continue;
      if (type === "char*") out[field] = this.text(this.read("size_t", at + offset));
      else if (type === "char") out[field] = this.text(at + offset); // char[length]
      else if (type.endsWith("*")) out[field] = this.read("size_t", at + offset);
      else if (type in structs) out[field] = this.readStruct(type, at + offset);
      else if (length === 0) out[field] = this.read(type, at + offset);
    }
    return out;
  }
}

// The arguments of one call. Arrays in the module's memory are used where they lie; others are
// copied into it, and back after a call that writes.
export class Arguments {
  #heap;
  #allocated = [];
  #copies = new Map();

  constructor(heap) {
    this.#heap = heap;
  }

  bytes(byteLength) {
    const address = this.#heap.allocate(byteLength);
    this.#allocated.push(address);
    new Uint8Array(this.#heap.buffer, address, byteLength).fill(0);
    return address;
  }

  text(value) {
    const bytes = new TextEncoder().encode(`${value}\0`);
    const address = this.bytes(bytes.length);
    new Uint8Array(this.#heap.buffer, address, bytes.length).set(bytes);
    return address;
  }

  // The address of data: of a Memory, an object of the library's, a typed array, or a number
  // that is one.
  data(value) {
    if (value === undefined || value === null) return 0;
    if (typeof value === "number") return value;
    if (!ArrayBuffer.isView(value)) {
      const { address } = value; // of an object that has been destroyed it throws
      if (typeof address !== "number") {
        throw new TypeError("data is not a Memory, a typed array or an address");
      }
      if (address === 0) throw new Error("this memory has been freed");
      return address;
    }
    if (value.buffer === this.#heap.buffer) return value.byteOffset;
    return this.#copy(value);
  }

  #copy(value) {
    const key = `${value.byteOffset},${value.byteLength}`;
    const ofBuffer = this.#copies.get(value.buffer) ?? new Map();
    this.#copies.set(value.buffer, ofBuffer);
    if (ofBuffer.has(key)) return ofBuffer.get(key).address;
    const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    const address = this.bytes(value.byteLength);
    new Uint8Array(this.#heap.buffer, address, bytes.length).set(bytes);
    ofBuffer.set(key, { address, bytes });
    return address;
  }

  // The address of structs end to end; 0 for none. A number is such an address.
  structs(name, value) {
    if (value === undefined || value === null) return 0;
    if (typeof value === "number") return value;
    const all = Array.isArray(value) ? value : [value];
    if (all.length === 0) return 0;
    const { size } = structs[name];
    const address = this.bytes(size * all.length);
    all.forEach((one, i) => this.#writeStruct(name, address + size * i, one));
    return address;
  }

  #writeStruct(name, at, value) {
    const { fields, init } = structs[name];
    for (const field of Object.keys(value)) {
      if (!(field in fields)) throw new TypeError(`${name} has no field ${field}`);
    }
    for (const [field, bits] of Object.entries(init)) {
      // Every initial value but 0 is of 32 bits.
      this.#heap.view.setUint32(at + fields[field][0], Number(bits), true);
    }
    for (const [field, given] of Object.entries(value)) {
      if (given === undefined) continue;
      const [offset, type, length] = fields[field];
      if (length > 0) {
        given.forEach((one, i) => this.#writeField(name, field, type, at + offset, one, i));
      } else {
        this.#writeField(name, field, type, at + offset, given, 0);
      }
      const count = fields[`${field}Len`];
      if (count !== undefined && value[`${field}Len`] === undefined && type.endsWith("*")) {
        const n = given === null ? 0 : this.#lengthOf(type, given);
        if (n !== undefined) this.#heap.write("size_t", at + count[0], n);
      }
    }
  }

  #lengthOf(type, given) {
    if (Array.isArray(given) || ArrayBuffer.isView(given)) return given.length;
    const size = readers[type.slice(0, -1)]?.[1];
    if (given instanceof Memory && size !== undefined) return given.byteLength / size;
    return type.slice(0, -1) in structs && typeof given !== "number" ? 1 : undefined;
  }

  #writeField(name, field, type, at, value, index) {
    if (type in structs) {
      this.#writeStruct(type, at, value);
    } else if (type === "char*") {
      this.#heap.write("size_t", at, value === null ? 0 : this.text(value));
    } else if (type.endsWith("*")) {
      const of = type.slice(0, -1);
      const address = of in structs ? this.structs(of, value) : this.data(value);
      this.#heap.write("size_t", at, address);
    } else if (name === "kvevict_plane" && isAddress(field)) {
      this.#heap.write(type, at, typeof value === "bigint" ? value : this.data(value));
    } else {
      this.#heap.write(type, at + index * readers[type][1], value);
    }
  }

  // An output struct; get() reads it.
  out(name, n = 1) {
    const { size, fields } = structs[name];
    const address = this.bytes(size * n);
    if ("structSize" in fields) {
      for (let i = 0; i < n; ++i) this.#heap.write("uint32_t", address + size * i, size);
    }
    return { address, get: (i = 0) => this.#heap.readStruct(name, address + size * i) };
  }

  number(type) {
    const address = this.bytes(8);
    return { address, get: () => this.#heap.read(type, address) };
  }

  // What the call wrote to copies goes to where they were made from.
  copyBack() {
    for (const copies of this.#copies.values()) {
      for (const { address, bytes } of copies.values()) {
        bytes.set(new Uint8Array(this.#heap.buffer, address, bytes.length));
      }
    }
  }

  free() {
    for (const address of this.#allocated) this.#heap.free(address);
  }
}
