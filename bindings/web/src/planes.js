// Where rows lie: see kvevict_plane_token_major() and its like.
import { dtypeBlocks } from "./abi.js";
import { DType, Role } from "./enums.js";

// Bytes of a packed row.
export function rowBytes(dtype, headDim) {
  if (dtype === DType.OPAQUE) return headDim;
  const [elements, bytes] = dtypeBlocks[dtype];
  return headDim / elements * bytes;
}

// Rows as [tokens, nHeads, headDim].
export function tokenMajor(data, nHeads, headDim, dtype = dtypeOf(data)) {
  const headStrideBytes = rowBytes(dtype, headDim);
  const isOpaque = dtype === DType.OPAQUE;
  return {
    data,
    dtype,
    headDim: isOpaque ? 0 : headDim,
    rowBytes: isOpaque ? headDim : 0,
    role: Role.NONE,
    headStrideBytes,
    tokenStrideBytes: headStrideBytes * nHeads,
  };
}

// Rows as [heads, nSlots, headDim].
export function headMajor(data, nSlots, headDim, dtype = dtypeOf(data)) {
  const plane = tokenMajor(data, 1, headDim, dtype);
  plane.headStrideBytes = plane.tokenStrideBytes * nSlots;
  return plane;
}

// Halves have no array of their own in most browsers: they lie in a Uint16Array.
function dtypeOf(data) {
  if (data instanceof Float32Array) return DType.F32;
  if (data instanceof Uint16Array || data?.constructor?.name === "Float16Array") {
    return DType.F16;
  }
  throw new TypeError("say which dtype the rows have");
}
