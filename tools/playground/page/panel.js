// A panel: the choice of a schedule, its figures and its timeline.
"use strict";

const SHOWN_PATH = 12;
const SHOW_BUSY_AFTER = 300;  // milliseconds

class Panel {
  constructor(name, engines, schedules, onChange) {
    this.name = name;
    this.engines = engines;
    this.schedules = schedules;
    this.onChange = onChange;
    this.result = null;
    const root = byId("panel-template").content.cloneNode(true).firstElementChild;
    root.id = "panel-" + name;
    root.setAttribute("aria-label", "timeline " + name.toUpperCase());
    this.root = root;
    this.find("badge").textContent = name.toUpperCase();
    byId("panels").append(root);
    this.timeline = new Timeline(this.find("canvas"), name);
    this.fillSchedules();
    this.listen();
  }

  find(part) { return this.root.querySelector(`[data-part="${part}"]`); }

  fillSchedules() {
    const select = this.find("schedule");
    if (this.name === "b") select.append(new Option("no comparison", ""));
    for (const { name, summary } of this.schedules) {
      const option = new Option(name, name);
      option.title = summary;
      select.append(option);
    }
    select.append(new Option("Auto (search)", "Auto"), new Option("schedule file", FILE));
  }

  listen() {
    this.find("schedule").addEventListener("change", (event) => this.choose(event.target.value));
    this.find("stages").addEventListener("input", (event) => this.set("v", event.target.value));
    this.find("recompute").addEventListener("change", (event) => this.set("r", event.target.checked ? "1" : ""));
    this.find("partition").addEventListener("click", () => this.set("p", ""));
    this.find("stop").addEventListener("click", () => this.engines.search.stop());
    this.find("details").addEventListener("toggle", () => this.fillDetails());
    this.find("export").addEventListener("change", (event) => {
      this.export(event.target.value);
      event.target.value = "";
    });
  }

  set(suffix, value) {
    state[this.name + suffix] = value;
    if (suffix === "v") state[this.name + "p"] = "";
    this.sync();
    this.onChange();
  }

  choose(schedule, stages = "", recompute = "", partition = "") {
    Object.assign(state, { [this.name]: schedule, [this.name + "v"]: stages, [this.name + "r"]: recompute, [this.name + "p"]: partition });
    this.sync();
    this.onChange();
  }

  get schedule() { return state[this.name]; }
  get info() {
    return this.schedules.find((info) => info.name === this.schedule) ??
      { name: this.schedule, summary: this.schedule === "Auto" ? "generated for the costs and the memory cap" : "", default_stages_per_rank: 1, only_stages_per_rank: null };
  }

  // Shows the state in the controls.
  sync() {
    const stages = this.find("stages"), info = this.info, file = this.schedule === FILE;
    this.find("schedule").value = this.schedule;
    const value = file ? "" : state[this.name + "v"] || String(info.default_stages_per_rank);
    if (stages.value !== value && document.activeElement !== stages) stages.value = value;
    stages.disabled = file || info.only_stages_per_rank !== null;
    this.find("stages-label").hidden = file;
    this.find("recompute").checked = state[this.name + "r"] === "1";
    this.find("summary").textContent = info.summary;
    this.find("partition").hidden = !state[this.name + "p"];
    this.root.classList.toggle("empty", this.schedule === "");
  }

  request(more) {
    const request = { ...commonRequest(), source: sourceRequest(this.name, this.info), ...more };
    // The schedule that was found is not searched for again.
    if (more.operation === "export" && this.result?.auto) request.source = { ...request.source, csv: this.result.auto.csv };
    return request;
  }

  // Says what is under way; for a computation, only if it takes long enough to read it.
  setBusy(activity) {
    this.setIdle();
    const show = () => {
      this.find("activity").textContent = activity;
      this.find("stop").hidden = activity !== "searching";
      this.find("busy").hidden = false;
    };
    if (activity === "searching") show(); else this.showLater = setTimeout(show, SHOW_BUSY_AFTER);
    return this.turn;
  }

  // Ends the current request of this panel: its answer is of no use.
  setIdle() {
    this.turn = (this.turn ?? 0) + 1;
    clearTimeout(this.showLater);
    this.find("busy").hidden = true;
  }

