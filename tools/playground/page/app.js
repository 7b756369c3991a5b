// Starts the page and connects its parts.
"use strict";

class App {
  constructor(module, { schedules, version }) {
    this.engines = { live: this.live, search: new Engine(module) };
    byId("version").textContent = version;
    const changed = () => this.changed();
    buildFields((key) => this.fieldChanged(key));
    this.file = new ScheduleFile(this.engines.live, () => this.fileChanged());
    this.panels = ["a", "b"].map((name) => new Panel(name, this.engines, schedules, changed));
    for (const panel of this.panels) {
      panel.onResult = () => this.resultChanged();
      panel.onEdit = ({ name, text }) => this.edit(name, text);
    }
    this.planner = new Planner(this.engines.search, this.panels);
    this.listen();
    // On a phone, the timelines are more important than the less common settings.
    if (innerWidth < 860) for (const group of document.querySelectorAll(".controls details")) group.open = false;
  }

  static async start() {
    readTheme();
    const module = await compileModule();
    App.prototype.live = new Engine(module);
    const { answer } = await App.prototype.live.ask("schedules", { operation: "schedules" });
    if (answer.error) throw new Error(answer.error.message);
    kinds = answer.kinds;
    const app = new App(module, answer);
    await app.load();
    drawLegend();
    byId("loading").hidden = true;
    document.body.className = "ready";
    Object.assign(page, { app, state, view, timelines, drawNow, zoomView, moveView });
  }

  listen() {
    byId("send").addEventListener("change", (event) => this.set("send", event.target.value));
    for (const key of ["critical", "communication", "memory"]) {
      byId("show-" + key).addEventListener("change", (event) => {
        state[key] = event.target.checked ? "1" : "";
        resetColors();
        redraw();
        this.save();
      });
    }
    byId("zoom-in").addEventListener("click", () => zoomView(0.6));
    byId("zoom-out").addEventListener("click", () => zoomView(1 / 0.6));
    byId("fit").addEventListener("click", () => moveView(0, view.end));
    byId("share").addEventListener("click", () => this.share());
    byId("reset").addEventListener("click", () => { location.hash = ""; });
    byId("theme").addEventListener("click", () => {
      document.documentElement.dataset.theme = theme.dark ? "light" : "dark";
      this.restyle();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    new ResizeObserver(redraw).observe(byId("panels"));
    addEventListener("scroll", redraw, { passive: true });
    addEventListener("hashchange", () => { if (location.hash.slice(1) !== this.saved) this.load(); });
  }

  restyle() {
    readTheme();
    drawLegend();
    redraw();
  }

  set(key, value) {
    state[key] = value;
    this.changed();
  }

  fieldChanged(key) {
    // A partition belongs to the layers for which it was found.
    if (key === "ranks") for (const panel of this.panels) state[panel.name + "p"] = "";
    this.changed();
  }

  fileChanged() {
    if (state.csv && state.a !== FILE && state.b !== FILE) state.a = FILE;
    this.changed();
  }

  edit(name, text) {
    byId("file-card").open = true;
    this.file.set(text, name);
    byId("csv").scrollIntoView({ block: "center" });
  }

  changed() {
    this.refresh();
    this.save();
  }

  refresh() {
    return Promise.all([...this.panels.map((panel) => panel.refresh()), this.file.refresh()]);
  }

  async load() {
    await stateFromFragment(location.hash);
    this.saved = location.hash.slice(1);
    syncFields();
    if (state.csv) byId("file-card").open = true;
    await this.refresh();
  }

  // Stores the state in the address, at most a few times per second.
  save() {
    clearTimeout(this.saving);
    this.saving = setTimeout(async () => {
      const { fragment } = await stateToFragment();
      this.saved = fragment;
      history.replaceState(null, "", "#" + fragment);
    }, 250);
  }

  async share() {
    const { fragment, tooLong } = await stateToFragment();
    const link = location.href.split("#")[0] + "#" + fragment, box = byId("link");
    box.hidden = false;
    box.value = link;
    box.select();
    const copied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
    byId("share-status").textContent = (copied ? "Link copied." : "Copy the link.") + (tooLong ? " The schedule file is too long for a link." : "");
  }

  // The colors of memory levels depend on the largest peak of both panels.
  checkMemoryScale() {
    if (this.memoryScale !== memoryScale()) resetColors();
    this.memoryScale = memoryScale();
  }

  resultChanged() {
    const [a, b] = this.panels;
    this.checkMemoryScale();
    setEnd(Math.max(0, ...this.panels.map((panel) => panel.timeline.data?.end ?? 0)));
    byId("comparison").textContent = comparisonText(a, b);
    page.results = { a: a.result?.simulation ?? null, b: b.result?.simulation ?? null };
    page.milliseconds = { a: a.milliseconds, b: b.milliseconds };
    drawLegend();
  }
}

// The kinds of actions on the page, with their colors.
function drawLegend() {
  const used = new Set();
  for (const { data } of timelines) {
    if (!data) continue;
    for (const row of data.compute) for (let i = 0; i < Math.min(row.length, 4000); i += FIELDS) used.add(row[i]);
    if (state.communication) for (const lanes of data.lanes) for (const row of lanes) for (let i = 0; i < Math.min(row.length, 400); i += FIELDS) used.add(row[i]);
  }
  const seen = new Set();
  const items = [...used].sort((x, y) => x - y).filter((kind) => !seen.has(kinds[kind].meaning) && seen.add(kinds[kind].meaning)).map((kind) => {
    const swatch = element("i");
    swatch.style.background = theme.dark ? kinds[kind].dark : kinds[kind].light;
    return element("span", {}, swatch, kinds[kind].meaning);
  });
  if (timelines.some(({ data }) => data?.chunks.some((chunk) => chunk > 0))) items.push(element("span", {}, "lighter: later stages of a rank"));
  items.push(element("span", {}, element("i", { className: "critical" }), "critical path"));
  byId("legend").replaceChildren(...items);
}

App.start().catch((error) => pageFailed(error.message));
