// Writes results as JSON.
#include "report/results_json.h"

#include <penstock/schedule/generate.h>

namespace penstock::tool {
namespace {

std::string verdict_name(plan::PlanVerdict verdict) {
  switch (verdict) {
    case plan::PlanVerdict::Best:
      return "best";
    case plan::PlanVerdict::Slower:
      return "slower";
    case plan::PlanVerdict::DoesNotFit:
      return "does not fit";
    case plan::PlanVerdict::Impossible:
      return "impossible";
  }
  return "";
}

void write_diagnostics(JsonWriter& out, const Diagnostics& diagnostics) {
  out.begin_array();
  for (const Diagnostic& diagnostic : diagnostics) {
    out.begin_object().field("severity", to_string(diagnostic.severity));
    out.field("where", diagnostic.where).field("message", diagnostic.message).end_object();
  }
  out.end_array();
}

}  // namespace

void write_schedule_list(JsonWriter& out) {
  out.begin_array();
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    out.begin_object().field("name", info.name).field("summary", info.summary);
    out.field("placement", to_string(info.placement));
    out.field("default_stages_per_rank", info.default_stages_per_rank);
    out.key("only_stages_per_rank");
    if (info.only_stages_per_rank) {
      out.value(*info.only_stages_per_rank);
    } else {
      out.null();
    }
    out.field("splits_backward", info.splits_backward).field("has_backward", info.has_backward).end_object();
  }
  out.end_array();
}

void write_simulation(JsonWriter& out, const schedule::Program& program, const plan::Simulation& simulation,
                      double bound) {
  out.begin_object()
      .field("name", program.name())
      .field("ranks", program.ranks())
      .field("stages", program.num_stages());
  out.field("microbatches", program.microbatches()).field("send_mode", to_string(program.send_mode()));
  out.field("step_time", simulation.step_time)
      .field("lower_bound", bound)
      .field("bubble", simulation.bubble)
      .field("own_bubble", simulation.own_bubble);
  out.field("peak_memory", simulation.peak_memory()).key("per_rank").begin_array();
  for (const plan::RankReport& rank : simulation.ranks) {
    out.begin_object()
        .field("busy", rank.busy)
        .field("bubble", rank.bubble)
        .field("own_bubble", rank.own_bubble);
    out.field("peak_memory", rank.peak_memory).field("peak_at", rank.peak_at).end_object();
  }
  out.end_array().key("critical_path").begin_array();
  for (const plan::CriticalAction& entry : simulation.critical_path) {
    out.begin_object().field("rank", entry.rank.value).field("action", to_string(entry.timed.action));
    out.field("start", entry.timed.start).field("end", entry.timed.end).end_object();
  }
  out.end_array().end_object();
}

void write_validation(JsonWriter& out, const schedule::ScheduleFile& file, const Diagnostics& problems,
                      const schedule::Verdict* verdict, bool valid) {
  out.begin_object()
      .field("valid", valid)
      .field("form", file.level == schedule::ProgramLevel::Lowered ? "lowered" : "compute");
  out.field("ranks", static_cast<std::int64_t>(file.ranks.size()))
      .field("stages", file.placement.num_stages());
  out.field("microbatches", file.microbatches).key("diagnostics");
  Diagnostics all = problems;
  if (verdict != nullptr) all.insert(all.end(), verdict->findings.begin(), verdict->findings.end());
  write_diagnostics(out, all);
  if (verdict != nullptr) {
    out.key("modes").begin_object();
    for (const schedule::SendMode mode : schedule::kSendModes) {
      out.key(to_string(mode)).begin_object().field("safe", verdict->safe(mode)).key("diagnostics");
      write_diagnostics(out, verdict->of(mode));
      out.end_object();
    }
    out.end_object().key("peak_in_flight").begin_array();
    for (const int count : verdict->peak_in_flight) out.value(count);
    out.end_array();
  }
  out.end_object();
}

void write_plans(JsonWriter& out, const std::vector<plan::Plan>& plans,
                 const std::vector<std::string>& train_command) {
  out.begin_array();
  for (const plan::Plan& plan : plans) {
    out.begin_object()
        .field("schedule", to_string(plan.schedule))
        .field("stages_per_rank", plan.stages_per_rank);
    out.field("microbatches", plan.microbatches)
        .field("recompute", plan.recompute)
        .field("verdict", verdict_name(plan.verdict));
    out.key("recompute_modules").begin_array();
    for (const std::string& module : plan.recomputed_modules) out.value(module);
    out.end_array();
    if (&plan == plans.data() && !train_command.empty()) {
      out.key("train_command").begin_array();
      for (const std::string& word : train_command) out.value(word);
      out.end_array();
    }
    out.field("why", plan.why).key("first_layer").begin_array();
    for (const int layer : plan.first_layer) out.value(layer);
    out.end_array();
    if (plan.verdict != plan::PlanVerdict::Impossible) {
      out.field("step_time", plan.step_time)
          .field("bubble", plan.bubble)
          .field("peak_memory", plan.peak_memory);
      out.key("time")
          .begin_object()
          .field("compute", plan.shares.compute)
          .field("imbalance", plan.shares.imbalance);
      out.field("bubble", plan.shares.bubble).field("communication", plan.shares.communication).end_object();
    }
    out.end_object();
  }
  out.end_array();
}

}  // namespace penstock::tool
