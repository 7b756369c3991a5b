// Compares the configuration of a checkpoint with that of this run.
#include "train/rank/resume_changes.h"

#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace penstock::tool {
namespace {

// Settings that may change without a message: they do not influence the results, or only by rounding, or the
// run reports them itself (seed).
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
                                           "init-partly",   "prefetch"};
  return names;
}

using NamedValues = std::vector<std::pair<std::string, std::string>>;

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

std::vector<std::string> changed_settings(const std::string& stored, const std::string& current) {
  const NamedValues before = values_of(stored);
  const std::map<std::string, std::string> known(before.begin(), before.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : values_of(current)) {
    const auto found = known.find(name);
    // A setting that the earlier version did not have cannot be compared.
    if (found == known.end() || found->second == value || uncompared().contains(name)) continue;
    if (name == "loss-scale") {
      lines.push_back("--loss-scale has no effect: the run continues with the scale of the checkpoint");
      continue;
    }
    lines.push_back("--" + name + " was " + found->second +
                    " in the run that wrote the checkpoint; this run uses " + value +
                    ", because the command line wins");
  }
  return lines;
}

}  // namespace penstock::tool
