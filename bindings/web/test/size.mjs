// node size.mjs FILE: the default module is at most 200 KB as brotli sends it.
import { readFileSync } from "node:fs";
import { brotliCompressSync, constants } from "node:zlib";

const most = 200 * 1000;
const module = readFileSync(process.argv[2]);
const sent = brotliCompressSync(module, {
  params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
            [constants.BROTLI_PARAM_SIZE_HINT]: module.length },
}).length;
console.log(`${module.length} bytes, ${sent} by brotli, of at most ${most}`);
process.exitCode = sent <= most ? 0 : 1;
