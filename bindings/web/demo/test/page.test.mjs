// The page in headless Chromium, on a software GPU and without one: figures, what it says it runs
// on, the console, narrow and wide, light and dark. Screenshots lie in web/ of the build folder.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { Chromium, softwareGpu } from "./chromium.mjs";
import { nativeResults } from "./native.mjs";
import { serve } from "../serve.mjs";

const seed = 1;
const pictures = join(dirname(process.env.KVEVICT_WEBGPU_MODULES), "demo");
mkdirSync(pictures, { recursive: true });
const idle = `["done", "error"].includes(document.body?.dataset.state)`;
let server;
let address;

before(async () => {
  server = await serve(process.env.KVEVICT_DEMO, 0);
  address = `http://127.0.0.1:${server.address().port}/?seed=${seed}&tokens=`;
});
after(() => server.close());

// `own` is what the browser itself says on the console.
async function withPage(flags, nTokens, use, own = undefined) {
  const browser = new Chromium(process.env.KVEVICT_CHROMIUM, flags);
  try {
    const page = await browser.page();
    await page.resize(1400, 1000);
    await page.open(address + nTokens);
    await page.until(idle);
    assert.equal(await page.evaluate(`document.getElementById("problem").textContent`), "");
    await use(page);
    assert.deepEqual(page.messages.filter((message) => own?.test(message) !== true), []);
  } finally {
    await browser.close();
  }
}

// Does something to the page and waits for what follows.
async function act(page, expression) {
  await page.evaluate(`document.body.dataset.state = "acting"; ${expression}; undefined`);
  await page.until(idle);
}
const setBudget = (budget) => `(async () => {
  const { budgets } = await import("./policies.js");
  const slider = document.getElementById("budget");
  slider.value = budgets.indexOf(${budget});
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})()`;
const click = (selector) => `document.querySelector('${selector}').click()`;

async function checkTable(page, nTokens, budget, device) {
  const rows = await page.evaluate(`Array.from(document.querySelectorAll("#rows tr"), (row) =>
    [row.dataset.policy, ...Array.from(row.cells, (cell) => cell.textContent).slice(1)])`);
  const native = nativeResults(nTokens, seed, budget);
  assert.deepEqual(rows.map(([text]) => text), Array.from(native.keys()));
  for (const [text, asked, unasked, ms, ranOn] of rows) {
    const { recall_asked, recall_unasked } = native.get(text);
    assert.deepEqual({ text, asked, unasked },
                     { text, asked: `${recall_asked * 16} of 16`,
                       unasked: `${Math.round(recall_unasked * 48)} of 48` });
    assert.ok(Number(ms) >= 0, ms);
    const byCore = device === "WebAssembly" || text === "none" || text.startsWith("random");
    assert.equal(ranOn, byCore ? "WebAssembly" : "WebGPU", text);
  }
  const shown = await page.evaluate(`["bytes-more", "asked", "time-more"].map((id) =>
    document.getElementById(id).textContent)`);
  const chosen = native.get(await page.evaluate(
    `document.querySelector("[name=policy]:checked").value`));
  const count = new Intl.NumberFormat("en");
  assert.deepEqual(shown.slice(0, 2), [
    `${count.format(chosen.kv_bytes_after)} of ${count.format(chosen.kv_bytes_before)} bytes`,
    `${chosen.recall_asked * 16} of 16`]);
  return shown[2];
}

// The share of a strip's columns that show nothing.
const empty = (strip) => `(() => {
  const canvas = document.querySelectorAll("canvas.strip")[${strip}];
  const { data } = canvas.getContext("2d").getImageData(0, 1, canvas.width, 1);
  const color = (x) => data.slice(4 * x, 4 * x + 3).join();
  const middle = color(Math.floor(canvas.width / 2));
  let n = 0;
  for (let x = 0; x < canvas.width; ++x) n += color(x) === middle;
  return [n / canvas.width, 2 / canvas.width];
})()`;

test("on WebGPU, and on WebAssembly beside it", async () => {
  const nTokens = 4096;
  await withPage(softwareGpu, nTokens, async (page) => {
    assert.match(await page.evaluate(`document.getElementById("device-hint").textContent`),
                 /^WebGPU is .*swiftshader, a software driver/i);
    assert.equal(await checkTable(page, nTokens, 512, "WebGPU"), "on WebGPU");
    for (const scheme of ["light", "dark"]) {
      for (const width of [400, 700, 1400]) {
        await page.prefer(scheme);
        await page.resize(width, 900);
        await page.evaluate(`new Promise((resolve) =>
          requestAnimationFrame(() => requestAnimationFrame(resolve)))`);
        assert.equal(await page.evaluate("document.documentElement.scrollWidth"), width);
        const [r] = (await page.evaluate("getComputedStyle(document.body).backgroundColor"))
          .match(/\d+/g);
        assert.equal(Number(r) < 128, scheme === "dark");
        writeFileSync(join(pictures, `${scheme}-${width}.png`), await page.screenshot());
      }
    }
    // Strips show what stayed: here the first 4 tokens and the last ones.
    await act(page, click('[name=policy][value="streaming-llm"]'));
    const [share, twoColumns] = await page.evaluate(empty(1));
    assert.ok(Math.abs(share - (1 - 512 / nTokens)) <= twoColumns, `${share}`);
    await act(page, click('#rows tr[data-policy="tova"] button'));
    await act(page, setBudget(256));
    assert.equal(await checkTable(page, nTokens, 256, "WebGPU"), "on WebGPU");
    await act(page, click('[name=device][value="wasm"]'));
    assert.equal(await checkTable(page, nTokens, 256, "WebAssembly"), "on WebAssembly");
  });
});

test("without a GPU", async () => {
  const nTokens = 1024;
  await withPage([], nTokens, async (page) => {
    assert.match(await page.evaluate(`document.getElementById("device-hint").textContent`),
                 /^WebAssembly: (WebGPU finds no GPU here|this browser has no WebGPU)/);
    assert.equal(await page.evaluate(`document.querySelector("[value=webgpu]").disabled`), true);
    assert.equal(await checkTable(page, nTokens, 512, "WebAssembly"), "on WebAssembly");
  }, /^No available adapters\./); // Chromium warns
});

test("a GPU that fails leaves its work to the core", async () => {
  const nTokens = 512;
  await withPage(softwareGpu, nTokens, async (page) => {
    assert.equal(await checkTable(page, nTokens, 384, "WebGPU"), "on WebGPU");
    await page.evaluate(`GPUQueue.prototype.submit = () => { throw new Error("no kernels"); }; 0`,
                        page.worker);
    await act(page, setBudget(256));
    assert.match(await page.evaluate(`document.getElementById("device-hint").textContent`),
                 /^WebAssembly: the GPU failed: no kernels\./);
    assert.equal(await checkTable(page, nTokens, 256, "WebAssembly"), "on WebAssembly");
  });
});

test("a wrong address says what is wrong", async () => {
  const browser = new Chromium(process.env.KVEVICT_CHROMIUM, []);
  try {
    const page = await browser.page();
    await page.open(`${address}12`);
    await page.until(idle);
    assert.equal(await page.evaluate(`document.getElementById("problem").textContent`),
                 "The page stopped: tokens 12: the model reads 256 to 32768.");
  } finally {
    await browser.close();
  }
});
