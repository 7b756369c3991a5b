// Starts Chromium and the tool for the test of the playground.
import { chromium } from "playwright-core";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

export const folder = mkdtempSync(join(tmpdir(), "penstock-playground-"));

// Opens an address in a new browser and waits until its body has the class `state`. `problems` collects errors of the page and
// requests that leave it.
export async function openPage(address, options = {}, state = "ready") {
  const profile = mkdtempSync(join(folder, "profile-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: "/usr/bin/chromium", headless: true, args: flags, viewport: { width: 1300, height: 900 }, acceptDownloads: true, ...options,
  });
  const page = context.pages()[0], problems = [];
  page.on("console", (message) => { if (message.type() === "error" || message.type() === "warning") problems.push(message.text()); });
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("request", (request) => {
    const url = request.url();
    if (url.split("#")[0] !== address.split("#")[0] && !/^(blob|data):/.test(url)) problems.push("request for " + url);
  });
  await page.goto(address);
  await page.waitForSelector("body." + state, { timeout: 120000, state: "attached" });
  return { page, problems, close: () => context.close() };
}

// Runs `penstock` and returns its standard output, also if the answer is no.
export function runTool(tool, ...words) {
  try {
    return execFileSync(tool, words, { encoding: "utf8", maxBuffer: 1 << 30, stdio: ["ignore", "pipe", "pipe"] });
  } catch (error) {
    if (error.status === 1) return error.stdout;
    throw new Error(error.stderr || error.message);
  }
}

// Starts `penstock studio` and returns its address and a function that ends it and returns its exit code.
export async function startStudio(tool, file) {
  const child = spawn(tool, ["studio", "--page", file, "--port", "0", "--no-open", "--json"], { stdio: ["ignore", "pipe", "inherit"] });
  const line = await new Promise((resolve) => child.stdout.once("data", (data) => resolve(String(data))));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  return { address: JSON.parse(line).address, stop: () => { child.kill("SIGINT"); return ended; } };
}

export function removeFolder() { rmSync(folder, { recursive: true, force: true }); }
