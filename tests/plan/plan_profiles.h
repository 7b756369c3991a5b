// Random pipelines with uneven stages, link costs and sometimes a memory cap. Each seed gives one profile.
#pragma once

#include <penstock/plan/costs.h>

#include <algorithm>
#include <optional>
#include <random>

namespace penstock::plan {

struct Profile {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;
  Costs costs;
  std::optional<std::uint64_t> cap;

  int num_stages() const { return ranks * stages_per_rank; }
};

inline Profile random_profile(unsigned seed) {
  std::mt19937 random(seed);
  const auto integer = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  const auto real = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random()) / 4294967295.0;
  };
  Profile profile;
  profile.ranks = integer(2, 8);
  profile.stages_per_rank = integer(1, 2);
  profile.microbatches = profile.ranks * integer(1, 3) + integer(0, 2) * (profile.stages_per_rank == 1);
  for (int s = 0; s < profile.num_stages(); ++s) {
    StageCosts stage;
    stage.forward = real(0.6, 1.4);
    stage.input = stage.forward * real(0.8, 1.3);
    stage.weight = stage.forward * real(0.6, 1.1);
    stage.activation_bytes = static_cast<std::uint64_t>(integer(80, 120));
    stage.weight_bytes = static_cast<std::uint64_t>(integer(0, 40));
    stage.output_bytes = 100;
    stage.parameter_bytes = 50;
    profile.costs.stages.push_back(stage);
  }
  profile.costs.link = {real(0, 0.1), 100 / real(0.02, 0.2)};
  if (random() % 2 == 0) {
    // Between the needs of V-Min and 1F1B, and somewhat above.
    const double in_flight = real(0.4, 1.4) * profile.ranks + 1;
    profile.cap = static_cast<std::uint64_t>(profile.stages_per_rank * (50 + 140 * in_flight));
  }
  return profile;
}

}  // namespace penstock::plan
