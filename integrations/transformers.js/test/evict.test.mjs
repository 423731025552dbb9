// Sessions of onnxruntime-web that evict, beside the same sessions with a full cache whose mask
// hides what was evicted.
import assert from "node:assert/strict";
import { test } from "node:test";
import { addQueryOutputs, evictSession, inspectGraph, makeDecoder, ort, reader, masked } from "./rig.mjs";
