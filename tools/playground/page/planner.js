// The planner: every schedule, number of stages and partition, ranked by predicted time under the memory cap.
"use strict";

const SHOWN_PLANS = 40;

class Planner {
  constructor(engine, panels) {
    this.engine = engine;
    this.panels = panels;
    byId("plan-start").addEventListener("click", () => this.start());
    byId("plan-stop").addEventListener("click", () => this.engine.stop());
  }

  async start() {
    const began = performance.now();
    let request;
    try {
      const stages = byId("plan-stages").value.split(/[\s,]+/).filter(Boolean).map(Number);
      request = { ...commonRequest(), operation: "plan", stages_per_rank: stages, recomputation: byId("plan-recompute").checked };
    } catch (error) {
      this.say(error.message);
      return;
    }
    this.setBusy(true);
    const clock = setInterval(() => this.say(`searching for ${((performance.now() - began) / 1000).toFixed(0)} s …`), 1000);
    this.say("searching …");
    const answered = await this.engine.ask("plan", request);
    clearInterval(clock);
    this.setBusy(false);
    if (!answered) { this.say("stopped"); return; }
    const { error, plans, layers } = answered.answer;
    if (error) { this.say(`${error.message} ${error.hint}`); return; }
    this.plans = plans;
    this.say(`${plans.length} plans for ${layers} layers in ${rounded(answered.milliseconds / 1000, 2)} s`);
    this.show(plans);
  }

  setBusy(busy) {
    byId("plan-start").disabled = busy;
    byId("plan-stop").hidden = !busy;
  }
  say(text) { byId("plan-status").textContent = text; }

  show(plans) {
    byId("plan-table").hidden = false;
    byId("plan-rows").replaceChildren(...plans.slice(0, SHOWN_PLANS).map((plan) => this.row(plan)));
    byId("plan-more").textContent = plans.length > SHOWN_PLANS ? `… and ${plans.length - SHOWN_PLANS} more` : "";
  }

  row(plan) {
    const ran = plan.verdict !== "impossible";
    const cells = [plan.schedule, plan.stages_per_rank, plan.recompute ? "yes" : "no", ran ? timeText(plan.step_time) : "",
      ran ? shareText(plan.bubble) : "", ran ? bytesText(plan.peak_memory) : "", plan.verdict === "best" ? "best" : plan.why];
    const buttons = element("td", { className: "buttons" });
    if (ran) {
      for (const panel of this.panels) {
        const button = element("button", { type: "button", title: `show this plan as timeline ${panel.name.toUpperCase()}` }, panel.name.toUpperCase());
        button.addEventListener("click", () => panel.choose(plan.schedule, String(plan.stages_per_rank), plan.recompute ? "1" : "", plan.first_layer.join(".")));
        buttons.append(button);
      }
    }
    return element("tr", { className: plan.verdict.replace(/ /g, "-") }, buttons, ...cells.map((text) => element("td", {}, String(text))));
  }
}
