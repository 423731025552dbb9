// What the tests share: the packages by their folders, and a reader of tokens over a session.
import { createRequire } from "node:module";

const { resolve } = createRequire(process.env.KVEVICT_TRANSFORMERS_MODULES);
export const ort = await import(resolve("onnxruntime-web"));
ort.env.logLevel = "error";
export const kvevict = await import(process.env.KVEVICT_TRANSFORMERS);
export { makeDecoder, defaults } from "./decoder.mjs";

export const create = (bytes) => ort.InferenceSession.create(bytes, { logSeverityLevel: 3 });
export const tokens = (n, first = 0) => Array.from({ length: n }, (_, i) => ((first + i) * 37 + 11 * ((first + i) % 7)) % 64);
