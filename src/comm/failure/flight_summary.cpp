// Compares the dumps of several ranks: which rank did not join which collective, and which sends and receives
// did not complete.
#include "comm/failure/flight_summary.h"

#include "base/io/json_reader.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace penstock::comm {
namespace {

struct Collective {
  std::string op;
  std::vector<int> waiting;
};

//! One operation in the dump of a rank. Missing fields keep their defaults.
struct DumpedRecord {
  std::string op, group;
  std::uint64_t sequence = 0;
  int peer = -1;
  int tag = 0;
  std::uint64_t bytes = 0;
  bool open = true;  //!< not finished, or failed
};

struct Dump {
  int rank = -1;
  std::vector<DumpedRecord> records;
};

//! Typed access to one object of a dump.
class DumpedFields {
 public:
  DumpedFields(const JsonValue& object, const std::string& where) : object_(object), where_(where) {}

  std::string text(const char* name) const {
    const JsonValue* const value = optional_field(object_, name, where_);
    return value != nullptr ? string_at(*value, where_) : "";
  }
  int integer(const char* name, int fallback) const {
    const JsonValue* const value = optional_field(object_, name, where_);
    if (value == nullptr) return fallback;
    const std::int64_t number = integer_at(*value, where_);
    if (!std::in_range<int>(number)) fail_at(where_, "the field " + quote(name) + " is out of range");
    return static_cast<int>(number);
  }
  std::uint64_t count(const char* name) const {
    const JsonValue* const value = optional_field(object_, name, where_);
    if (value == nullptr) return 0;
    if (!value->unsigned_integer())
      fail_at(where_, "the field " + quote(name) + " is not a non-negative integer");
    return *value->unsigned_integer();
  }
  bool open() const {
    const JsonValue* const finished = optional_field(object_, "finished", where_);
    const JsonValue* const failed = optional_field(object_, "failed", where_);
    return finished == nullptr || real_at(*finished, where_) == 0.0 ||
           (failed != nullptr && bool_at(*failed, where_));
  }

 private:
  const JsonValue& object_;
  const std::string& where_;
};

Dump parse_dump(const std::string& text, const std::string& where) {
  const JsonValue json = parse_json(text, where);
  Dump dump{.rank = DumpedFields(json, where).integer("rank", -1)};
  for (const JsonValue& record : array_at(field(json, "records", where), where)) {
    const DumpedFields fields(record, where);
    dump.records.push_back({.op = fields.text("op"),
                            .group = fields.text("group"),
                            .sequence = fields.count("sequence"),
                            .peer = fields.integer("peer", -1),
                            .tag = fields.integer("tag", 0),
                            .bytes = fields.count("bytes"),
                            .open = fields.open()});
  }
  return dump;
}

}  // namespace

std::vector<std::string> explain_flight(const std::vector<std::string>& dumps,
                                        const std::vector<Rank>& silent) {
  // Per group: the last collective that each rank entered, and the collectives that did not complete.
  std::map<std::string, std::map<int, std::uint64_t>> entered;
  std::map<std::pair<std::string, std::uint64_t>, Collective> unfinished;
  std::vector<std::string> findings;
  for (std::size_t i = 0; i < dumps.size(); ++i) {
    Dump dump;
    try {
      dump = parse_dump(dumps[i],
                        str_cat("flight recorder dump ", i + 1, " of ", dumps.size(), " could not be read"));
    } catch (const ParseError& error) {
      findings.push_back(error.message());
      continue;
    }
    for (const DumpedRecord& record : dump.records) {
      if (record.sequence > 0) {
        std::uint64_t& last = entered[record.group][dump.rank];
        last = std::max(last, record.sequence);
        if (record.open) {
          Collective& collective = unfinished[{record.group, record.sequence}];
          collective.op = record.op;
          collective.waiting.push_back(dump.rank);
        }
      } else if (record.open) {
        findings.push_back(str_cat("rank ", dump.rank, ": ", record.op,
                                   (record.op == "recv" ? " from " : " to "), "rank ", record.peer, " (tag ",
                                   record.tag, ", ", format_bytes(record.bytes), ", group ", record.group,
                                   ") did not complete"));
      }
    }
  }
  for (const auto& [key, collective] : unfinished) {
    std::vector<int> missing;
    for (const auto& [rank, last] : entered[key.first]) {
      if (last < key.second) missing.push_back(rank);
    }
    const std::string what = str_cat(collective.op, " number ", key.second, " on group ", key.first);
    if (!missing.empty()) {
      findings.push_back(numbered("rank", missing) + " did not join " + what + ", in which " +
                         numbered("rank", collective.waiting) + " waited");
    } else {
      findings.push_back(numbered("rank", collective.waiting) + " waited in " + what);
    }
  }
  if (!silent.empty()) {
    std::vector<int> ranks;
    for (const Rank rank : silent) ranks.push_back(rank.value);
    findings.push_back(numbered("rank", ranks) + " left no record (killed, or never joined)");
  }
  return findings;
}

}  // namespace penstock::comm
