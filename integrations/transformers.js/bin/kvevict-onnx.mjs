#!/usr/bin/env node
// kvevict-onnx IN.onnx [OUT.onnx [WINDOW]]: tells what a graph's attention is like, and writes it
// with its queries as outputs.
import { readFile, writeFile } from "node:fs/promises";
import { addQueryOutputs, inspectGraph } from "../dist/index.js";

const [from, to, window = "32"] = process.argv.slice(2);
if (from === undefined) {
  console.error("usage: kvevict-onnx IN.onnx [OUT.onnx [WINDOW]]");
  process.exit(2);
}
try {
  const bytes = new Uint8Array(await readFile(from));
  console.log(JSON.stringify(inspectGraph(bytes)));
  if (to !== undefined) await writeFile(to, addQueryOutputs(bytes, { window: Number(window) }));
} catch (error) {
  console.error(`kvevict-onnx: ${error.message}`);
  process.exit(1);
}
