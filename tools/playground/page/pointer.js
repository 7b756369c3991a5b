// Pointer, touch and keyboard on a timeline: pan, zoom, the description of an action, and highlighting of a microbatch.
"use strict";

// Returns the row and the index of the box at a point of the canvas, or null.
function hitTest(timeline, x, y) {
  if (!timeline.data || x < timeline.left || x > timeline.width - timeline.right || y < AXIS) return null;
  const rank = Math.floor((y - AXIS) / timeline.pitch), inside = y - timeline.rowTop(rank);
  if (rank >= timeline.data.compute.length) return null;
  const lane = Math.floor((inside - timeline.rowHeight) / timeline.laneHeight);
  const time = timeline.time(x);
  if (lane >= timeline.lanes) return { rank, time, memory: true };
  const row = lane < 0 ? timeline.data.compute[rank] : timeline.data.lanes[rank][lane];
  const at = row ? boxAt(row, time, 1 / timeline.scale, inside < timeline.rowHeight / 2) : -1;
  return at < 0 ? null : { rank, row, at, time };
}

function boxAt(row, time, slack, upper) {
  for (let i = firstAfter(row, time - slack); i < row.length && row[i + START] <= time + slack; i += FIELDS) {
    const half = row[i + FLAGS] & HALVES;
    const inside = time >= row[i + START] && time < row[i + START] + Math.max(row[i + LENGTH], slack);
    if (inside && (half === 0 || (half === TOP_HALF) === upper)) return i;
  }
  return -1;
}

function describe(timeline, { rank, row, at, time, memory }) {
  if (memory) {
    const samples = timeline.data.memory[rank];
    return `rank ${rank} at ${timeText(time)}\nmemory ${bytesText(samples[lastBefore(samples, time) + 1] || 0)}`;
  }
  const kind = kinds[row[at + KIND]], microbatch = row[at + MICROBATCH], start = row[at + START], length = row[at + LENGTH];
  const lines = [`${row[at + STAGE]}${kind.name}${microbatch >= 0 ? microbatch : ""}  ${kind.meaning}`];
  lines.push(`rank ${rank}, stage ${row[at + STAGE]}${microbatch >= 0 ? ", microbatch " + microbatch : ""}`);
  lines.push(`${timeText(start)} to ${timeText(start + length)}  (${timeText(length)})`);
  if (row[at + FLAGS] & HALVES) lines.push("overlapped: both parts run in this time");
  if (row[at + FLAGS] & CRITICAL) lines.push("on the critical path");
  return lines.join("\n");
}

function showTip(text, x, y) {
  const tip = byId("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18) + "px";
}

function follow(microbatch) {
  followed = microbatch === followed || microbatch < 0 ? null : microbatch;
  resetColors();
  redraw();
}

function listenToPointer(timeline) {
  const canvas = timeline.canvas, pointers = new Map();
  let gesture = null;  // the state at the start of a drag or pinch
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const begin = () => {
    const xs = [...pointers.values()];
    const middle = xs.reduce((sum, x) => sum + x, 0) / xs.length;
    gesture = { middle, spread: Math.max(20, Math.max(...xs) - Math.min(...xs)), from: view.from, to: view.to, count: xs.length, moved: gesture?.moved };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (pointers.size === 0) gesture = null;
    pointers.set(event.pointerId, at(event)[0]);
    canvas.setPointerCapture(event.pointerId);
    begin();
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!pointers.has(event.pointerId)) {
      const hit = hitTest(timeline, x, y);
      showTip(hit && describe(timeline, hit), event.clientX, event.clientY);
      return;
    }
    pointers.set(event.pointerId, x);
    dragTo(timeline, gesture, [...pointers.values()]);
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    if (pointers.size > 0) begin();
  };
  canvas.addEventListener("pointerup", (event) => {
    const tapped = pointers.size === 1 && gesture && !gesture.moved;
    release(event);
    if (!tapped) return;
    const hit = hitTest(timeline, ...at(event));
    if (event.pointerType !== "mouse") showTip(hit && describe(timeline, hit), event.clientX, event.clientY);
    follow(hit && !hit.memory ? hit.row[hit.at + MICROBATCH] : -1);
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") showTip(null); });
  canvas.addEventListener("dblclick", () => moveView(0, view.end));
  canvas.addEventListener("wheel", (event) => turnWheel(timeline, event, at(event)[0]), { passive: false });
}

// Moves the time under the middle of the fingers along with them; the distance of two fingers sets the scale.
function dragTo(timeline, gesture, xs) {
  const middle = xs.reduce((sum, x) => sum + x, 0) / xs.length;
  const spread = xs.length > 1 ? Math.max(20, Math.max(...xs) - Math.min(...xs)) : gesture.spread;
  if (Math.abs(middle - gesture.middle) > 4 || xs.length > 1) gesture.moved = true;
  if (!gesture.moved) return;
  showTip(null);
  const width = timeline.width - timeline.left - timeline.right;
  const span = Math.min(view.end, (gesture.to - gesture.from) * (gesture.spread / spread));
  const time = gesture.from + ((gesture.middle - timeline.left) / width) * (gesture.to - gesture.from);
  const from = time - ((middle - timeline.left) / width) * span;
  moveView(from, from + span);
}

function turnWheel(timeline, event, x) {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoomView(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 100)) * 0.3), timeline.time(x));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    const shift = (event.deltaX || event.deltaY) / timeline.scale;
    moveView(view.from + shift, view.to + shift);
  }
}

function listenToKeys(timeline) {
  timeline.canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const commands = {
      "+": () => zoomView(0.7), "=": () => zoomView(0.7), "-": () => zoomView(1 / 0.7), 0: () => moveView(0, view.end),
      ArrowRight: () => moveView(view.from + span * 0.2, view.to + span * 0.2),
      ArrowLeft: () => moveView(view.from - span * 0.2, view.to - span * 0.2),
      n: () => step(timeline, 0, 1), p: () => step(timeline, 0, -1), j: () => step(timeline, 1, 0), k: () => step(timeline, -1, 0),
      Enter: () => timeline.cursor && follow(timeline.data.compute[timeline.cursor.rank][timeline.cursor.at + MICROBATCH]),
      Escape: () => { timeline.cursor = null; follow(-1); showTip(null); },
    };
    const command = commands[event.key];
    if (!command || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    command();
  });
}

// Selects another action: the next one of the rank, or the one at the same time on another rank.
function step(timeline, ranks, actions) {
  if (!timeline.data) return;
  const rows = timeline.data.compute, cursor = timeline.cursor;
  const rank = Math.max(0, Math.min(rows.length - 1, cursor ? cursor.rank + ranks : 0)), row = rows[rank];
  if (row.length === 0) return;
  const time = cursor ? rows[cursor.rank][cursor.at + START] : view.from;
  let at = cursor && ranks === 0 ? cursor.at + actions * FIELDS : firstAfter(row, time);
  at = Math.max(0, Math.min(row.length - FIELDS, at));
  timeline.cursor = { rank, at };
  const start = row[at + START], end = start + row[at + LENGTH], span = view.to - view.from;
  if (start < view.from || end > view.to) moveView(start - span * 0.3, start + span * 0.7); else redraw();
  byId("announce").textContent = describe(timeline, { rank, row, at }).replace(/\n/g, ", ");
  const box = timeline.canvas.getBoundingClientRect();
  showTip(describe(timeline, { rank, row, at }), box.left + timeline.x(Math.max(start, view.from)), box.top + timeline.rowTop(rank) + timeline.rowHeight);
}
