// Expands the arguments of `simulate` into schedules.
#include "config/compared.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "plan/resize.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>

#include <charconv>
#include <utility>

namespace penstock::tool {
namespace {

constexpr int kStagesPerRankOfAll = 2;  //!< of schedules that support several; one stage would be 1F1B again

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

//! Splits `NAME:V` into a name and its stages per rank. Other texts are names or files.
ComparedSchedule parse(const std::string& text, const ShapeOptions& shape) {
  ComparedSchedule result{text, shape};
  const std::size_t colon = text.rfind(':');
  if (is_file(text) || colon == std::string::npos) return result;
  result.name_or_file = text.substr(0, colon);
  result.shape.stages_per_rank = whole_number(std::string_view(text).substr(colon + 1));
  if (!result.shape.stages_per_rank || *result.shape.stages_per_rank < 1)
    throw UsageError(quote(text) + " has no number of stages per rank after the colon", {},
                     "write NAME:V, such as Interleaved1F1B:2");
  return result;
}

void add_all(std::vector<ComparedSchedule>& result, const ComparedSchedule& all) {
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    ComparedSchedule one{std::string(info.name), all.shape, true};
    if (info.only_stages_per_rank) {
      one.shape.stages_per_rank = *info.only_stages_per_rank;
    } else {
      one.shape.stages_per_rank = all.shape.stages_per_rank.value_or(kStagesPerRankOfAll);
    }
    result.push_back(std::move(one));
  }
}

}  // namespace

std::vector<std::int64_t> microbatch_counts(const std::vector<std::string>& texts) {
  std::vector<std::int64_t> counts;
  for (const std::string& text : texts) {
    const auto count = whole_number(text);
    if (!count)
      throw UsageError("--microbatches " + quote(text) + " is not an integer", {},
                       "give one or more counts: --microbatches 8,16");
    counts.push_back(count_option(*count, "--microbatches", schedule::kMaxMicrobatches));
  }
  return counts;
}

std::vector<ComparedSchedule> compared_schedules(const std::vector<std::string>& names,
                                                 const std::vector<std::int64_t>& microbatches,
                                                 const ShapeOptions& shape) {
  std::vector<ComparedSchedule> given;
  for (const std::string& name : names) {
    ComparedSchedule one = parse(name, shape);
    if (to_lower(one.name_or_file) != "all") {
      given.push_back(std::move(one));
      continue;
    }
    // An invalid number of ranks is an error, not a reason to leave out every schedule.
    if (shape.ranks) count_option(*shape.ranks, "--ranks");
    if (!shape.ranks || microbatches.empty())
      throw UsageError("all needs --ranks and --microbatches", {}, "add both, or name the schedules");
    add_all(given, one);
  }
  std::vector<ComparedSchedule> result;
  for (const ComparedSchedule& one : given) {
    if (microbatches.empty() || (is_file(one.name_or_file) && microbatches.size() > 1)) {
      result.push_back(one);
      continue;
    }
    for (const std::int64_t count : microbatches) {
      result.push_back(one);
      result.back().shape.microbatches = count;
    }
  }
  return result;
}

CostFile resized(CostFile file, double ratio) {
  const double overhead = file.shared.overhead;
  file.each = plan::resize(file.each, ratio, overhead);
  for (plan::StageCosts& stage : file.stages) stage = plan::resize(stage, ratio, overhead);
  for (plan::Layer& layer : file.layers) layer.costs = plan::resize(layer.costs, ratio, overhead);
  return file;
}

}  // namespace penstock::tool
