// The worker that runs the WebAssembly module. The first message has the compiled module, each further one a request.
"use strict";

let library = null;

// The module is built without a file system and without an environment; it imports only these functions.
const imports = {
  env: { emscripten_notify_memory_growth() {} },
  wasi_snapshot_preview1: {
    proc_exit(code) { throw new Error("the module exited with code " + code); },
    environ_sizes_get(count, size) {
      const memory = new DataView(library.memory.buffer);
      memory.setUint32(count, 0, true);
      memory.setUint32(size, 0, true);
      return 0;
    },
    environ_get() { return 0; },
  },
};

function answer(request) {
  const bytes = new TextEncoder().encode(request);
  const at = library.malloc(bytes.length);
  new Uint8Array(library.memory.buffer, at, bytes.length).set(bytes);
  library.penstock_answer(at, bytes.length);
  library.free(at);
  const memory = library.memory.buffer;
  const text = new TextDecoder().decode(new Uint8Array(memory, library.penstock_text(), library.penstock_text_size()));
  const boxes = new Float64Array(memory, library.penstock_boxes(), library.penstock_boxes_size()).slice();
  return { text, boxes };
}

onmessage = ({ data }) => {
  if (data.module) {
    library = new WebAssembly.Instance(data.module, imports).exports;
    library._initialize();
    return;
  }
  const began = performance.now();
  try {
    const { text, boxes } = answer(data.request);
    postMessage({ id: data.id, text, boxes, milliseconds: performance.now() - began }, [boxes.buffer]);
  } catch (error) {
    const message = "the computation failed: " + error.message;
    postMessage({ id: data.id, failed: true, text: JSON.stringify({ error: { message, hint: "" } }), milliseconds: 0 });
  }
};
