// Engines: workers that run the WebAssembly module. One answers while the user types, another one searches.
"use strict";

async function compileModule() {
  if (!globalThis.WebAssembly) throw new Error("this browser has no WebAssembly");
  if (!globalThis.DecompressionStream) throw new Error("this browser has no DecompressionStream");
  try {
    const binary = atob(byId("module").textContent.trim());
    const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await WebAssembly.compile(await new Response(stream).arrayBuffer());
  } catch (error) {
    throw new Error(`the file is incomplete or damaged, or the browser forbids WebAssembly (${error.message})`);
  }
}

class Engine {
  constructor(module) {
    this.module = module;
    this.running = null;
    this.waiting = new Map();  // key -> the newest request; a newer one replaces it
    this.nextId = 0;
    this.start();
  }

  start() {
    const source = new Blob([byId("worker").textContent], { type: "text/javascript" });
    this.address = URL.createObjectURL(source);
    this.worker = new Worker(this.address);
    this.worker.onmessage = ({ data }) => this.finish(data);
    this.worker.onerror = (event) => {
      event.preventDefault();  // the answer reports it
      this.fail(event.message || "the worker cannot start");
    };
    this.worker.postMessage({ module: this.module });
  }

  // Answers with { answer, boxes, milliseconds }, or null if a newer request with the same key replaced this one or
  // the engine was stopped.
  ask(key, request) {
    return new Promise((resolve) => {
      this.waiting.get(key)?.resolve(null);
      this.waiting.delete(key);
      this.waiting.set(key, { request: JSON.stringify(request), resolve });
      this.next();
    });
  }

  next() {
    if (this.running || this.waiting.size === 0) return;
    const [key, job] = this.waiting.entries().next().value;
    this.waiting.delete(key);
    this.running = { ...job, id: ++this.nextId };
    this.worker.postMessage({ id: this.running.id, request: job.request });
  }

  finish({ id, text, boxes, milliseconds, failed }) {
    if (!this.running || this.running.id !== id) return;
    const { resolve } = this.running;
    this.running = null;
    if (failed) this.restart();  // a module that trapped cannot continue
    resolve({ answer: JSON.parse(text), boxes, milliseconds });
    this.next();
  }

  fail(message) {
    this.finish({ id: this.running?.id, text: JSON.stringify({ error: { message, hint: "" } }), milliseconds: 0, failed: true });
  }

  restart() {
    this.worker.terminate();
    URL.revokeObjectURL(this.address);
    this.start();
  }

  // Drops all requests. The only way to interrupt a computation is to end its worker.
  stop() {
    for (const { resolve } of this.waiting.values()) resolve(null);
    this.waiting.clear();
    if (!this.running) return;
    const { resolve } = this.running;
    this.running = null;
    this.restart();
    resolve(null);
  }

  get busy() { return this.running !== null; }
}
