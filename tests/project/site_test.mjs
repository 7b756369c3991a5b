// Looks at every page of the documentation site in Chromium: light and dark, as wide as a desktop and as a phone.
// usage: site_test.mjs SITE SCREENSHOTS
import { chromium } from "playwright-core";
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";

const [site, screenshots] = process.argv.slice(2);
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const types = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml" };
const widths = { desktop: 1300, phone: 390 };
const problems = [];

const server = createServer((request, response) => {
  if (request.url === "/favicon.ico") return void response.writeHead(204).end();  // pages without an icon ask for it, at some time
  const path = join(site, decodeURIComponent(new URL(request.url, "http://localhost").pathname));
  if (!existsSync(path)) return void response.writeHead(404).end();
  response.writeHead(200, { "Content-Type": types[extname(path)] ?? "application/octet-stream" });
  createReadStream(path).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const origin = "http://127.0.0.1:" + server.address().port;

// Problems of the page that is open: broken images, and content that is wider than the window.
function faults() {
  const found = [];
  for (const image of document.images) if (image.complete && image.naturalWidth === 0) found.push("broken image " + image.src);
  const width = document.scrollingElement.scrollWidth;
  if (width > innerWidth + 1) found.push(`content is ${width} px wide in a window of ${innerWidth} px`);
  return found;
}

async function look(page, name, label) {
  const note = (text) => problems.push(`${name} (${label}): ${text}`);
  const onConsole = (message) => { if (message.type() === "error") note(message.text()); };
  const onRequest = (request) => { if (!request.url().startsWith(origin) && !/^(blob|data):/.test(request.url())) note("request for " + request.url()); };
  const onError = (error) => note(error.message);
  page.on("console", onConsole).on("request", onRequest).on("pageerror", onError);
  await page.goto(`${origin}/${name}`, { waitUntil: "load" });
  (await page.evaluate(faults)).forEach(note);
  if (!name.startsWith("api/")) await page.screenshot({ path: join(screenshots, `${name.replaceAll("/", "-")}-${label}.png`) });
  page.off("console", onConsole).off("request", onRequest).off("pageerror", onError);
}

// The colors of light and dark pages must differ, and the search must find a page.
async function check(page, scheme) {
  const [red] = (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number);
  if ((red > 128) !== (scheme === "light")) problems.push(`the ${scheme} page has a background of red ${red}`);
  // The search reads its field when a key is pressed, once its index is there.
  await page.click("input.md-search__input");
  await page.waitForFunction(() => !document.querySelector(".md-search-result__meta").textContent.includes("Initializing"), null, { timeout: 120000 });
  await page.locator("input.md-search__input").pressSequentially("zero bubble");
  await page.waitForSelector(".md-search-result__item", { timeout: 120000, state: "attached" });
}

mkdirSync(screenshots, { recursive: true });
const pages = readdirSync(site, { recursive: true }).map(String).filter((name) => name.endsWith(".html") && (!name.startsWith("api/") || name === "api/index.html"));
const profile = mkdtempSync(join(tmpdir(), "penstock-site-"));
for (const scheme of ["light", "dark"]) {
  for (const [device, width] of Object.entries(widths)) {
    const context = await chromium.launchPersistentContext(join(profile, scheme + device),
      { executablePath: "/usr/bin/chromium", headless: true, args: flags, colorScheme: scheme, viewport: { width, height: 900 } });
    const page = context.pages()[0];
    for (const name of pages) await look(page, name, `${scheme}-${device}`);
    await page.goto(origin + "/index.html");
    if (device === "desktop") await check(page, scheme);
    await context.close();
  }
}
server.close();
rmSync(profile, { recursive: true, force: true });
problems.forEach((line) => console.error(line));
console.log(`${pages.length} pages, ${problems.length} problems; the screenshots are in ${screenshots}`);
process.exit(problems.length || pages.length < 30 ? 1 : 0);
