// Reads the dumps of several ranks side by side: who did not join which collective, which receive got no send.
#include <penstock/base/text.h>
#include <penstock/comm/flight_recorder.h>

#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace penstock {
namespace {

struct Collective {
  std::string op;
  std::vector<int> waiting;
};

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

}  // namespace

std::vector<std::string> explain_flight(const std::vector<std::string>& dumps, const std::vector<Rank>& silent) {
  // By group: the last collective that each rank has entered, and the collectives that are still waited in.
  std::map<std::string, std::map<int, std::uint64_t>> entered;
  std::map<std::pair<std::string, std::uint64_t>, Collective> unfinished;
  std::vector<std::string> findings;
  for (const std::string& text : dumps) {
    const auto dump = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!dump.is_object() || !dump.contains("records") || !dump["records"].is_array()) {
      findings.emplace_back("a dump could not be read");
      continue;
    }
    const int rank = dump.value("rank", -1);
    for (const auto& record : dump["records"]) {
      const std::string group = record.value("group", "");
      const std::uint64_t sequence = record.value("sequence", std::uint64_t{0});
      const std::string op = record.value("op", "");
      const bool open = record.value("finished", 0.0) == 0.0 || record.value("failed", false);
      if (sequence > 0) {
        std::uint64_t& last = entered[group][rank];
        last = std::max(last, sequence);
        if (open) {
          Collective& collective = unfinished[{group, sequence}];
          collective.op = op;
          collective.waiting.push_back(rank);
        }
      } else if (open) {
        findings.push_back("rank " + std::to_string(rank) + ": " + op + (op == "recv" ? " from " : " to ") + "rank " +
                           std::to_string(record.value("peer", -1)) + " (tag " + std::to_string(record.value("tag", 0)) +
                           ", " + bytes_text(record.value("bytes", std::uint64_t{0})) + ", group " + group +
                           ") was not completed");
      }
    }
  }
  for (const auto& [key, collective] : unfinished) {
    std::vector<int> missing;
    for (const auto& [rank, last] : entered[key.first]) {
      if (last < key.second) missing.push_back(rank);
    }
    const std::string what = collective.op + " number " + std::to_string(key.second) + " on group " + key.first;
    if (!missing.empty()) {
      findings.push_back(ranks_text(missing) + " did not join " + what + ", in which " +
                         ranks_text(collective.waiting) + " waited");
    } else {
      findings.push_back(ranks_text(collective.waiting) + " waited in " + what);
    }
  }
  if (!silent.empty()) {
    std::vector<int> ranks;
    for (const Rank rank : silent) ranks.push_back(rank.value);
    findings.push_back(ranks_text(ranks) + " left no record (killed, or never joined)");
  }
  return findings;
}

}  // namespace penstock
