// The packages, by the folders that run.sh names.
import { createRequire } from "node:module";

const { resolve } = createRequire(process.env.KVEVICT_MODULES);
export const ort = await import(resolve("onnxruntime-web"));
ort.env.logLevel = "error";
export const kvevict = await import(process.env.KVEVICT_TRANSFORMERS);
export const create = (bytes) => ort.InferenceSession.create(bytes, { logSeverityLevel: 3 });
