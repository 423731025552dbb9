// serve.mjs [FOLDER] [--port N]: serves the demo page to browsers of this machine.
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const types = { ".html": "text/html; charset=utf-8", ".js": "text/javascript",
                ".css": "text/css", ".wasm": "application/wasm" };

// A path within the folder; an address that is none gives the folder itself.
function fileOf(folder, address) {
  try {
    const path = decodeURIComponent(new URL(address, "http://localhost").pathname);
    return join(folder, normalize(path.endsWith("/") ? `${path}index.html` : path));
  } catch {
    return folder;
  }
}

// Resolves with a server on 127.0.0.1; port 0 is any free one.
export function serve(folder, port) {
  const server = createServer((request, response) => {
    const file = fileOf(folder, request.url);
    const type = types[extname(file)];
    if (type === undefined || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { "content-type": type, "cache-control": "no-cache" });
    createReadStream(file).pipe(response);
  });
  return new Promise((resolve, reject) => {
    server.on("error", reject);
    server.listen(port, "127.0.0.1", () => resolve(server));
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const given = process.argv.slice(2);
  const at = given.indexOf("--port");
  const port = at < 0 ? 8080 : Number(given.splice(at, 2)[1]);
  if (!(Number.isInteger(port) && port >= 0 && port <= 65535)) {
    console.error("serve: --port takes a number from 0 to 65535");
    process.exit(2);
  }
  const server = await serve(given[0], port).catch((error) => {
    console.error(`serve: ${error.message}; --port N takes another port`);
    process.exit(1);
  });
  console.log(`http://127.0.0.1:${server.address().port}/  (Ctrl+C ends it)`);
}
