// Looks at the live page of a run and at its timeline page in Chromium: light and dark, as wide as a desktop and as a phone.
// usage: page_browser_test.mjs PENSTOCK SCREENSHOTS
import { chromium } from "playwright-core";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [penstock, screenshots] = process.argv.slice(2);
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const widths = { desktop: 1300, phone: 390 };
const problems = [];
const scratch = mkdtempSync(join(tmpdir(), "penstock-pages-"));
const model = ["train", "--layers=4", "--width=32", "--heads=4", "--seq=16", "--batch=8", "--ranks=2", "--sample=0"];

function run(options) {
  const child = spawn(penstock, [...model, ...options], { cwd: scratch, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  const address = new Promise((resolve) => {
    let text = "";
    child.stdout.on("data", (data) => {
      text += data;
      const found = text.match(/the dashboard is at (\S+)/);
      if (found) resolve(found[1]);
    });
    ended.then(() => resolve(""));
  });
  return { child, ended, address };
}

// Problems of the page that is open: images that do not load, and content that is wider than the window.
function faults() {
  const found = [];
  for (const image of document.images) if (!image.complete || image.naturalWidth === 0) found.push("broken image " + image.src.slice(0, 80));
  const width = document.scrollingElement.scrollWidth;
  if (width > innerWidth + 1) found.push(`content is ${width} px wide in a window of ${innerWidth} px`);
  return found;
}

async function look(page, name, label, scheme) {
  const note = (text) => problems.push(`${name} (${label}): ${text}`);
  (await page.evaluate(faults)).forEach(note);
  const [red] = (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number);
  if ((red > 128) !== (scheme === "light")) note(`a background of red ${red}`);
  await page.screenshot({ path: join(screenshots, `${name}-${label}.png`), fullPage: true });
}

async function lookAtBoth(address, timeline) {
  for (const scheme of ["light", "dark"]) {
    for (const [device, width] of Object.entries(widths)) {
      const context = await chromium.launchPersistentContext(join(scratch, scheme + device),
        { executablePath: "/usr/bin/chromium", headless: true, args: flags, colorScheme: scheme, viewport: { width, height: 900 } });
      const page = await context.newPage();
      page.on("pageerror", (error) => problems.push(error.message));
      page.on("console", (message) => { if (message.type() === "error") problems.push(message.text()); });
      const label = `${scheme}-${device}`;
      await page.goto(address);
      await page.waitForSelector("[data-ready=yes]", { timeout: 60000, state: "attached" });
      await page.waitForFunction(() => [...document.images].some((image) => image.complete && image.naturalWidth > 0), null, { timeout: 60000 });
      await look(page, "dashboard", label, scheme);
      await page.goto("file://" + timeline);
      await page.waitForSelector("canvas", { timeout: 60000 });
      await look(page, "timeline", label, scheme);
      await context.close();
    }
  }
}

mkdirSync(screenshots, { recursive: true });
const timeline = join(scratch, "timeline.html");
const code = await run(["--steps=6", "--timeline=" + timeline]).ended;
if (code !== 0) throw new Error("the run for the timeline ended with " + code);
const live = run(["--steps=1000000", "--log-every=50", "--dashboard"]);
try {
  await lookAtBoth(await live.address, timeline);
} finally {
  live.child.kill("SIGTERM");
  await live.ended;
  rmSync(scratch, { recursive: true, force: true });
}
problems.forEach((text) => console.error(text));
console.log(`${problems.length} problems; screenshots in ${screenshots}`);
process.exit(problems.length === 0 ? 0 : 1);
