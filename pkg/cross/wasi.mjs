// node wasi.mjs PROGRAM [arguments ...]       runs a program for WASI
// node wasi.mjs PROGRAM --cases EXPECTED LONG runs all cases of a test program that
//                                             tests/cross/cases.c is the main of, but for
//                                             those that the file LONG names, unless
//                                             KVEVICT_TEST_LONG is set
//
// Each case has an instance of its own. EXPECTED has a line `suite/name: reason` for each
// case that fails in WebAssembly; one of these that passes is a failure. The exit code is
// 77 if all cases were skipped. A program may write to its output and read files.
import { closeSync, openSync, readFileSync, readSync, writeSync } from "node:fs";
import path from "node:path";
import process from "node:process";

const skippedCode = 77;
const rights = 0xffffffffffffffffn;
const [badFile, noEntry, notSupported, typeDirectory, typeFile] = [8, 44, 58, 3, 4];
const folder = 3; // the descriptor of "/"

class Exit {
  constructor(code) {
    this.code = code;
  }
}

// A process: its imports, and start(). write(text) takes what it prints.
class Wasi {
  constructor(args, write) {
    this.write = write;
    this.files = new Map();
    this.strings = {
      args: args.map((text) => Buffer.from(`${text}\0`)),
      environ: Object.entries(process.env).map((pair) => Buffer.from(`${pair.join("=")}\0`)),
    };
  }

  get view() {
    return new DataView(this.memory.buffer);
  }

  bytes(at, length) {
    return new Uint8Array(this.memory.buffer, at, length);
  }

  sizesOf(strings, nAt, bytesAt) {
    this.view.setUint32(nAt, strings.length, true);
    this.view.setUint32(bytesAt, Buffer.concat(strings).length, true);
    return 0;
  }

  copyStrings(strings, listAt, textAt) {
    for (const text of strings) {
      this.view.setUint32(listAt, textAt, true);
      this.bytes(textAt, text.length).set(text);
      listAt += 4;
      textAt += text.length;
    }
    return 0;
  }

  // Calls use(part) for the parts of a list of buffers; returns the sum of what it returns.
  forEachPart(list, n, use) {
    let sum = 0;
    for (let i = 0; i < n; ++i) {
      const at = this.view.getUint32(list + 8 * i, true);
      sum += use(this.bytes(at, this.view.getUint32(list + 8 * i + 4, true)));
    }
    return sum;
  }

  imports() {
    const { files } = this;
    const known = {
      args_sizes_get: (n, bytes) => this.sizesOf(this.strings.args, n, bytes),
      args_get: (list, text) => this.copyStrings(this.strings.args, list, text),
      environ_sizes_get: (n, bytes) => this.sizesOf(this.strings.environ, n, bytes),
      environ_get: (list, text) => this.copyStrings(this.strings.environ, list, text),
      clock_time_get: (id, precision, out) => {
        const now = id === 0 ? BigInt(Date.now()) * 1000000n : process.hrtime.bigint();
        this.view.setBigUint64(out, now, true);
        return 0;
      },
      proc_exit: (code) => {
        throw new Exit(code);
      },
      fd_prestat_get: (fd, out) => {
        if (fd !== folder) return badFile;
        this.view.setUint32(out, 0, true);
        this.view.setUint32(out + 4, 1, true);
        return 0;
      },
      fd_prestat_dir_name: (fd, at) => {
        this.bytes(at, 1)[0] = "/".charCodeAt(0);
        return 0;
      },
      fd_fdstat_get: (fd, out) => {
        this.bytes(out, 24).fill(0);
        this.view.setUint8(out, fd === folder ? typeDirectory : typeFile);
        this.view.setBigUint64(out + 8, rights, true);
        this.view.setBigUint64(out + 16, rights, true);
        return 0;
      },
      path_open: (fd, flags, at, length, create, base, inheriting, fdFlags, out) => {
        const name = Buffer.from(this.bytes(at, length)).toString();
        try {
          const file = openSync(path.join("/", name), "r");
          files.set(file + 100, { file, at: 0 });
          this.view.setUint32(out, file + 100, true);
          return 0;
        } catch {
          return noEntry;
        }
      },
      fd_read: (fd, list, n, out) => {
        const from = files.get(fd);
        if (from === undefined) return badFile;
        const sum = this.forEachPart(list, n, (part) => {
          const read = readSync(from.file, part, 0, part.length, from.at);
          from.at += read;
          return read;
        });
        this.view.setUint32(out, sum, true);
        return 0;
      },
      fd_seek: (fd, offset, whence, out) => {
        const file = files.get(fd);
        if (file === undefined || whence > 1) return notSupported;
        file.at = Number(offset) + (whence === 0 ? 0 : file.at);
        this.view.setBigUint64(out, BigInt(file.at), true);
        return 0;
      },
      fd_write: (fd, list, n, out) => {
        if (fd !== 1 && fd !== 2) return badFile;
        const sum = this.forEachPart(list, n, (part) => {
          this.write(Buffer.from(part));
          return part.length;
        });
        this.view.setUint32(out, sum, true);
        return 0;
      },
      fd_close: (fd) => {
        if (files.has(fd)) closeSync(files.get(fd).file);
        files.delete(fd);
        return 0;
      },
    };
    const other = { get: (target, name) => target[name] ?? (() => notSupported) };
    return { wasi_snapshot_preview1: new Proxy(known, other) };
  }

