// Eviction in a model of transformers.js, whose code stays as it is.
import { Eviction } from "./session.js";
import { inspectGraph } from "./graph.js";
import { addQueryOutputs } from "./queries.js";
import { loadCore, makePolicy } from "./policy.js";

/** See index.d.ts. */
export async function withEviction(model, options = {}) {
  const { onnx, graph, rope, maxTokens, env, onStep, sessionOptions, ...policyOptions } = options;
  refuseUnknownModel(model);
  const kv = await loadCore();
  const policy = makePolicy(kv, policyOptions);
  const known = graph ?? (onnx && inspectGraph(onnx));
  if (onnx !== undefined && policy.needsQueries && !hasQueries(model.sessions.model)) {
    const window = policy.resolve(2 ** 31 - 1).nQueryRows;
    await replaceSession(model, addQueryOutputs(onnx, { window }), known, sessionOptions);
  }
  const eviction = new Eviction(kv, model.sessions.model, policy,
                                { graph: known, rope, maxTokens, env, onStep });
  return eviction.policy === "none" ? eviction : hook(model, eviction);
}

const hasQueries = (session) => session.outputNames.some((name) => name.startsWith("query."));

function refuseUnknownModel({ config, sessions }) {
  if (config.is_encoder_decoder || sessions.model === undefined) {
    throw new Error(`a model of type ${config.model_type} with sessions ${Object.keys(sessions)}: ` +
      "only decoders are known");
  }
  const { layer_types: types = [], sliding_window: window, use_sliding_window: uses = true } = config;
  if (types.some((type) => type.includes("sliding"))) {
    throw new Error("layers attend to a sliding window of slots, which hold other tokens after an eviction");
  }
  if (types.length === 0 && window && uses && window < config.max_position_embeddings) {
    throw new Error(`attention has a sliding window of ${window} slots, which hold other tokens after an eviction`);
  }
}

// The same model with more outputs. Sessions cannot be changed, so another is made.
async function replaceSession(model, bytes, { layers }, sessionOptions) {
  const { model: old } = model.sessions;
  const device = old.config?.device;
  const onGpu = device === "webgpu" ? "gpu-buffer" : "cpu";
  const outputs = layers.flatMap(({ layer }) =>
    [`present.${layer}.key`, `present.${layer}.value`, `query.${layer}`]);
  await old.release();
  const session = await old.constructor.create(bytes, {
    ...(![undefined, "auto", "gpu"].includes(device) && { executionProviders: [device] }),
    logSeverityLevel: 3, // as for the sessions of transformers.js
    preferredOutputLocation: Object.fromEntries(outputs.map((name) => [name, onGpu])),
    ...sessionOptions,
  });
  session.config = old.config;
  model.sessions.model = session;
}

// generate() asks the cache how many tokens it has: it is to count evicted ones. And it does
// not tell the session of beams.
function hook(model, eviction) {
  const prepare = model.prepare_inputs_for_generation;
  model.prepare_inputs_for_generation = function (ids, inputs, config, ...rest) {
    const beams = config?.num_beams ?? 1;
    eviction.pause = beams > 1 ? `${beams} beams: only single sequences are evicted` : undefined;
    if (inputs.past_key_values) countEvicted(inputs.past_key_values, eviction);
    return prepare.call(this, ids, inputs, config, ...rest);
  };
  const remove = eviction.remove.bind(eviction);
  eviction.remove = () => {
    delete model.prepare_inputs_for_generation;
    remove();
  };
  return eviction;
}

// Entries of a cache are its enumerable properties, so this is none.
function countEvicted(cache, eviction) {
  if (Object.hasOwn(cache, "get_seq_length")) return;
  Object.defineProperty(cache, "get_seq_length",
                        { value: () => eviction.seen(cache), configurable: true });
}