  async refresh() {
    this.setIdle();
    this.sync();
    if (this.schedule === "") { this.clear(); return; }
    if (this.schedule === FILE && state.csv.trim() === "") { this.fail({ message: "There is no schedule file yet.", hint: "Open or paste one below." }); return; }
    let request;
    try {
      request = this.request({ operation: "simulate" });
    } catch (error) {
      this.fail({ message: error.message, hint: "" });
      return;
    }
    const searching = this.schedule === "Auto";
    // A search for old settings is of no use.
    if (searching && this.searching && this.engines.search.busy) this.engines.search.stop();
    this.searching = searching;
    const turn = this.setBusy(searching ? "searching" : "computing");
    const answered = await (searching ? this.engines.search : this.engines.live).ask(this.name, request);
    if (turn !== this.turn) return;  // a newer request of this panel is under way
    this.setIdle();
    if (!answered) { this.fail({ message: "The search was stopped.", hint: "Change a setting to search again." }); return; }
    if (answered.answer.error) this.fail(answered.answer.error); else this.show(answered);
  }

  show({ answer, boxes, milliseconds }) {
    this.result = answer;
    this.milliseconds = milliseconds;
    this.find("error").hidden = true;
    this.root.classList.remove("failed");
    this.timeline.show(answer.simulation, answer.layout, boxes);
    this.showFigures(answer);
    this.fillDetails();
    this.onResult();
  }

  fail({ message, hint }) {
    this.result = null;
    this.timeline.show(null);
    this.root.classList.add("failed");
    const box = this.find("error");
    box.hidden = false;
    box.textContent = hint ? `${message}\n${hint}` : message;
    this.find("figures").textContent = "";
    this.onResult();
  }

  clear() {
    this.result = null;
    this.timeline.show(null);
    this.find("error").hidden = true;
    this.find("figures").textContent = "";
    this.onResult();
  }

  showFigures({ simulation: s, auto }) {
    const cap = memoryCapOrNull(), over = cap !== null && s.peak_memory > cap;
    const figures = [
      ["step time", timeText(s.step_time), `lower bound ${timeText(s.lower_bound)}`],
      ["bubble", shareText(s.bubble), "mean idle fraction of the step"],
      ["own bubble", shareText(s.own_bubble), "between the first and the last computation of each rank"],
      ["peak memory", bytesText(s.peak_memory), over ? "above the cap" : "fullest rank"],
      ["critical path", `${s.critical_path.length} actions`, pathText(s.critical_path, 6)],
    ];
    if (auto) figures.push(["best named", auto.best_named || "none fits", auto.best_named ? timeText(auto.best_named_time) : ""]);
    this.find("figures").replaceChildren(...figures.map(([name, value, note]) =>
      element("div", { className: over && name === "peak memory" ? "figure over" : "figure" },
        element("dt", {}, name), element("dd", {}, value), element("dd", { className: "note", title: note }, note))));
  }

  // The tables are created only while they are visible.
  fillDetails() {
    if (!this.find("details").open || !this.result) return;
    const s = this.result.simulation, cap = memoryCapOrNull();
    const rows = s.per_rank.map((rank, i) => element("tr", { className: cap && rank.peak_memory > cap ? "over" : "" },
      ...[i, timeText(rank.busy), shareText(rank.bubble), shareText(rank.own_bubble), bytesText(rank.peak_memory), timeText(rank.peak_at)]
        .map((text) => element("td", {}, String(text)))));
    this.find("ranks").replaceChildren(...rows);
    this.find("path").textContent = pathText(s.critical_path, 200);
  }

  async export(format) {
    if (!format || !this.result) return null;
    const answered = await this.engines.live.ask(this.name + " export", this.request({ operation: "export", format: format === "edit" ? "csv" : format === "edit lowered" ? "lowered" : format }));
    if (!answered || answered.answer.error) return null;
    if (format.startsWith("edit")) this.onEdit(answered.answer); else saveFile(answered.answer);
    return answered.answer;
  }
}

function pathText(path, most = SHOWN_PATH) {
  const texts = path.map((step) => step.action);
  if (texts.length <= most) return texts.join(" ");
  const half = Math.floor(most / 2);
  return `${texts.slice(0, half).join(" ")} … ${texts.slice(-half).join(" ")}`;
}

// One sentence that compares two panels.
function comparisonText(a, b) {
  if (!a.result || !b.result) return "";
  const s = a.result.simulation, t = b.result.simulation;
  const change = t.step_time / s.step_time - 1, memory = t.peak_memory / s.peak_memory;
  const time = Math.abs(change) < 5e-4 ? "takes the same time as A" : `takes ${shareText(Math.abs(change))} ${change < 0 ? "less" : "more"} time than A`;
  const room = !Number.isFinite(memory) ? "" : Math.abs(memory - 1) < 5e-3 ? ", with the same peak memory" : `, with ${rounded(memory, 3)} times its peak memory`;
  return `B (${t.name}) ${time} (${s.name})${room}.`;
}
