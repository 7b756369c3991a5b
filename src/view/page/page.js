// Draws the panels on canvases. Draws only what is in view and at most one box per pixel column, so that a step with
// hundreds of thousands of actions stays responsive. The attributes of #state expose values to tests.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = document.getElementById("state");
  const tip = document.getElementById("tip");
  const byId = (id) => document.getElementById(id);
  const errors = [];
  window.addEventListener("error", (e) => { errors.push(e.message); state.dataset.errors = errors.join("; "); });

  // A box is six numbers in a flat array: kind, stage, microbatch, start, duration, flags.
  const FIELDS = 6, KIND = 0, STAGE = 1, MICROBATCH = 2, START = 3, LENGTH = 4, FLAGS = 5;
  const TOP_HALF = 1, BOTTOM_HALF = 2, CRITICAL = 4, LANE = 8;
  const GUTTER = 64, AXIS = 24, RIGHT = 8;
  const end = Math.max(...data.panels.map((p) => p.end)) || 1;
  const view = { from: 0, to: end };
  let follow = null, showCritical = false;
  // If there are very many transfers, they are hidden by default, because they would slow down every frame.
  const messages = data.panels.reduce((sum, p) => sum + p.communication.reduce((n, row) => n + row.length / FIELDS, 0), 0);
  let showComm = messages > 0 && messages < 50000;

  const style = {};
  function readColors() {
    const css = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "line", "lane", "f", "b", "i", "w", "s", "c", "critical", "memory"]) {
      style[name] = css.getPropertyValue("--" + name).trim();
    }
    style.light = css.colorScheme !== "dark";
  }
  function mix(color, towards, fraction) {
    const parse = (c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
    const a = parse(color), b = parse(towards);
    return "rgb(" + a.map((x, i) => Math.round(x + (b[i] - x) * fraction)).join(",") + ")";
  }
  // Later stages of a rank are lighter, as in diagrams of virtual stages in papers.
  const shades = new Map();
  function colorOf(kind, chunk) {
    const key = kind * 64 + chunk;
    if (!shades.has(key)) {
      const base = style[data.kinds[kind].colour];
      shades.set(key, chunk === 0 ? mix(base, base, 0) : mix(base, style.paper, Math.min(0.62, 0.38 * chunk)));
    }
    return shades.get(key);
  }

  function number(x, digits = 4) { return Number(x.toPrecision(digits)).toString(); }
  function time(t) {
    if (!data.seconds) return number(t, 6);
    const a = Math.abs(t);
    if (a === 0) return "0";
    if (a < 1e-3) return number(t * 1e6) + " µs";
    return a < 1 ? number(t * 1e3) + " ms" : number(t) + " s";
  }
  function bytes(n) {
    if (!data.seconds) return number(n, 6) + (n === 1 ? " activation" : " activations");
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < 4) { n /= 1024; ++i; }
    return number(n, 4) + " " + units[i];
  }

  const rowHeight = (ranks) => (ranks <= 8 ? 30 : ranks <= 16 ? 22 : ranks <= 32 ? 14 : 9);
  const memoryHeight = (ranks) => (ranks <= 8 ? 30 : ranks <= 16 ? 18 : 9);
  const laneHeight = (ranks) => (ranks <= 16 ? 7 : 3);

  // The first box of a row that ends after t. Rows are sorted by start; only the halves of an overlap coincide.
  function firstAfter(row, t) {
    let low = 0, high = row.length / FIELDS;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row[middle * FIELDS + START] + row[middle * FIELDS + LENGTH] <= t) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 2) * FIELDS;
  }

  class Panel {
    constructor(content) {
      this.content = content;
      this.ranks = content.compute.length;
      this.chunks = content.chunks || data.chunks;
      // A measured step counts memory that no prediction counts; all other panels share an axis.
      this.memoryRange = content.memoryRange || [0, data.memoryPeak || 1];
      this.lanes = 0;
      for (const row of content.communication) {
        for (let i = 0; i < row.length; i += FIELDS) this.lanes = Math.max(this.lanes, Math.floor(row[i + FLAGS] / LANE) + 1);
      }
      // Each lane becomes a separate row, so boxes within a row do not overlap.
      this.laneRows = content.communication.map((row) => {
        const lanes = Array.from({ length: this.lanes }, () => []);
        for (let i = 0; i < row.length; i += FIELDS) lanes[Math.floor(row[i + FLAGS] / LANE)].push(...row.slice(i, i + FIELDS));
        return lanes;
      });
      const section = document.createElement("section");
      const heading = document.createElement("h2");
      heading.textContent = content.name;
      section.append(heading);
      const summary = document.createElement("div");
      summary.className = "summary";
      for (const [name, value] of content.summary) {
        const item = document.createElement("span");
        const strong = document.createElement("b");
        strong.textContent = value;
        item.append(name + " ", strong);
        summary.append(item);
      }
      section.append(summary);
      this.canvas = document.createElement("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", content.name + ": actions of each rank over time");
      section.append(this.canvas);
      byId("panels").append(section);
      this.listen();
    }

    layout() {
      this.rowH = rowHeight(this.ranks);
      this.commH = showComm ? this.lanes * laneHeight(this.ranks) : 0;
      this.pitch = this.rowH + this.commH + (this.ranks <= 16 ? 5 : 2);
      this.memoryTop = AXIS + this.ranks * this.pitch + 26;
      this.memoryPitch = memoryHeight(this.ranks) + 3;
      const hasMemory = this.content.memory.length > 0;
      this.width = this.canvas.clientWidth;
      this.height = hasMemory ? this.memoryTop + this.ranks * this.memoryPitch + 4 : AXIS + this.ranks * this.pitch + 2;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.style.height = this.height + "px";
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.ctx = this.canvas.getContext("2d");
      this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.scale = (this.width - GUTTER - RIGHT) / (view.to - view.from);
    }
    x(t) { return GUTTER + (t - view.from) * this.scale; }
    t(x) { return view.from + (x - GUTTER) / this.scale; }
    rowTop(rank) { return AXIS + rank * this.pitch; }

    draw() {
      this.layout();
      const ctx = this.ctx;
      ctx.fillStyle = style.paper;
      ctx.fillRect(0, 0, this.width, this.height);
      this.drawAxis();
      ctx.save();
      ctx.beginPath();
      ctx.rect(GUTTER, AXIS - 1, this.width - GUTTER - RIGHT, this.height);
      ctx.clip();
      this.drawn = 0;
      for (let rank = 0; rank < this.ranks; ++rank) {
        ctx.fillStyle = style.lane;
        ctx.fillRect(this.x(0), this.rowTop(rank), this.x(this.content.end) - this.x(0), this.rowH);
        this.drawRow(this.content.compute[rank], this.rowTop(rank), this.rowH, true);
        for (let lane = 0; this.commH && lane < this.lanes; ++lane) {
          this.drawRow(this.laneRows[rank][lane], this.rowTop(rank) + this.rowH + 1 + lane * laneHeight(this.ranks), laneHeight(this.ranks) - 1, false);
        }
      }
      if (this.content.memory.length) this.drawMemory();
      ctx.restore();
      this.drawLabels();
    }

    drawAxis() {
      const ctx = this.ctx, span = view.to - view.from;
      let step = Math.pow(10, Math.floor(Math.log10(span / Math.max(2, this.width / 110))));
      while (span / step > this.width / 90) step *= step.toPrecision(1)[0] === "2" ? 2.5 : 2;
      ctx.font = "11.5px system-ui, Arial, sans-serif";
      ctx.textBaseline = "alphabetic";
      ctx.textAlign = "center";
      const bottom = AXIS + this.ranks * this.pitch - 2;
      for (let i = Math.ceil(view.from / step); i * step <= view.to + step * 1e-9; ++i) {
        const x = Math.round(this.x(i * step)) + 0.5;
        ctx.strokeStyle = style.line;
        ctx.beginPath(); ctx.moveTo(x, AXIS - 6); ctx.lineTo(x, bottom); ctx.stroke();
        ctx.fillStyle = style.soft;
        ctx.textAlign = i === 0 ? "left" : this.width - x < 24 ? "right" : "center";
        ctx.fillText(time(i * step), x, AXIS - 10);
      }
    }

    drawRow(row, top, height, labeled) {
      const ctx = this.ctx;
      const withText = labeled && height >= 9;
      if (withText) ctx.font = "600 " + Math.min(12, height - 3) + "px system-ui, Arial, sans-serif";
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      const lastColumn = [-1, -1, -1];
      const grain = this.ranks > 32 ? 2 : 1;  // resolution in pixels; narrower boxes are merged
      for (let i = firstAfter(row, view.from); i < row.length; i += FIELDS) {
        const start = row[i + START];
        if (start > view.to) break;
        const left = this.x(start), right = this.x(start + row[i + LENGTH]);
        if (right < GUTTER) continue;
        const flags = row[i + FLAGS], half = flags & (TOP_HALF | BOTTOM_HALF);
        const column = Math.floor(right / grain);
        if (right - left < grain && column === lastColumn[half]) continue;
        lastColumn[half] = column;
        ++this.drawn;
        const width = Math.max(right - left, 0.75 * grain);
        const y = half === BOTTOM_HALF ? top + height / 2 : top, h = half ? height / 2 - (half === TOP_HALF ? 0.5 : 0) : height;
        const dim = (follow !== null && row[i + MICROBATCH] !== follow) || (showCritical && !(flags & CRITICAL));
        ctx.globalAlpha = dim ? 0.22 : 1;
        ctx.fillStyle = colorOf(row[i + KIND], this.chunks[row[i + STAGE]] || 0);
        ctx.fillRect(left, y, width > 3 ? width - 0.8 : width, h);
        if (withText && width > 13 && row[i + MICROBATCH] >= 0 && h >= 9) this.drawText(row, i, left, width, y + h / 2);
      }
      ctx.globalAlpha = 1;
    }
    drawText(row, i, left, width, y) {
      const text = String(row[i + MICROBATCH]);
      if (text.length * 7 + 4 > width) return;
      const pale = (this.chunks[row[i + STAGE]] || 0) > 0;
      this.ctx.fillStyle = pale ? style.ink : style.light ? "#ffffff" : "#0d1117";
      this.ctx.fillText(text, left + width / 2 - 0.4, y + 0.5);
    }

    drawMemory() {
      const ctx = this.ctx, [low, high] = this.memoryRange, h = memoryHeight(this.ranks);
      const top = (base, value) => base - (h - 1) * (value - low) / (high - low);
      for (let rank = 0; rank < this.ranks; ++rank) {
        const curve = this.content.memory[rank], base = this.memoryTop + rank * this.memoryPitch + h;
        ctx.fillStyle = style.lane;
        ctx.fillRect(this.x(0), base - h, this.x(this.content.end) - this.x(0), h);
        ctx.beginPath();
        ctx.moveTo(this.x(0), base);
        let level = 0, lastX = -1e9, most = 0, mostAt = 0;
        for (let i = 0; i < curve.length; i += 2) {
          const x = this.x(curve[i]), next = top(base, curve[i + 1]);
          if (curve[i + 1] > most) { most = curve[i + 1]; mostAt = curve[i]; }
          if (x > lastX + 0.5 || next < level) { ctx.lineTo(x, level || base); ctx.lineTo(x, next); lastX = x; }
          level = next;
        }
        ctx.lineTo(this.x(this.content.end), level || base);
        ctx.lineTo(this.x(this.content.end), base);
        ctx.closePath();
        ctx.fillStyle = style.memory;
        ctx.fill();
        if (h >= 18) {
          ctx.fillStyle = style.critical;
          ctx.beginPath(); ctx.arc(this.x(mostAt), top(base, most), 2.6, 0, 7); ctx.fill();
        }
      }
    }

    drawLabels() {
      const ctx = this.ctx, each = this.ranks <= 32 ? 1 : 4;
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillStyle = style.soft;
      ctx.font = (this.ranks <= 16 ? 12 : 10) + "px system-ui, Arial, sans-serif";
      for (let rank = 0; rank < this.ranks; rank += each) {
        const twoLines = this.rowH >= 30, middle = this.rowTop(rank) + this.rowH / 2;
        ctx.fillText("rank " + rank, GUTTER - 9, middle - (twoLines ? 6 : 0));
        if (twoLines) this.drawStages(rank, middle + 8);
        if (this.content.memory.length) ctx.fillText("rank " + rank, GUTTER - 9, this.memoryTop + rank * this.memoryPitch + memoryHeight(this.ranks) / 2);
      }
      if (!this.content.memory.length) return;
      ctx.textAlign = "left";
      ctx.font = "600 12px system-ui, Arial, sans-serif";
      const [low, high] = this.memoryRange;
      ctx.fillText("memory, scale " + (low > 0 ? "from " + bytes(low) + " " : "") + "to " + bytes(high), GUTTER, this.memoryTop - 11);
    }

    drawStages(rank, y) {
      const ctx = this.ctx, stages = this.content.stages[rank], font = ctx.font;
      if (!stages.length) return;
      ctx.font = "10px system-ui, Arial, sans-serif";
      const list = stages.length > 3 ? stages[0] + "\u2026" + stages[stages.length - 1] : stages.join(", ");
      ctx.fillText((stages.length > 1 ? "stages " : "stage ") + list, GUTTER - 9, y, GUTTER - 10);
      ctx.font = font;
    }

    // Returns what is under the pointer: a computation, a communication, a memory level, or null.
    find(px, py) {
      if (px < GUTTER || py < AXIS) return null;
      const t = this.t(px), rank = Math.floor((py - AXIS) / this.pitch);
      if (rank < this.ranks) {
        const y = py - this.rowTop(rank);
        const comm = this.commH && y > this.rowH;
        const lane = Math.min(this.lanes - 1, Math.floor((y - this.rowH) / laneHeight(this.ranks)));
        const row = comm ? this.laneRows[rank][lane] : this.content.compute[rank];
        return { rank, row, at: y > this.rowH + this.commH ? -1 : this.boxAt(row, t, y < this.rowH / 2), t };
      }
      const strip = Math.floor((py - this.memoryTop) / this.memoryPitch);
      if (strip < 0 || strip >= this.ranks || !this.content.memory.length) return null;
      const curve = this.content.memory[strip];
      let level = 0;
      for (let i = 0; i < curve.length && curve[i] <= t; i += 2) level = curve[i + 1];
      return { rank: strip, level, t, at: -1 };
    }
    boxAt(row, t, upper) {
      const slack = 1 / this.scale;
      for (let i = firstAfter(row, t - slack); i < row.length && row[i + START] <= t + slack; i += FIELDS) {
        const inside = t >= row[i + START] && t < row[i + START] + Math.max(row[i + LENGTH], slack);
        const half = row[i + FLAGS] & 3;
        if (inside && (half === 0 || (half === TOP_HALF) === upper)) return i;
      }
      return -1;
    }
    describe(hit) {
      if (hit.level !== undefined) return "rank " + hit.rank + " at " + time(hit.t) + "\nmemory " + bytes(hit.level);
      if (hit.at < 0) return null;
      const row = hit.row, i = hit.at, kind = data.kinds[row[i + KIND]];
      const lines = [row[i + STAGE] + kind.name + (row[i + MICROBATCH] >= 0 ? row[i + MICROBATCH] : "") + "  " + kind.meaning];
      lines.push("rank " + hit.rank + ", stage " + row[i + STAGE] + (row[i + MICROBATCH] >= 0 ? ", microbatch " + row[i + MICROBATCH] : ""));
      lines.push(time(row[i + START]) + " to " + time(row[i + START] + row[i + LENGTH]) + "  (" + time(row[i + LENGTH]) + ")");
      if (row[i + FLAGS] & 3) lines.push("overlapped: both parts run in this time");
      if (row[i + FLAGS] & CRITICAL) lines.push("on the critical path");
      return lines.join("\n");
    }

    listen() {
      const canvas = this.canvas;
      let dragging = null;
      canvas.addEventListener("mousemove", (e) => {
        const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
        if (dragging && e.buttons & 1) {
          const shift = (dragging.x - e.clientX) / this.scale;
          if (Math.abs(dragging.x - e.clientX) > 3) dragging.moved = true;
          move(dragging.from + shift, dragging.to + shift);
          return;
        }
        const hit = this.find(px, py), text = hit && this.describe(hit);
        tip.hidden = !text;
        state.dataset.hover = text || "";
        if (!text) return;
        tip.textContent = text;
        const w = tip.offsetWidth, h = tip.offsetHeight;
        tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 8)) + "px";
        tip.style.top = (e.clientY + 18 + h > innerHeight ? e.clientY - h - 10 : e.clientY + 18) + "px";
      });
      canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
      canvas.addEventListener("mousedown", (e) => { dragging = { x: e.clientX, from: view.from, to: view.to, moved: false }; });
      canvas.addEventListener("click", (e) => {
        if (dragging && dragging.moved) return;
        const box = canvas.getBoundingClientRect();
        const hit = this.find(e.clientX - box.left, e.clientY - box.top);
        const picked = hit && hit.at >= 0 ? hit.row[hit.at + MICROBATCH] : null;
        follow = picked === follow || picked < 0 ? null : picked;
        draw();
      });
      this.listenToTouch();
      canvas.addEventListener("dblclick", () => move(0, end));
      canvas.addEventListener("wheel", (e) => {
        if (e.ctrlKey || e.metaKey) {
          e.preventDefault();
          zoom(Math.exp(Math.sign(e.deltaY) * 0.22), this.t(e.clientX - canvas.getBoundingClientRect().left));
        } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
          e.preventDefault();
          const shift = (e.deltaX || e.deltaY) / this.scale;
          move(view.from + shift, view.to + shift);
        }
      }, { passive: false });
    }
  }

  // One finger pans, two zoom around their middle. Vertical scrolling is left to the browser.
  Panel.prototype.listenToTouch = function () {
    const canvas = this.canvas;
    let before = null;
    const read = (e) => {
      const left = canvas.getBoundingClientRect().left, xs = [...e.touches].slice(0, 2).map((t) => t.clientX - left);
      return { count: xs.length, middle: xs.reduce((sum, x) => sum + x, 0) / xs.length, width: xs.length > 1 ? Math.abs(xs[0] - xs[1]) : 0 };
    };
    canvas.addEventListener("touchstart", (e) => { before = read(e); }, { passive: true });
    canvas.addEventListener("touchend", (e) => { before = e.touches.length ? read(e) : null; }, { passive: true });
    canvas.addEventListener("touchmove", (e) => {
      const now = read(e);
      if (before && before.count === now.count) {
        tip.hidden = true;
        const shift = (before.middle - now.middle) / this.scale;
        move(view.from + shift, view.to + shift);
        if (now.count > 1 && now.width > 0) zoom(before.width / now.width, this.t(now.middle));
        this.scale = (this.width - GUTTER - RIGHT) / (view.to - view.from);
        if (e.cancelable && now.count > 1) e.preventDefault();
      }
      before = now;
    }, { passive: false });
  };

  function move(from, to) {
    const span = Math.min(to - from, end);
    view.from = Math.max(0, Math.min(from, end - span));
    view.to = view.from + span;
    draw();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    const span = Math.max((view.to - view.from) * factor, end * 1e-6);
    const fraction = (around - view.from) / (view.to - view.from);
    move(around - span * fraction, around + span * (1 - fraction));
  }

  for (const [name, value] of data.facts) {
    const item = document.createElement("span");
    item.append(name + " ", Object.assign(document.createElement("b"), { textContent: value }));
    byId("facts").append(item);
  }
  const panels = data.panels.map((content) => new Panel(content));
  let pending = false;
  function draw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; drawNow(); });
  }
  function drawNow() {
    const began = performance.now();
    for (const panel of panels) panel.draw();
    state.dataset.drawn = panels.reduce((sum, p) => sum + p.drawn, 0);
    state.dataset.from = view.from;
    state.dataset.to = view.to;
    state.dataset.follow = follow === null ? "" : follow;
    state.dataset.drawMilliseconds = (performance.now() - began).toFixed(1);
  }
  function restyle() { shades.clear(); readColors(); drawLegend(); drawNow(); }

  function drawLegend() {
    const used = new Set();
    for (const { compute, communication } of data.panels) {
      for (const row of [...compute, ...communication]) for (let i = 0; i < row.length; i += FIELDS) used.add(row[i + KIND]);
    }
    const legend = byId("legend");
    legend.textContent = "";
    const seen = new Set();
    data.kinds.forEach((kind, k) => {
      if (!used.has(k) || seen.has(kind.meaning)) return;
      seen.add(kind.meaning);
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = style[kind.colour];
      item.append(swatch, kind.meaning);
      legend.append(item);
    });
    const idle = document.createElement("span"), swatch = document.createElement("i");
    swatch.style.background = style.lane;
    swatch.style.outline = "1px solid " + style.line;
    idle.append(swatch, "idle");
    legend.append(idle);
    legend.append(Object.assign(document.createElement("span"), { textContent: data.seconds ? "time in seconds" : "time in units" }));
    if (panels.some((p) => p.chunks.some((c) => c > 0))) legend.append(Object.assign(document.createElement("span"), { textContent: "lighter: later stages of a rank" }));
  }

  byId("zoom-in").onclick = () => zoom(0.6);
  byId("zoom-out").onclick = () => zoom(1 / 0.6);
  byId("fit").onclick = () => move(0, end);
  byId("show-comm").checked = showComm;
  byId("show-comm").onchange = (e) => { showComm = e.target.checked; draw(); };
  byId("show-critical").onchange = (e) => { showCritical = e.target.checked; draw(); };
  byId("theme").onclick = () => {
    const root = document.documentElement;
    root.dataset.theme = style.light ? "dark" : "light";
    restyle();
  };
  addEventListener("keydown", (e) => {
    const span = view.to - view.from;
    if (e.key === "+" || e.key === "=") zoom(0.7);
    else if (e.key === "-") zoom(1 / 0.7);
    else if (e.key === "0") move(0, end);
    else if (e.key === "ArrowRight") move(view.from + span * 0.2, view.to + span * 0.2);
    else if (e.key === "ArrowLeft") move(view.from - span * 0.2, view.to - span * 0.2);
  });
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);

  state.dataset.boxes = data.panels.reduce((sum, p) => sum + p.compute.reduce((n, row) => n + row.length / FIELDS, 0), 0);
  state.dataset.messages = messages;
  state.dataset.end = end;
  state.dataset.errors = "";
  restyle();
  state.dataset.ready = "yes";
  window.penstock = { drawNow };  // for tests, which cannot wait for a frame
})();
