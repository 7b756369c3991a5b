// Numbers with units for the reader.
"use strict";

// What tests read.
const page = { frameMilliseconds: 0 };
window.playground = page;

const byId = (id) => document.getElementById(id);

function rounded(x, digits = 4) { return Number(x.toPrecision(digits)).toString(); }

function timeText(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0";
  if (size < 1e-3) return rounded(seconds * 1e6) + " µs";
  return size < 1 ? rounded(seconds * 1e3) + " ms" : rounded(seconds) + " s";
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; ++unit) bytes /= 1024;
  return rounded(bytes, 3) + " " + units[unit];
}

function shareText(share) { return (100 * share).toFixed(1) + "%"; }

// Creates an element: `element("td", { className: "x" }, "text", child)`.
function element(tag, properties = {}, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

function saveFile({ name, type, text }) {
  const link = element("a", { download: name.replace(/[^\w.-]+/g, "_"), href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
