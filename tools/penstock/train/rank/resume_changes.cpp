// Compares the configuration of a checkpoint with that of this run.
#include "train/rank/resume_changes.h"

#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace penstock::tool {
namespace {

// Settings that may change without a message: they do not influence the results, or only by rounding, or the
// run reports them itself (seed), or `note_about` does.
const std::set<std::string>& uncompared() {
  static const std::set<std::string> names{"ranks",         "pp",           "tp",
                                           "tp-plan",       "dp",           "sharding",
                                           "schedule",      "stages",       "stages-per-rank",
                                           "microbatches",  "split",        "balance",
                                           "backend",       "device",       "recompute",
                                           "seed",          "eval-every",   "eval-batches",
                                           "on-nan",        "checkpoint",   "checkpoint-every",
                                           "resume",        "timeout",      "checkpoint-keep",
                                           "resume-partly", "max-restarts", "on-storage-error",
                                           "log-json",      "log-csv",      "tensorboard",
                                           "log-every",     "failure-log",  "timeline",
                                           "trace",         "profile",      "output",
                                           "sample",        "prompt",       "dashboard",
                                           "steps",         "init",         "init-rename",
                                           "init-partly",   "prefetch",     "cuts"};
  return names;
}

using NamedValues = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kWriter = " in the run that wrote the checkpoint; this run uses ";

// Whether the learning rates of a schedule depend on the total number of steps.
bool depends_on_steps(const std::string& rate_schedule) {
  return rate_schedule.size() > 2 && rate_schedule != "\"constant\"" && rate_schedule != "\"step\"";
}

// A message about a setting whose change has another meaning than that of most; empty if there is none.
std::string note_about(const std::string& name, const std::string& before, const std::string& now,
                       const std::map<std::string, std::string>& current) {
  const auto value_of = [&](const std::string& other) {
    const auto found = current.find(other);
    return found == current.end() ? std::string() : found->second;
  };
  if (name == "loss-scale")
    return "--loss-scale has no effect: the run continues with the scale of the checkpoint";
  const std::string rates = value_of("lr-schedule");
  if (name == "steps" && depends_on_steps(rates))
    return "--steps was " + before + kWriter + now + ", which changes the learning rates of --lr-schedule " +
           rates.substr(1, rates.size() - 2);
  // Checkpoints of adapters do not contain their base.
  if (name == "init" && now != "\"\"" && value_of("lora") == "[]")
    return "--init has no effect: the run continues with the weights of the checkpoint";
  return "";
}

NamedValues values_of(const std::string& config) {
  NamedValues values;
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (equals != std::string::npos) values.emplace_back(line.substr(0, equals), line.substr(equals + 3));
  }
  return values;
}

}  // namespace

std::vector<std::string> changed_settings(const std::string& stored, const std::string& current,
                                          const std::set<std::string>& given) {
  const NamedValues before = values_of(stored), now = values_of(current);
  const std::map<std::string, std::string> known(before.begin(), before.end()), all(now.begin(), now.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : now) {
    const auto found = known.find(name);
    // A setting that the earlier version did not have cannot be compared.
    if (found == known.end() || found->second == value) continue;
    const std::string note = note_about(name, found->second, value, all);
    if (!note.empty()) lines.push_back(note);
    if (!note.empty() || uncompared().contains(name)) continue;
    lines.push_back("--" + name + " was " + found->second + kWriter + value +
                    (given.contains(name) ? ", because the command line wins"
                                          : ", the default; give --" + name + " to keep the old value"));
  }
  return lines;
}

}  // namespace penstock::tool
