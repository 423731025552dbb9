// Loads the module. It needs three functions of WASI, for messages that its C library might
// print; the library itself prints none.
const functions = {
  fd_close: () => 0,
  fd_seek: () => 70, // no such thing: ESPIPE
  fd_write: () => 8, // no such descriptor: EBADF
};

// `source` is a WebAssembly.Module, the bytes of one, a Response, or where it lies: a URL or
// a text.
export async function instantiate(source) {
  const imports = {
    wasi_snapshot_preview1: new Proxy(functions, {
      get: (known, name) => known[name] ?? (() => 52), // not supported: ENOSYS
    }),
  };
  const from = await fetched(source);
  const result = from instanceof WebAssembly.Module
    ? { instance: await WebAssembly.instantiate(from, imports) }
    : await WebAssembly.instantiate(from, imports);
  result.instance.exports._initialize?.();
  return result.instance.exports;
}

async function fetched(source) {
  const given = await source;
  if (given instanceof WebAssembly.Module) return given;
  if (given instanceof ArrayBuffer || ArrayBuffer.isView(given)) return given;
  if (typeof Response !== "undefined" && given instanceof Response) return bytesOf(given);
  const url = new URL(given, import.meta.url);
  if (url.protocol === "file:" && typeof process !== "undefined") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url);
  }
  return bytesOf(await fetch(url));
}

async function bytesOf(response) {
  if (!response.ok) throw new Error(`${response.url}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}