  // Returns the exit code; a trap is 1, and its reason is printed.
  async start(module) {
    const instance = await WebAssembly.instantiate(module, this.imports());
    this.memory = instance.exports.memory;
    try {
      instance.exports._start();
      return 0;
    } catch (error) {
      if (error instanceof Exit) return error.code;
      this.write(Buffer.from(`${error.stack}\n`));
      return 1;
    } finally {
      for (const { file } of this.files.values()) closeSync(file);
    }
  }
}

async function runCases(module, program, expectedFile, longFile) {
  // What a run prints, and its exit code.
  const capture = async (...args) => {
    const parts = [];
    const code = await new Wasi([program, ...args], (part) => parts.push(part)).start(module);
    return [code, Buffer.concat(parts).toString()];
  };
  const [listed, names] = await capture("--list");
  if (listed !== 0) throw new Error(`${program} --list: exit code ${listed}: ${names}`);
  const reasons = new Map();
  for (const line of readFileSync(expectedFile, "utf8").split("\n")) {
    const match = /^(\S+): (.+)$/.exec(line);
    if (match) reasons.set(match[1], match[2]);
  }
  const long = new Set(process.env.KVEVICT_TEST_LONG
    ? [] : readFileSync(longFile, "utf8").trim().split("\n"));
  let [passed, failed, skipped, expected, leftOut] = [0, 0, 0, 0, 0];
  for (const name of names.trim().split("\n")) {
    if (long.has(name)) {
      leftOut += 1;
      continue;
    }
    const begin = Date.now();
    const [code, text] = await capture("--filter", name);
    const seconds = (Date.now() - begin) / 1000;
    const reason = reasons.get(name);
    if (seconds > 2) console.log(`${name}: ${seconds.toFixed(0)} s`);
    if (reason !== undefined && code !== 0 && code !== skippedCode) {
      expected += 1;
      console.log(`${name}: fails as expected: ${reason}`);
    } else if (reason !== undefined) {
      failed += 1;
      console.log(`${name}: expected to fail, and did not: ${reason}`);
    } else if (code === 0) {
      passed += 1;
    } else {
      if (code === skippedCode) skipped += 1;
      else failed += 1;
      console.log(text.replace(/^\d+ passed.*\n/m, "").trim());
    }
  }
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped, ` +
              `${expected} failed as expected, ${leftOut} left out`);
  if (failed > 0) return 1;
  return passed + expected === 0 ? skippedCode : 0;
}

const [file, ...given] = process.argv.slice(2);
const module = await WebAssembly.compile(readFileSync(file));
const program = path.basename(file);
process.exitCode = given[0] === "--cases"
  ? await runCases(module, program, given[1], given[2])
  : await new Wasi([program, ...given], (part) => writeSync(1, part)).start(module);
