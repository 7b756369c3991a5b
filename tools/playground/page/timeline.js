// One timeline on a canvas. All timelines share the part of the time axis in view.
"use strict";

const AXIS = 24, DENSE = 4;  // boxes narrower than DENSE pixels on average are drawn as an image

const view = { from: 0, to: 1, end: 1 };
const timelines = [];
let kinds = [];       // from the module: name, meaning and color of each kind of action
let followed = null;  // the highlighted microbatch

const theme = {};
function readTheme() {
  const css = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "soft", "line", "lane", "critical", "memory"]) {
    theme[name] = css.getPropertyValue("--" + name).trim();
  }
  theme.dark = css.colorScheme === "dark";
  resetColors();
}
function resetColors() { for (const timeline of timelines) timeline.resetColors(); }

function rgb(hex) { return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)); }
function mix(color, towards, share) { return color.map((x, i) => Math.round(x + (towards[i] - x) * share)); }

function moveView(from, to) {
  const span = Math.min(to - from, view.end);
  view.from = Math.max(0, Math.min(from, view.end - span));
  view.to = view.from + span;
  redraw();
}
function zoomView(factor, around = (view.from + view.to) / 2) {
  const span = Math.max((view.to - view.from) * factor, view.end * 1e-6);
  const share = (around - view.from) / (view.to - view.from);
  moveView(around - span * share, around + span * (1 - share));
}
// Keeps the part in view if the user has zoomed in, else shows the entire step.
function setEnd(end) {
  const all = view.from === 0 && view.to === view.end;
  view.end = end || 1;
  moveView(all ? 0 : view.from, all ? view.end : view.to);
}

let frameRequested = false;
function redraw() {
  if (frameRequested) return;
  frameRequested = true;
  requestAnimationFrame(() => { frameRequested = false; drawNow(); });
}
function drawNow() {
  const began = performance.now();
  for (const timeline of timelines) timeline.draw();
  page.frameMilliseconds = performance.now() - began;
}

class Timeline {
  constructor(canvas, name) {
    this.canvas = canvas;
    this.name = name;
    this.data = null;
    this.colors = new Array(256).fill(null);  // by kind, stage and highlighting
    this.pyramids = new Map();
    this.image = document.createElement("canvas");
    this.cursor = null;  // the action selected with the keyboard: { rank, at }
    timelines.push(this);
    listenToPointer(this);
    listenToKeys(this);
  }

  // `simulation` and `layout` are those of an answer; null removes the timeline.
  show(simulation, layout, boxes) {
    this.data = simulation && { ...splitBoxes(layout, boxes), simulation, end: layout.end, chunks: layout.chunk_of_stage };
    this.resetColors();
    this.cursor = null;
  }
  resetColors() {
    this.colors.fill(null);
    this.pyramids.clear();
  }

  layout() {
    const ranks = this.data.compute.length, narrow = this.canvas.clientWidth < 560;
    this.width = this.canvas.clientWidth;
    this.left = narrow ? 24 : 60;
    this.right = narrow ? 4 : 132;
    this.rowHeight = ranks <= 8 ? 28 : ranks <= 16 ? 20 : ranks <= 32 ? 12 : 8;
    this.laneHeight = ranks <= 16 ? 6 : 3;
    this.lanes = state.communication ? Math.max(0, ...this.data.lanes.map((lanes) => lanes.length)) : 0;
    this.curves = ranks <= 16;  // otherwise the memory of a rank is a strip whose color shows the level
    this.memoryHeight = state.memory ? (this.curves ? 20 : 4) : 0;
    this.pitch = this.rowHeight + this.lanes * this.laneHeight + this.memoryHeight + (ranks <= 16 ? 6 : 2);
    this.height = AXIS + ranks * this.pitch + 2;
    this.scale = Math.max(1, this.width - this.left - this.right) / (view.to - view.from);
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.width * ratio), height = Math.round(this.height * ratio);
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.style.height = this.height + "px";
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  x(time) { return this.left + (time - view.from) * this.scale; }
  time(x) { return view.from + (x - this.left) / this.scale; }
  rowTop(rank) { return AXIS + rank * this.pitch; }

