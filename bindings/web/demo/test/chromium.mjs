// Headless Chromium by its DevTools protocol, over a pipe: no package is needed.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const flags = ["--headless=new", "--no-sandbox", "--no-first-run", "--disable-extensions",
               "--hide-scrollbars", "--remote-debugging-pipe"];
export const softwareGpu = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
                            "--enable-features=Vulkan"];

export class Chromium {
  #process;
  #profile = mkdtempSync(join(tmpdir(), "kvevict-demo-"));
  #waiting = new Map();
  #lastId = 0;
  #listeners = new Map(); // by session
  #ended;

  constructor(program, more) {
    this.#process = spawn(program, [...flags, ...more, `--user-data-dir=${this.#profile}`,
                                    "about:blank"],
                          { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.#ended = new Promise((resolve) => this.#process.on("exit", (code) => {
      for (const { reject } of this.#waiting.values()) {
        reject(new Error(`the browser ended with ${code}`));
      }
      resolve();
    }));
    let text = "";
    this.#process.stdio[4].setEncoding("utf8").on("data", (part) => {
      const messages = (text + part).split("\0");
      text = messages.pop();
      for (const message of messages) this.#receive(JSON.parse(message));
    });
    this.#process.stdio[3].on("error", () => {}); // the exit tells
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  #receive({ id, result, error, method, params, sessionId }) {
    if (id === undefined) {
      this.#listeners.get(sessionId)?.(method, params);
      return;
    }
    const { resolve, reject } = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) resolve(result);
    else reject(new Error(error.message));
  }

  // A page whose console, and that of its workers, is heard from the start.
  async page() {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page((method, params) => this.send(method, params, sessionId));
    const listen = async (session) => {
      const send = (method, params) => this.send(method, params, session);
      this.#listeners.set(session, (method, params) => {
        if (method === "Target.attachedToTarget") {
          page.worker = (...call) => this.send(...call, params.sessionId);
          listen(params.sessionId)
            .then(() => this.send("Runtime.runIfWaitingForDebugger", {}, params.sessionId))
            .catch((failure) => page.messages.push(String(failure)));
        }
        page.hear(method, params);
      });
      await send("Runtime.enable");
      await send("Log.enable").catch(() => {}); // workers have none
      await send("Target.setAutoAttach",
                 { autoAttach: true, waitForDebuggerOnStart: true, flatten: true });
    };
    await listen(sessionId);
    await page.send("Page.enable");
    return page;
  }

  async close() {
    // Asked to, it ends its other processes, which write to the profile.
    const kill = setTimeout(() => this.#process.kill("SIGKILL"), 10000);
    this.send("Browser.close").catch(() => {});
    await this.#ended;
    clearTimeout(kill);
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

class Page {
  messages = []; // errors and warnings
  worker; // sends to the last worker

  constructor(send) {
    this.send = send;
  }

  hear(method, params) {
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) {
      this.messages.push(params.args.map((value) => value.value ?? value.description).join(" "));
    } else if (method === "Runtime.exceptionThrown") {
      const { text, exception } = params.exceptionDetails;
      this.messages.push(exception?.description ?? text);
    } else if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level)) {
      this.messages.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    }
  }

  resize(width, height) {
    return this.send("Emulation.setDeviceMetricsOverride",
                     { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  }

  prefer(scheme) {
    return this.send("Emulation.setEmulatedMedia",
                     { features: [{ name: "prefers-color-scheme", value: scheme }] });
  }

  open(url) {
    return this.send("Page.navigate", { url });
  }

  async evaluate(expression, send = this.send) {
    const { result, exceptionDetails } = await send("Runtime.evaluate", {
      expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails !== undefined) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return result.value;
  }

  // Waits until an expression is true; the test's own time limit ends it otherwise.
  async until(expression) {
    while (!(await this.evaluate(expression))) {
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  // The whole page as a PNG.
  async screenshot() {
    const { cssContentSize } = await this.send("Page.getLayoutMetrics");
    const { data } = await this.send("Page.captureScreenshot", {
      captureBeyondViewport: true,
      clip: { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 } });
    return Buffer.from(data, "base64");
  }
}
