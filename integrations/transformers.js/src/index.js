// @kvevict/transformers: evicts the KV cache of transformers.js and onnxruntime-web.
export { withEviction } from "./model.js";
export { Eviction, evictSession } from "./session.js";
export { GraphError, inspectGraph } from "./graph.js";
export { addQueryOutputs } from "./queries.js";
