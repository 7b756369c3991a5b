// The fields of the form: a text for exact values, and a slider.
"use strict";

const FIELD_GROUPS = {
  pipeline: [
    { key: "ranks", label: "Ranks", least: 1, most: 64, step: 1 },
    { key: "microbatches", label: "Microbatches", least: 1, most: 512, step: 1 },
  ],
  times: [
    { key: "forward", label: "Forward (F)", unit: "ms", most: 40, step: 0.5 },
    { key: "input", label: "Input backward (I)", unit: "ms", most: 40, step: 0.5 },
    { key: "weight", label: "Weight backward (W)", unit: "ms", most: 40, step: 0.5 },
    { key: "overlap", label: "Overlap of F and B", most: 1, step: 0.05, title: "The fraction of the shorter part that an overlapped pair hides (DualPipeV)" },
  ],
  memory: [
    { key: "activation", label: "Activations until I", title: "In use from F until the end of I or B", unit: "MiB", most: 2048, step: 16 },
    { key: "stash", label: "Activations until W", title: "In use from F until the end of W or B", unit: "MiB", most: 2048, step: 16 },
    { key: "parameters", label: "Parameters", title: "Parameters, gradients and optimizer state: in use during the entire step", unit: "MiB", most: 16384, step: 128 },
    { key: "cap", label: "Memory cap", unit: "GiB", most: 32, step: 0.25, none: "none" },
  ],
  links: [
    { key: "latency", label: "Latency", unit: "µs", most: 10000, step: 100 },
    { key: "message", label: "Message", unit: "MiB", most: 256, step: 1 },
    { key: "bandwidth", label: "Bandwidth", unit: "GB/s", most: 100, step: 0.5, none: "unlimited" },
  ],
};

const fieldInputs = new Map();  // key -> { text, slider }

function buildFields(onChange) {
  for (const [group, fields] of Object.entries(FIELD_GROUPS)) {
    for (const field of fields) byId("group-" + group).append(buildField(field, onChange));
  }
}

function buildField({ key, label, unit = "", least = 0, most, step, none = "", title = "" }, onChange) {
  const id = "field-" + key;
  const text = element("input", { id, inputMode: "decimal", autocomplete: "off", spellcheck: false, placeholder: none });
  const slider = element("input", { type: "range", min: least, max: most, step, title });
  slider.setAttribute("aria-label", label);
  const changed = (value) => {
    state[key] = value;
    syncField(key);
    onChange(key);
  };
  text.addEventListener("input", () => changed(text.value));
  slider.addEventListener("input", () => changed(none && Number(slider.value) === 0 ? "" : slider.value));
  fieldInputs.set(key, { text, slider });
  const caption = element("label", { htmlFor: id, title }, label);
  return element("div", { className: "field" }, caption, element("span", { className: "value" }, text, element("span", { className: "unit" }, unit)), slider);
}

// Shows the state in the inputs. A list of values has no slider.
function syncField(key) {
  const { text, slider } = fieldInputs.get(key);
  if (text.value !== state[key]) text.value = state[key];
  const number = Number(state[key]);
  slider.disabled = Number.isNaN(number);
  if (!slider.disabled && document.activeElement !== slider) slider.value = number;
}

function syncFields() {
  for (const key of fieldInputs.keys()) syncField(key);
  byId("send").value = state.send;
  for (const key of ["critical", "communication", "memory"]) byId("show-" + key).checked = state[key] === "1";
}
