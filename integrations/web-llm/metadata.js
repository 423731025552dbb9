// What the model library says of a checkpoint: how its pages lie, and how a shorter one is
// described. A description of another version or layout is refused.

export const LAYOUT = "1,num_logical_pages,2,num_kv_heads,page_size,qk_head_dim";
const ELEMENT_BYTES = { float32: 4, float16: 2, bfloat16: 2 };
/** The core's names. */
export const DTYPES = { float32: "f32", float16: "f16", bfloat16: "bf16" };

const refuse = (what) => {
  throw new Error(`this model's KV cache cannot be evicted: ${what}`);
};
const count = (name, value) => {
  if (!Number.isSafeInteger(value) || value < 0) refuse(`${name} is ${JSON.stringify(value)}`);
  return value;
};

/**
 * Checks a description, and returns what is needed of it.
 * @param {string} text  JSON.
 */
export function parseMetadata(text) {
  const metadata = JSON.parse(text);
  const { format_version: version, page_group_layout: layout, dtype } = metadata;
  if (version !== 1) refuse(`its checkpoints have format_version ${version}, not 1`);
  if (layout !== LAYOUT) refuse(`its pages lie as ${layout}, not as ${LAYOUT}`);
  if (!(dtype in DTYPES)) refuse(`its elements are ${dtype}`);
  if (metadata.attn_kinds?.some((kind) => kind !== "mha")) {
    refuse(`its layers attend as ${[...new Set(metadata.attn_kinds)].join(", ")}`);
  }
  const length = count("seq_length", metadata.seq_length);
  const pageSize = count("page_size", metadata.page_size);
  const nKvHeads = count("num_kv_heads", metadata.num_kv_heads);
  const headDim = count("qk_head_dim", metadata.qk_head_dim);
  if (pageSize === 0) refuse("page_size is 0");
  if (metadata.v_head_dim !== headDim) {
    refuse(`qk_head_dim ${headDim} differs from v_head_dim ${metadata.v_head_dim}`);
  }
  const nPages = Math.ceil(length / pageSize);
  const pageBytes = 2 * nKvHeads * pageSize * headDim * ELEMENT_BYTES[dtype];
  if (!Array.isArray(metadata.groups) || metadata.groups.length === 0) refuse("it has no groups");
  metadata.groups.forEach((group, i) => {
    const shape = [1, nPages, 2, nKvHeads, pageSize, headDim];
    const first = metadata.groups[0].layer_begin;
    if (group.layer_begin !== first + i || group.layer_end !== first + i + 1) {
      refuse(`group ${i} has layers ${group.layer_begin} to ${group.layer_end}, not one`);
    }
    if (group.dtype !== dtype || JSON.stringify(group.shape) !== JSON.stringify(shape)) {
      refuse(`group ${i} is ${group.dtype} [${group.shape}], not ${dtype} [${shape}]`);
    }
    count(`groups[${i}].group_index`, group.group_index);
  });
  if (metadata.logical_pages?.length !== nPages) {
    refuse(`${metadata.logical_pages?.length} pages hold ${length} tokens of ${pageSize} a page`);
  }
  return { metadata, length, pageSize, nKvHeads, headDim, dtype, nPages, pageBytes,
           nLayers: metadata.groups.length };
}

/** The description of the first `length` slots. */
export function shortened({ metadata, pageSize, pageBytes }, length) {
  const nPages = Math.ceil(length / pageSize);
  return {
    ...metadata,
    seq_length: length,
    logical_pages: metadata.logical_pages.slice(0, nPages).map((page, i) => ({
      ...page, length: Math.min(pageSize, length - i * pageSize) })),
    groups: metadata.groups.map((group) => ({
      ...group,
      num_logical_pages: nPages,
      shape: group.shape.map((n, i) => (i === 1 ? nPages : n)),
      nbytes: nPages * pageBytes,
    })),
  };
}
