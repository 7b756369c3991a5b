// Strips: rows of boxes that a timeline draws. A strip with many boxes per pixel becomes one row of an image, in which a
// pixel has the mean color of the boxes it covers. Zoomed out, the colors come from a pyramid of averages, so that the
// cost of a frame does not depend on the number of boxes.
"use strict";

// A box is six numbers: kind, stage, microbatch, start, duration, flags.
const FIELDS = 6, KIND = 0, STAGE = 1, MICROBATCH = 2, START = 3, LENGTH = 4, FLAGS = 5;
const HALVES = 3, TOP_HALF = 1, BOTTOM_HALF = 2, CRITICAL = 4, LANE = 8;

// The first box that ends after `time`. Boxes are sorted by start; only the halves of an overlap coincide.
function firstAfter(row, time) {
  let low = 0, high = row.length / FIELDS;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle * FIELDS + START] + row[middle * FIELDS + LENGTH] <= time) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 2) * FIELDS;
}

function lastBefore(samples, time) {
  let low = 0, high = samples.length / 2;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle * 2] <= time) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 1) * 2;
}

// Cuts the numbers of an answer into rows: per rank the computations, the lanes of communication, the memory samples.
function splitBoxes(layout, numbers) {
  let at = 0;
  const take = (counts, width) => counts.map((count) => numbers.subarray(at, (at += count * width)));
  const compute = take(layout.compute, FIELDS), communication = take(layout.communication, FIELDS);
  const memory = take(layout.memory, 2);
  return { compute, lanes: communication.map(splitLanes), memory, overlaps: compute.some(hasHalves) };
}

function hasHalves(row) {
  for (let i = FLAGS; i < row.length; i += FIELDS) if (row[i] & HALVES) return true;
  return false;
}

function splitLanes(row) {
  const counts = [];
  for (let i = FLAGS; i < row.length; i += FIELDS) counts[row[i] >> 3] = (counts[row[i] >> 3] || 0) + 1;
  const lanes = Array.from(counts, (count) => new Float64Array((count || 0) * FIELDS)), next = lanes.map(() => 0);
  for (let i = 0; i < row.length; i += FIELDS) {
    const lane = row[i + FLAGS] >> 3;
    lanes[lane].set(row.subarray(i, i + FIELDS), next[lane]);
    next[lane] += FIELDS;
  }
  return lanes;
}

// Sums of colors per pixel column of one strip.
class ColumnColors {
  constructor(width) {
    this.width = width;
    this.sums = new Float32Array(width * 4);  // red, green, blue, covered share
  }

  clear() { this.sums.fill(0); }

  add(left, right, color) {
    left = Math.max(0, left);
    right = Math.min(this.width, right);
    if (right <= left) return;
    const first = Math.floor(left), last = Math.min(this.width - 1, Math.floor(right));
    if (first === last) { this.cover(first, right - left, color); return; }
    this.cover(first, first + 1 - left, color);
    for (let column = first + 1; column < last; ++column) this.cover(column, 1, color);
    this.cover(last, right - last, color);
  }

  cover(column, share, color) {
    const i = column * 4, sums = this.sums;
    sums[i] += share * color[0];
    sums[i + 1] += share * color[1];
    sums[i + 2] += share * color[2];
    sums[i + 3] += share;
  }

  // Writes the row of an image; `ground` shows where nothing is.
  write(pixels, row, ground) {
    const sums = this.sums;
    for (let i = 0, at = row * this.width * 4; i < sums.length; i += 4, at += 4) {
      const rest = Math.max(0, 1 - sums[i + 3]);
      pixels[at] = sums[i] + rest * ground[0];
      pixels[at + 1] = sums[i + 1] + rest * ground[1];
      pixels[at + 2] = sums[i + 2] + rest * ground[2];
      pixels[at + 3] = 255;
    }
  }
}

// Averages of a strip over the entire step, with 4096, 2048, … bins.
class Pyramid {
  static BINS = 4096;
  static accumulator = new ColumnColors(Pyramid.BINS);

  // `fill` adds the boxes to the columns, which cover the time from 0 to `end`.
  constructor(end, fill, ground) {
    this.end = end;
    Pyramid.accumulator.clear();
    fill(Pyramid.accumulator, 0, Pyramid.BINS / end);
    let level = new Uint8ClampedArray(Pyramid.BINS * 4);
    Pyramid.accumulator.write(level, 0, ground);
    this.levels = [];
    for (; level.length > 64; level = Pyramid.halve(level)) this.levels.push(level);
  }

  static halve(level) {
    const half = new Uint8ClampedArray(level.length / 2);
    for (let i = 0, from = 0; i < half.length; i += 4, from += 8) {
      for (let channel = 0; channel < 4; ++channel) half[i + channel] = (level[from + channel] + level[from + 4 + channel]) / 2;
    }
    return half;
  }

  // Whether a bin is at most about as wide as a column of `duration`.
  static covers(end, duration) { return duration * Pyramid.BINS >= 0.7 * end; }

  // Writes the row of an image whose columns start at `from` and last `duration`; `beyond` shows after the end.
  write(pixels, row, width, from, duration, beyond) {
    const depth = Math.round(Math.log2((duration * Pyramid.BINS) / this.end));
    const level = this.levels[Math.max(0, Math.min(this.levels.length - 1, depth))], bins = level.length / 4;
    const scale = (duration * bins) / this.end, first = (from * bins) / this.end;
    for (let column = 0, at = row * width * 4; column < width; ++column, at += 4) {
      const bin = Math.floor(first + (column + 0.5) * scale), i = bin * 4, inside = bin < bins;
      pixels[at] = inside ? level[i] : beyond[0];
      pixels[at + 1] = inside ? level[i + 1] : beyond[1];
      pixels[at + 2] = inside ? level[i + 2] : beyond[2];
      pixels[at + 3] = 255;
    }
  }
}