  draw() {
    if (!this.data) return;
    this.layout();
    const context = this.context, inner = this.width - this.left - this.right;
    context.fillStyle = theme.paper;
    context.fillRect(0, 0, this.width, this.height);
    this.drawAxis();
    context.save();
    context.beginPath();
    context.rect(this.left, AXIS - 1, inner, this.height);
    context.clip();
    this.drawStrips(inner);
    if (this.memoryHeight && this.curves) for (let rank = 0; rank < this.data.compute.length; ++rank) this.drawMemory(rank);
    this.drawCursor();
    context.restore();
    this.drawLabels();
  }

  // The strips in the visible part of the canvas: computations, lanes and, for many ranks, the memory level.
  strips() {
    const strips = [], box = this.canvas.getBoundingClientRect(), margin = 200;
    const first = Math.max(0, Math.floor((-box.top - margin - AXIS) / this.pitch));
    const last = Math.min(this.data.compute.length, Math.ceil((innerHeight + margin - box.top - AXIS) / this.pitch));
    for (let rank = first; rank < last; ++rank) {
      const row = this.data.compute[rank], top = this.rowTop(rank), height = this.rowHeight;
      strips.push({ key: `${rank}`, row, top, height });
      for (let lane = 0; lane < this.lanes; ++lane) {
        const boxes = this.data.lanes[rank][lane], laneTop = top + height + 1 + lane * this.laneHeight;
        if (boxes) strips.push({ key: `${rank} lane ${lane}`, row: boxes, top: laneTop, height: this.laneHeight - 1, thin: true });
      }
      if (this.memoryHeight && !this.curves) {
        const memoryTop = top + height + this.lanes * this.laneHeight;
        strips.push({ key: `${rank} memory`, samples: this.data.memory[rank], top: memoryTop, height: 3 });
      }
    }
    return strips;
  }

  drawStrips(inner) {
    const dense = [], share = (view.to - view.from) / (this.data.end || 1);
    for (const strip of this.strips()) {
      if (strip.samples || (strip.row.length / FIELDS) * share > inner / DENSE) dense.push(...this.halves(strip));
      else this.drawBoxes(strip);
    }
    if (dense.length) this.drawImage(dense, inner);
  }
  // In an image, the parts of overlaps need a row each.
  halves(strip) {
    if (strip.thin || strip.samples || !this.data.overlaps) return [strip];
    const height = strip.height / 2;
    return [TOP_HALF, BOTTOM_HALF].map((half) => ({ ...strip, key: `${strip.key} half ${half}`, top: strip.top + (half - 1) * height, height, half }));
  }

