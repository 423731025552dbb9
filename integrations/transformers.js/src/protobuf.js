// The wire format of protobuf, as far as ONNX files use it.
const text = new TextDecoder();
const utf8 = new TextEncoder();
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const FIXED32 = 5;

// The fields of the message in bytes [begin, end): their number, where they begin with their
// tag (`start`) and where their content lies. A varint is a BigInt `value`.
export function* fields(bytes, begin = 0, end = bytes.length) {
  let at = begin;
  const varint = () => {
    for (let value = 0n, shift = 0n; ; shift += 7n) {
      if (at >= end || shift > 63n) throw new Error(`no protobuf: a number ends at byte ${at}`);
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asUintN(64, value);
    }
  };
  while (at < end) {
    const start = at;
    const tag = Number(varint());
    const wire = tag & 7;
    const field = { number: tag >>> 3, start, bytes };
    if (wire === VARINT) field.value = varint();
    const length = { [VARINT]: 0, [FIXED64]: 8, [FIXED32]: 4 }[wire] ??
      (wire === BYTES ? Number(varint()) : NaN);
    field.begin = at;
    at += length;
    if (!(at <= end)) throw new Error(`no protobuf: a field ends at byte ${at} of ${end}`);
    field.end = at;
    yield field;
  }
}

export const content = (field) => field.bytes.subarray(field.begin, field.end);
export const string = (field) => text.decode(content(field));
export const inside = (field) => fields(field.bytes, field.begin, field.end);
export const integer = (field) => Number(BigInt.asIntN(64, field.value));
export const float = (field) =>
  new DataView(field.bytes.buffer, field.bytes.byteOffset + field.begin, 4).getFloat32(0, true);

// A repeated number, packed or not.
export function integers(field) {
  if (field.value !== undefined) return [integer(field)];
  const list = [];
  let value = 0n;
  let shift = 0n;
  for (const byte of content(field)) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte >= 128) continue;
    list.push(Number(BigInt.asIntN(64, value)));
    value = shift = 0n;
  }
  return list;
}

function varintBytes(value) {
  const out = [];
  for (let rest = BigInt.asUintN(64, BigInt(value)); ; rest >>= 7n) {
    if (rest < 128n) return Uint8Array.from([...out, Number(rest)]);
    out.push(Number(rest & 127n) | 128);
  }
}

// A field's bytes: a varint from a number, else from a text, bytes, or a list of these.
export function write(number, value) {
  if (typeof value === "number" || typeof value === "bigint") {
    return join([varintBytes(number * 8 + VARINT), varintBytes(value)]);
  }
  const bytes = Array.isArray(value) ? join(value)
    : typeof value === "string" ? utf8.encode(value) : value;
  return join([varintBytes(number * 8 + BYTES), varintBytes(bytes.length), bytes]);
}

export function writeFloat(number, value) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setFloat32(0, value, true);
  return join([varintBytes(number * 8 + FIXED32), bytes]);
}

export function join(parts) {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
