// The schedule file: editor, findings of the validator, and the cycle of a deadlock.
"use strict";

const SHOWN_FINDINGS = 50, SHOWN_ROWS = 32, SHOWN_COLUMNS = 120;

class ScheduleFile {
  constructor(engine, onChange) {
    this.engine = engine;
    this.onChange = onChange;
    this.verdict = null;
    const text = byId("csv");
    text.addEventListener("input", () => this.set(text.value));
    byId("csv-open").addEventListener("change", (event) => this.open(event.target.files[0]));
    byId("csv-clear").addEventListener("click", () => this.set(""));
    const card = byId("file-card");
    card.addEventListener("dragover", (event) => event.preventDefault());
    card.addEventListener("drop", (event) => {
      event.preventDefault();
      this.open(event.dataTransfer.files[0]);
    });
  }

  async open(file) {
    if (file) this.set(await file.text(), file.name);
  }

  set(text, name = state.file) {
    state.csv = text;
    state.file = name;
    this.sync();
    this.onChange();
  }

  sync() {
    if (byId("csv").value !== state.csv) byId("csv").value = state.csv;
    byId("csv-name").textContent = state.csv ? state.file : "";
  }

  async refresh() {
    this.sync();
    if (state.csv.trim() === "") {
      this.verdict = null;
      byId("verdict").replaceChildren();
      return;
    }
    const answered = await this.engine.ask("validate", { operation: "validate", send_mode: state.send, source: { csv: state.csv } });
    if (!answered) return;
    this.verdict = answered.answer;
    byId("verdict").replaceChildren(...this.describe(answered.answer));
  }

  describe(verdict) {
    if (verdict.error) return [element("p", { className: "error" }, verdict.error.message)];
    const modes = verdict.modes ?? {};
    const counts = `${verdict.form === "lowered" ? "lowered" : "compute only"}, ${verdict.ranks} ranks, ${verdict.stages} stages, ${verdict.microbatches} microbatches`;
    const status = verdict.valid ? `Valid with ${state.send} sends: ${counts}.` : `Not valid with ${state.send} sends: ${counts}.`;
    const parts = [element("p", { className: verdict.valid ? "fine" : "error" }, status)];
    if (verdict.diagnostics.length) parts.push(findings("In every send mode", verdict.diagnostics));
    for (const [mode, { safe, diagnostics }] of Object.entries(modes)) {
      if (!safe && diagnostics.length) parts.push(findings(`With ${mode} sends`, diagnostics));
    }
    const safe = Object.keys(modes).filter((mode) => modes[mode].safe);
    if (safe.length) parts.push(element("p", { className: "soft" }, `Safe with ${safe.join(", ")} sends.`));
    parts.push(preview(markedCells(verdict)));
    return parts;
  }
}

// The rows and columns that a text names, counted from 1.
function cellsIn(text) {
  return [...text.matchAll(/row (\d+), column (\d+)/g)].map((match) => [Number(match[1]), Number(match[2])]);
}

function markedCells(verdict) {
  const marked = new Map();
  const current = verdict.modes?.[state.send]?.diagnostics ?? [];
  for (const { where, message } of [...verdict.diagnostics, ...current]) {
    for (const [row, column] of cellsIn(where + " " + message)) marked.set(row + ":" + column, message);
  }
  return marked;
}

function findings(title, diagnostics) {
  const list = element("ul", { className: "findings" });
  for (const { severity, where, message } of diagnostics.slice(0, SHOWN_FINDINGS)) {
    const place = element("button", { type: "button", className: "place" }, where || "file");
    place.addEventListener("click", () => selectCell(...(cellsIn(where)[0] ?? [1, 1])));
    const cycle = cycleOf(message);
    list.append(element("li", { className: severity }, place, " ", cycle ? cycle.what : message, ...(cycle ? [cycleList(cycle.steps)] : [])));
  }
  if (diagnostics.length > SHOWN_FINDINGS) list.append(element("li", {}, `… and ${diagnostics.length - SHOWN_FINDINGS} more`));
  return element("section", {}, element("h3", {}, title), list);
}

// The steps of a cycle: `row 1, column 4, 0SEND_F1 (waits for row 2, column 5, 1RECV_F1) -> … -> row 1, …`.
function cycleOf(message) {
  const parts = message.split(" -> ");
  if (parts.length < 3) return null;
  const begin = parts[0].search(/row \d+, column \d+, /);
  if (begin < 0) return null;
  const steps = [parts[0].slice(begin), ...parts.slice(1, -1)];
  return { what: parts[0].slice(0, begin).replace(/[:,\s]+$/, ""), steps };
}

function cycleList(steps) {
  const list = element("ol", { className: "cycle" });
  for (const step of steps) {
    const [, where, action, wait] = step.match(/^(row \d+, column \d+), (\S+?)(?: \((.*)\))?$/) ?? [null, "", step, ""];
    const button = element("button", { type: "button", className: "place" }, where);
    button.addEventListener("click", () => selectCell(...(cellsIn(where)[0] ?? [1, 1])));
    list.append(element("li", {}, button, " ", element("code", {}, action), wait ? " " + wait : ""));
  }
  list.append(element("li", { className: "again" }, "back to the first"));
  return list;
}

function selectCell(row, column) {
  const lines = state.csv.split("\n"), text = byId("csv");
  let at = lines.slice(0, row - 1).reduce((sum, line) => sum + line.length + 1, 0);
  const fields = (lines[row - 1] ?? "").split(",");
  at += fields.slice(0, column - 1).reduce((sum, field) => sum + field.length + 1, 0);
  text.focus();
  text.setSelectionRange(at, at + (fields[column - 1] ?? "").trim().length);
}

// The table with the marked fields, as far as it fits.
function preview(marked) {
  const table = element("table", { className: "preview" });
  state.csv.split("\n").slice(0, SHOWN_ROWS).forEach((line, r) => {
    if (line.trim() === "") return;
    const row = element("tr", {}, element("th", {}, String(r)));
    line.trim().split(",").slice(0, SHOWN_COLUMNS).forEach((field, c) => {
      const problem = marked.get(`${r + 1}:${c + 1}`);
      row.append(element("td", problem ? { className: "marked", title: problem } : {}, field.trim()));
    });
    table.append(row);
  });
  return element("div", { className: "scroll", tabIndex: 0, ariaLabel: "schedule file as a table" }, table);
}
