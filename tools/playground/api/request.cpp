// Reads requests.
#include "api/request.h"

#include "base/io/json_reader.h"
#include "base/option_ranges.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <cmath>

namespace penstock::playground {
namespace {

constexpr std::int64_t kMaxRanks = 1024;
constexpr std::int64_t kMaxStagesPerRank = 64;
constexpr std::int64_t kMaxMicrobatches = 100'000;
constexpr double kMaxBytes = 1e15;

//! Reads the members of one object. A missing or null member leaves the target unchanged.
class Members {
 public:
  Members(const JsonValue& object, std::string where) : object_(object), where_(std::move(where)) {}

  const JsonValue* find(std::string_view name) const { return optional_field(object_, name, where_); }
  std::string at(std::string_view name) const { return where_ + "." + std::string(name); }

  void text(std::string_view name, std::string& target) const {
    if (const JsonValue* value = find(name)) target = string_at(*value, at(name));
  }
  void truth(std::string_view name, bool& target) const {
    if (const JsonValue* value = find(name)) target = bool_at(*value, at(name));
  }
  void count(std::string_view name, int& target, std::int64_t most) const {
    if (const JsonValue* value = find(name)) target = count_of(*value, name, most);
  }
  void counts(std::string_view name, std::vector<int>& target, std::int64_t least, std::int64_t most) const {
    const JsonValue* values = find(name);
    if (values == nullptr) return;
    target.clear();
    for (const JsonValue& value : array_at(*values, at(name)))
      target.push_back(count_of(value, name, most, least));
  }
  void number(std::string_view name, double& target) const {
    if (const JsonValue* value = find(name)) target = number_of(*value, name);
  }
  void bytes(std::string_view name, std::uint64_t& target) const {
    double number = -1;
    this->number(name, number);
    if (number > kMaxBytes) throw UsageError(std::string(name) + " is too large");
    if (number >= 0) target = static_cast<std::uint64_t>(std::llround(number));
  }
  void quantity(Quantity& target) const {
    const JsonValue* value = find(target.name);
    if (value == nullptr) return;
    if (const JsonArray* list = value->array()) {
      for (const JsonValue& item : *list) target.list.push_back(number_of(item, target.name));
    } else {
      target.per_rank = number_of(*value, target.name);
    }
  }

 private:
  int count_of(const JsonValue& value, std::string_view name, std::int64_t most,
               std::int64_t least = 1) const {
    const std::int64_t number = integer_at(value, at(name));
    check_between(number, least, most, name);
    return static_cast<int>(number);
  }
  double number_of(const JsonValue& value, std::string_view name) const {
    const double number = real_at(value, at(name));
    if (!(number >= 0) || !std::isfinite(number))
      throw UsageError(std::string(name) + " must be a number of 0 or more");
    return number;
  }

  const JsonValue& object_;
  std::string where_;
};

void read_model(const Members& costs, Model& model) {
  for (Quantity* quantity : {&model.forward, &model.input, &model.weight, &model.activation_bytes,
                             &model.weight_bytes, &model.parameter_bytes})
    costs.quantity(*quantity);
  costs.bytes("output_bytes", model.output_bytes);
  costs.number("latency", model.link.latency);
  costs.number("bandwidth", model.link.bandwidth);
  costs.number("overlap", model.overlap);
}

void read_source(const Members& members, Source& source) {
  members.text("schedule", source.schedule);
  members.count("stages_per_rank", source.stages_per_rank, kMaxStagesPerRank);
  members.truth("recompute", source.recompute);
  members.counts("first_layer", source.first_layer, 0, kMaxRanks * kMaxStagesPerRank);
  if (members.find("csv") != nullptr) members.text("csv", source.csv.emplace());
}

}  // namespace

Request read_request(std::string_view text) {
  const JsonValue json = parse_json(text, "the request");
  const Members members(json, "request");
  Request request;
  members.text("operation", request.operation);
  members.count("ranks", request.ranks, kMaxRanks);
  members.count("microbatches", request.microbatches, kMaxMicrobatches);
  if (const JsonValue* mode = members.find("send_mode"))
    request.send_mode = schedule::parse_send_mode(string_at(*mode, "request.send_mode"));
  if (members.find("memory_cap") != nullptr) members.bytes("memory_cap", request.memory_cap.emplace());
  if (const JsonValue* costs = members.find("costs")) read_model({*costs, "request.costs"}, request.model);
  if (const JsonValue* source = members.find("source"))
    read_source({*source, "request.source"}, request.source);
  members.text("format", request.format);
  members.counts("stages_per_rank", request.stages_per_rank, 1, kMaxStagesPerRank);
  members.truth("recomputation", request.recomputation);
  return request;
}

}  // namespace penstock::playground
