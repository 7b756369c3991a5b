// Fuzz targets for the torch-free half and the tool: schedules, costs and settings.
#include "cli/toml_text.h"
#include "config/cost_file.h"
#include "config/settings.h"
#include "fuzz/targets.h"

#include <penstock/base/error.h>
#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <array>
#include <cmath>

namespace penstock::fuzz {
namespace {

// Accepted costs give a simulation with finite times.
const char* check_costs(std::string_view bytes) {
  const tool::CostFile file = tool::read_cost_text(std::string(bytes), "fuzz");
  if (file.layers.size() > 64 || file.stages.size() > 64) return nullptr;
  const int stages = file.stages.empty() ? 3 : static_cast<int>(file.stages.size());
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {stages, 1, 2}), schedule::SendMode::Buffered);
  const plan::Simulation result =
      simulate(program, tool::costs_for(file, program.placement().stage_to_rank()));
  if (!std::isfinite(result.step_time) || result.step_time < 0) return "a step takes no finite time";
  return nullptr;
}

const char* check_config(std::string_view bytes) {
  for (const tool::ConfigValue& value : tool::read_config_text(std::string(bytes), "fuzz"))
    if (value.where.empty()) return "a setting without a place";
  return nullptr;
}

// toml++ builds the exception of a syntax error in a noexcept constructor that allocates. If memory runs out
// there, the process terminates, which our code cannot prevent. Therefore allocations fail only for documents
// that toml++ accepts.
bool is_toml(std::string_view bytes) {
  try {
    tool::parse_toml(std::string(bytes));
  } catch (const toml::parse_error&) {
    return false;
  } catch (const ParseError&) {
  }
  return true;
}

std::vector<std::string> cost_seeds() {
  return {file_content(std::string(PENSTOCK_SOURCE_DIR) + "/examples/costs.toml")};
}

constexpr std::array kTargets = {
    Target{"csv", check_csv, nullptr,
           "0F0 1B0 0I0 0W0 SEND_F RECV_B ( ) ; OVERLAP_F_B , \n UNSHARD RESHARD REDUCE_GRAD \xff 2"},
    Target{"costs", check_costs, cost_seeds,
           "[ ] [[ ]] = . { } , \" ' # \n each stages layers links skips forward backward bandwidth count "
           "from to 1e308 "
           "-1 inf nan 0.5 true activation_bytes 16GiB 99999999999999999999 1979-05-27T07:32:00Z \"\"\" "
           "\\u0000",
           is_toml},
    Target{"config", check_config, nullptr,
           "[ ] [[ ]] = . { } , \" ' # \n lr steps split model 1e-320 -0 inf nan true 0x7f 1979-05-27 \"\"\" "
           "''' \\U0010ffff",
           is_toml},
};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

}  // namespace penstock::fuzz
