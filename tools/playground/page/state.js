// The state of the page, and the fragment of its address that stores it. Only values that differ from the defaults are
// stored.
"use strict";

// Times in ms, sizes in MiB, the memory cap in GiB, latency in µs, bandwidth in GB/s: as entered, so they are strings.
const DEFAULTS = {
  ranks: "4", microbatches: "16", send: "buffered",
  forward: "10", input: "10", weight: "10", overlap: "0",
  activation: "256", stash: "0", parameters: "0", cap: "",
  latency: "0", message: "0", bandwidth: "",
  a: "1F1B", av: "", ar: "", ap: "",
  b: "ZB1P", bv: "", br: "", bp: "",
  critical: "", communication: "1", memory: "1",
  csv: "", file: "schedule.csv",
};
const FILE = "file";  // the value of `a` or `b` that stands for the schedule file
const LONGEST_CSV = 24000;  // characters of a compressed file in a link

const state = { ...DEFAULTS };

async function through(stream, bytes) {
  const response = new Response(new Blob([bytes]).stream().pipeThrough(stream));
  return new Uint8Array(await response.arrayBuffer());
}

async function packText(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  const binary = Array.from(bytes, (b) => String.fromCharCode(b)).join("");
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

async function unpackText(packed) {
  const binary = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
}

// Returns the fragment, and whether the schedule file was too long for it.
async function stateToFragment() {
  const fields = new URLSearchParams();
  let tooLong = false;
  for (const [key, usual] of Object.entries(DEFAULTS)) {
    if (state[key] === usual) continue;
    if (key !== "csv") { fields.set(key, state[key]); continue; }
    const packed = await packText(state.csv);
    if (packed.length > LONGEST_CSV) tooLong = true; else fields.set("csv", packed);
  }
  return { fragment: fields.toString(), tooLong };
}

async function stateFromFragment(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const read = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS)) if (fields.has(key)) read[key] = fields.get(key);
  if (fields.has("csv")) read.csv = await unpackText(fields.get("csv")).catch(() => "");
  Object.assign(state, read);
}

// A number, or a list of numbers separated by commas or spaces, times `factor`. An empty text is null.
function quantity(key, factor) {
  const text = state[key].trim();
  if (text === "") return null;
  const numbers = text.split(/[\s,;]+/).filter((part) => part !== "").map((part) => Number(part) * factor);
  if (numbers.some((x) => !Number.isFinite(x) || x < 0)) throw new Error(`“${text}” is not a number of 0 or more (${key})`);
  return numbers.length === 1 ? numbers[0] : numbers;
}

const MIB = 1024 * 1024;

function costsRequest() {
  return {
    forward: quantity("forward", 1e-3), input: quantity("input", 1e-3), weight: quantity("weight", 1e-3),
    activation_bytes: quantity("activation", MIB), weight_bytes: quantity("stash", MIB),
    parameter_bytes: quantity("parameters", MIB), output_bytes: quantity("message", MIB),
    latency: quantity("latency", 1e-6), bandwidth: quantity("bandwidth", 1e9) || null, overlap: quantity("overlap", 1),
  };
}

function memoryCap() {
  return quantity("cap", 1024 * MIB) || null;
}

function commonRequest() {
  return {
    ranks: Number(state.ranks), microbatches: Number(state.microbatches), send_mode: state.send,
    memory_cap: memoryCap(), costs: costsRequest(),
  };
}

// The source of panel `a` or `b`.
function sourceRequest(panel, info) {
  if (state[panel] === FILE) return { schedule: state.file, csv: state.csv, recompute: state[panel + "r"] === "1" };
  const partition = state[panel + "p"];
  return {
    schedule: state[panel], stages_per_rank: Number(state[panel + "v"] || info.default_stages_per_rank),
    recompute: state[panel + "r"] === "1",
    first_layer: partition ? partition.split(".").map(Number) : [],
  };
}