  drawBoxes({ row, top, height, thin }) {
    const context = this.context;
    context.fillStyle = theme.lane;
    if (!thin) context.fillRect(this.x(0), top, this.x(this.data.end) - this.x(0), height);
    context.font = `600 ${Math.min(12, height - 3)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = firstAfter(row, view.from); i < row.length && row[i + START] <= view.to; i += FIELDS) {
      const part = row[i + FLAGS] & HALVES, boxHeight = part ? height / 2 : height;
      const boxTop = part === BOTTOM_HALF ? top + boxHeight : top;
      const left = this.x(row[i + START]), width = Math.max(0.75, row[i + LENGTH] * this.scale);
      const color = this.color(row, i), drawn = width > 3 ? width - 0.8 : width;
      context.fillStyle = color.css;
      context.fillRect(left, boxTop, drawn, boxHeight);
      if (thin) continue;
      if (color.critical) {
        context.fillStyle = theme.critical;
        context.fillRect(left, boxTop + boxHeight - 2, drawn, 2);
      }
      if (boxHeight >= 12 && width > 13) this.drawNumber(row[i + MICROBATCH], left, width, boxTop + boxHeight / 2, color);
    }
  }
  drawNumber(number, left, width, y, color) {
    const text = String(number);
    if (text.length * 7 + 4 > width) return;
    this.context.fillStyle = color.text;
    this.context.fillText(text, left + width / 2 - 0.4, y + 0.5);
  }

  // Draws dense strips as one image with a row per strip, stretched to their heights.
  drawImage(strips, inner) {
    const ratio = window.devicePixelRatio || 1, width = Math.max(1, Math.round(inner * ratio));
    const pixels = new ImageData(width, strips.length), paper = rgb(theme.paper), lane = rgb(theme.lane);
    const duration = (view.to - view.from) / width, averaged = Pyramid.covers(this.data.end, duration);
    if (!this.columns || this.columns.width !== width) this.columns = new ColumnColors(width);
    strips.forEach((strip, row) => {
      const ground = strip.thin ? paper : lane;
      if (averaged) {
        this.pyramid(strip, ground).write(pixels.data, row, width, view.from, duration, paper);
      } else {
        this.columns.clear();
        this.addStrip(strip, this.columns, view.from, 1 / duration);
        this.columns.write(pixels.data, row, ground);
      }
    });
    if (this.image.width !== width || this.image.height < strips.length) {
      this.image.width = width;
      this.image.height = strips.length;
    }
    this.image.getContext("2d").putImageData(pixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    strips.forEach((strip, row) => {
      this.context.drawImage(this.image, 0, row, width, 1, this.left, strip.top, inner, strip.height);
    });
  }
  pyramid(strip, ground) {
    let pyramid = this.pyramids.get(strip.key);
    if (!pyramid) {
      pyramid = new Pyramid(this.data.end, (columns, from, scale) => this.addStrip(strip, columns, from, scale), ground);
      this.pyramids.set(strip.key, pyramid);
    }
    return pyramid;
  }
  // Adds what is visible in columns that start at `from`, `scale` columns per unit of time.
  addStrip(strip, columns, from, scale) {
    const to = from + columns.width / scale;
    if (strip.samples) this.addLevels(strip.samples, columns, from, to, scale); else this.addBoxes(strip, columns, from, to, scale);
  }
  addBoxes({ row, half }, columns, from, to, scale) {
    for (let i = firstAfter(row, from); i < row.length && row[i + START] <= to; i += FIELDS) {
      const part = row[i + FLAGS] & HALVES;
      if (half && part && part !== half) continue;
      const left = (row[i + START] - from) * scale;
      columns.add(left, left + row[i + LENGTH] * scale, this.color(row, i).rgb);
    }
  }
  addLevels(samples, columns, from, to, scale) {
    const peak = memoryScale(), lowest = rgb(theme.lane), highest = rgb(theme.memory);
    for (let i = lastBefore(samples, from); i < samples.length && samples[i] <= to; i += 2) {
      const next = i + 2 < samples.length ? samples[i + 2] : this.data.end;
      columns.add((samples[i] - from) * scale, (next - from) * scale, mix(lowest, highest, samples[i + 1] / peak));
    }
  }

  // Later stages of a rank are lighter. Boxes that are not highlighted are faint.
  color(row, i) {
    const kind = row[i + KIND], chunk = Math.min(3, this.data.chunks[row[i + STAGE]] || 0);
    const critical = (row[i + FLAGS] & CRITICAL) !== 0;
    const faint = (followed !== null && row[i + MICROBATCH] !== followed) || (state.critical === "1" && !critical);
    const key = kind * 16 + chunk * 4 + (faint ? 2 : 0) + (critical ? 1 : 0);
    if (this.colors[key]) return this.colors[key];
    const paper = rgb(theme.paper), base = rgb(theme.dark ? kinds[kind].dark : kinds[kind].light);
    const mixed = mix(mix(base, paper, [0, 0.38, 0.55, 0.66][chunk]), paper, faint ? 0.78 : 0);
    const brightness = 0.3 * mixed[0] + 0.59 * mixed[1] + 0.11 * mixed[2];
    const text = faint ? theme.soft : brightness > 125 ? "#0d1117" : "#ffffff";
    return (this.colors[key] = { rgb: mixed, css: `rgb(${mixed})`, text, critical });
  }

  drawAxis() {
    const context = this.context, span = view.to - view.from;
    const width = this.width - this.left - this.right, most = Math.max(2, width / 90);
    let step = Math.pow(10, Math.floor(Math.log10(span / most)));
    while (span / step > most) step *= step.toPrecision(1)[0] === "2" ? 2.5 : 2;
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.strokeStyle = theme.line;
    context.fillStyle = theme.soft;
    context.lineWidth = 1;
    for (let i = Math.ceil(view.from / step); i * step <= view.to + step * 1e-9; ++i) {
      const x = Math.round(this.x(i * step)) + 0.5;
      context.beginPath(); context.moveTo(x, AXIS - 6); context.lineTo(x, this.height); context.stroke();
      context.textAlign = i === 0 ? "left" : x > this.left + width - 20 ? "right" : "center";
      context.fillText(timeText(Number((i * step).toPrecision(9))), x, AXIS - 10);
    }
  }

  drawMemory(rank) {
    const context = this.context, samples = this.data.memory[rank], height = this.memoryHeight - 2, peak = memoryScale();
    const base = this.rowTop(rank) + this.rowHeight + this.lanes * this.laneHeight + this.memoryHeight;
    let y = base, column = -1;
    context.fillStyle = theme.memory;
    context.beginPath();
    context.moveTo(this.left, base);
    for (let i = lastBefore(samples, view.from); i < samples.length && samples[i] <= view.to; i += 2) {
      const x = Math.max(this.left, this.x(samples[i])), next = base - height * (samples[i + 1] / peak);
      if (Math.floor(x * 2) === column && next >= y) { y = next; continue; }  // within a pixel, keep the highest level
      column = Math.floor(x * 2);
      context.lineTo(x, y);
      context.lineTo(x, next);
      y = next;
    }
    const last = Math.min(this.x(this.data.end), this.width - this.right);
    context.lineTo(last, y);
    context.lineTo(last, base);
    context.fill();
    const cap = memoryCapOrNull();
    if (!cap || cap > peak) return;
    context.fillStyle = theme.critical;
    context.fillRect(this.left, Math.round(base - height * (cap / peak)), last - this.left, 1);
  }

  // The rank on the left; its bubble and peak memory on the right.
  drawLabels() {
    const context = this.context, ranks = this.data.compute.length, narrow = this.left < 40, cap = memoryCapOrNull();
    const every = Math.ceil(11 / this.pitch);
    context.font = (this.rowHeight >= 12 ? 12 : 10) + "px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let rank = 0; rank < ranks; rank += every) {
      const report = this.data.simulation.per_rank[rank], y = this.rowTop(rank) + this.rowHeight / 2;
      context.fillStyle = theme.soft;
      context.textAlign = "right";
      context.fillText(narrow ? rank : "rank " + rank, this.left - 7, y);
      if (narrow) continue;
      context.fillText(shareText(report.bubble), this.width - this.right + 52, y);
      if (cap && report.peak_memory > cap) context.fillStyle = theme.critical;
      context.fillText(bytesText(report.peak_memory), this.width - 2, y);
    }
    if (narrow) return;
    context.fillStyle = theme.soft;
    context.textAlign = "right";
    context.font = "11.5px system-ui, sans-serif";
    context.fillText("bubble", this.width - this.right + 52, AXIS - 14);
    context.fillText("peak", this.width - 2, AXIS - 14);
  }

  drawCursor() {
    if (!this.cursor) return;
    const row = this.data.compute[this.cursor.rank], i = this.cursor.at;
    this.context.strokeStyle = theme.ink;
    this.context.lineWidth = 2;
    this.context.strokeRect(this.x(row[i + START]) + 1, this.rowTop(this.cursor.rank) + 1, Math.max(2, row[i + LENGTH] * this.scale - 2), this.rowHeight - 2);
  }
}

// The full height of a memory curve, the same for all timelines.
function memoryScale() {
  return Math.max(1, ...timelines.map((timeline) => timeline.data?.simulation.peak_memory ?? 0));
}
function memoryCapOrNull() {
  try { return memoryCap(); } catch { return null; }
}
