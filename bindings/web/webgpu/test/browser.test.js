// The module in a browser: headless Chromium on its software driver opens page.js
// and posts what came out.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join, normalize } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const chromium = process.env.KVEVICT_CHROMIUM;
const root = fileURLToPath(new URL('..', import.meta.url));
const FLAGS = [
  '--headless=new',
  '--no-sandbox',
  '--no-first-run',
  '--disable-extensions',
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  '--enable-features=Vulkan',
];

/** Serves the module's folder, and resolves with what the page posts. */
function serve() {
  let server;
  const posted = new Promise((resolve) => {
    server = createServer((request, response) => {
      if (request.method === 'POST') {
        let text = '';
        request.on('data', (part) => (text += part));
        request.on('end', () => resolve(JSON.parse(text)));
        response.end();
        return;
      }
      if (request.url === '/') {
        response.setHeader('content-type', 'text/html');
        response.end(
          '<!doctype html><title>kvevict</title><script type="module" src="/test/page.js"></script>',
        );
        return;
      }
      try {
        const file = readFileSync(
          join(root, normalize(new URL(request.url, 'http://localhost').pathname)),
        );
        response.setHeader('content-type', 'text/javascript');
        response.end(file);
      } catch {
        response.writeHead(404).end();
      }
    });
  });
  return new Promise((resolve) =>
    server.listen(0, '127.0.0.1', () => resolve({ server, posted, port: server.address().port })),
  );
}

test(
  'a page evicts on the GPU',
  { skip: chromium === undefined && 'KVEVICT_CHROMIUM names no browser' },
  async () => {
    const { server, posted, port } = await serve();
    const profile = mkdtempSync(join(tmpdir(), 'kvevict-web-'));
    const browser = spawn(
      chromium,
      [...FLAGS, `--user-data-dir=${profile}`, `http://127.0.0.1:${port}/`],
      { stdio: 'ignore', detached: true },
    );
    const ended = new Promise((resolve) => browser.on('exit', resolve));
    try {
      const result = await Promise.race([
        posted,
        ended.then((code) => ({ error: `the browser ended with ${code}` })),
      ]);
      assert.equal(result.error, undefined);
      assert.deepEqual(result.console, []);
      for (const { name, wrongSlots, wrongBytes, n } of result.cases) {
        assert.deepEqual({ wrongSlots, wrongBytes }, { wrongSlots: 0, wrongBytes: 0 }, name);
        assert.ok(n > 0);
      }
      assert.equal(result.cases.length, 3);
    } finally {
      // The whole group, which `detached` has made: its other processes write to the profile.
      if (browser.exitCode === null) process.kill(-browser.pid, 'SIGKILL');
      await ended;
      server.close();
      rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
    }
  },
);
