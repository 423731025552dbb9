// Which policies a graph's cache can take, and what the WebGPU evictor knows of them.
import { Input, Need, createEvictionPolicy, load } from "@kvevict/web";

let core;
/** The core, loaded once: objects of one module are strangers to another. */
export const loadCore = () => (core ??= load());

// Not a text's number of query rows, but: any number, and all.
const MOST_ROWS = 0xfffffff0;

// `policy` is the core's text; other fields are those of EvictionConfig.
export function makePolicy(kv, { policy: text, ...config }) {
  if (text !== undefined && Object.keys(config).length > 0) {
    const [other] = Object.keys(config);
    throw new TypeError(`policy "${text}" and ${other}: give one of them, the text has all`);
  }
  const policy = kv.policy(text ?? createEvictionPolicy(config).text).validate();
  refuseUnserved(kv, policy);
  return policy;
}

function refuseUnserved(kv, policy) {
  const refuse = (why) => {
    throw new Error(`policy "${policy}": ${why}`);
  };
  const [kind] = String(policy).split(":");
  const keys = new Set(kv.parameters(kind).map((row) => row.key));
  if (keys.has("split") && policy.split !== "uniform") {
    refuse("layers would keep different numbers of tokens, but the graph has one attention mask for all; split=uniform works");
  }
  if (keys.has("heads") && policy.heads !== "equal") {
    refuse("heads would keep different numbers of tokens, but a tensor [1, heads, tokens, dim] holds as many of each; heads=equal works");
  }
  for (const [name, input] of Object.entries(Input)) {
    const isServed = name === "KEYS" || name === "VALUES" || name === "QUERIES";
    if (!isServed && policy.need(input) === Need.REQUIRED) {
      refuse(`it needs ${name.toLowerCase()}, which a graph does not give`);
    }
  }
  if (policy.resolve(2).nQueryRows > MOST_ROWS) {
    refuse("it needs the queries or the attention of all tokens; a graph gives those of a window");
  }
}

const number = (text) => (/^[0-9]+$/.test(text) ? Number(text) : NaN);
const flag = (text) => text === "yes";
const word = (text) => text;
// Parameters that the evictor has, by their keys in the text form.
const SHARED = {
  sink: ["sink", number], recent: ["recent", number], window: ["window", number],
  keep_window: ["keepWindow", flag], pool: ["pool", word], edge: ["edge", word],
  rows: ["rows", word], group: ["group", word], order: ["order", word], scope: ["scope", word],
  over: ["over", word], tie: ["tie", word], block: ["block", number], ranks: ["ranks", flag],
  rotate: ["rotate", flag],
};
const OURS = new Set(["budget", "margin", "every"]); // session.js sees to these

// The policy as the WebGPU evictor takes it. What it does not know, it refuses itself.
export function toGpuPolicy(policy, budget) {
  const [kind, rest = ""] = String(policy).split(":");
  const gpu = { kind, budget };
  for (const part of rest.split(",").filter(Boolean)) {
    const [key, value] = part.split("=");
    if (OURS.has(key)) continue;
    if (!(key in SHARED)) throw new RangeError(`its kernels have no parameter ${key}`);
    const [name, read] = SHARED[key];
    gpu[name] = read(value);
  }
  return gpu;
}
