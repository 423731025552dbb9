// The adapter in headless Chromium, whose WebGPU runs on a software driver.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { dirname, extname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const FLAGS = ["--headless=new", "--no-sandbox", "--no-first-run", "--disable-extensions", "--enable-unsafe-webgpu",
               "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"];
const TYPES = { ".wasm": "application/wasm", ".html": "text/html" };
const modules = join(dirname(process.env.KVEVICT_MODULES), "node_modules");
const folders = { modules, src: dirname(process.env.KVEVICT_TRANSFORMERS), web: process.env.KVEVICT_WEB, root };
const imports = {
  "@kvevict/transformers": "/src/index.js",
  "@kvevict/web": "/web/dist/kvevict.js",
  "@kvevict/web/webgpu": "/root/bindings/web/webgpu/index.js",
  "@huggingface/transformers": "/modules/@huggingface/transformers/dist/transformers.web.js",
  "onnxruntime-web/webgpu": "/modules/onnxruntime-web/dist/ort.webgpu.min.mjs",
  "onnxruntime-common": "/modules/onnxruntime-common/dist/esm/index.js",
};
const html = `<!doctype html><title>kvevict</title><link rel="icon" href="data:,">
<script>addEventListener("error", ({ message }) => fetch("/result",
  { method: "POST", body: JSON.stringify({ error: message ?? "a module does not load" }) }), true);</script>
<script type="importmap">${JSON.stringify({ imports })}</script>
<script type="module" src="/root/integrations/transformers.js/test/page.mjs"></script>`;

function answer(request, response, post) {
  if (request.method === "POST") {
    let text = "";
    request.on("data", (part) => { text += part; });
    request.on("end", () => { response.end(); post(JSON.parse(text)); });
    return;
  }
  const { pathname, search } = new URL(request.url, "http://localhost");
  if (pathname === "/done") console.log(decodeURIComponent(search.slice(1)));
  const [, folder, ...path] = normalize(pathname).split("/");
  try {
    const body = pathname === "/" ? html : readFileSync(join(folders[folder], ...path));
    const type = pathname === "/" ? "text/html" : TYPES[extname(pathname)] ?? "text/javascript";
    response.setHeader("content-type", type);
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
}

// What the page posts.
async function open() {
  let post;
  const posted = new Promise((resolve) => { post = resolve; });
  const server = createServer((request, response) => answer(request, response, post));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const profile = mkdtempSync(join(tmpdir(), "kvevict-"));
  const browser = spawn(process.env.KVEVICT_CHROMIUM,
    [...FLAGS, `--user-data-dir=${profile}`, `http://127.0.0.1:${server.address().port}/`],
    { stdio: "ignore", detached: true });
  const ended = new Promise((resolve) => browser.on("exit", resolve));
  try {
    return await Promise.race([posted, ended.then((code) => ({ error: `the browser ended with ${code}` }))]);
  } finally {
    // The whole group, which `detached` has made: its other processes write to the profile.
    if (browser.exitCode === null) process.kill(-browser.pid, "SIGKILL");
    await ended;
    server.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

test("sessions and models evict in a browser, in GPU buffers on the webgpu provider", async () => {
  const { error, sessions, models, console: messages } = await open();
  assert.equal(error, undefined, JSON.stringify(messages));
  for (const { what, apart, isAsLong, evictions, by } of sessions) {
    const all = JSON.stringify({ what, apart, isAsLong, evictions, by });
    if (!what.includes("anchor")) assert.equal(by, what.split(",")[0], all);
    else assert.match(by, /^wasm, the cache is copied there and back: its kernels have no parameter anchor/);
    assert.ok(isAsLong && evictions >= 3, all);
    assert.ok(apart < 1e-5, all);
  }
  assert.equal(sessions.length, 15);
  assert.equal(models.length, 3);
  for (const one of models) {
    const device = one.what.split(":")[0];
    assert.deepEqual(one.said, one.expected, one.what);
    assert.equal(one.stored, one.referenceStored, one.what);
    assert.equal(one.by, device, one.what);
    assert.equal(one.location, device === "webgpu" ? "gpu-buffer" : "cpu", one.what);
  }
  assert.deepEqual(messages, []);
});
