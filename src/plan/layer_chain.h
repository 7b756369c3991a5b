// Times and bytes of ranges of layers.
#pragma once

#include <penstock/plan/costs.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace penstock::plan {

//! Prefix sums over the layers: time and bytes of a range of layers take two lookups.
class Chain {
 public:
  explicit Chain(std::span<const Layer> layers) : time_{0}, resident_{0}, in_flight_{0} {
    std::uint64_t previous_output = 0;
    for (const auto& [name, costs] : layers) {
      time_.push_back(time_.back() + costs.total_time());
      resident_.push_back(resident_.back() + costs.resident_bytes());
      in_flight_.push_back(in_flight_.back() + costs.activation_bytes + costs.weight_bytes);
      input_.push_back(costs.input_bytes != 0 ? costs.input_bytes : previous_output);
      previous_output = costs.output_bytes;
      recompute_ = costs.recompute;
    }
  }

  int size() const { return static_cast<int>(time_.size()) - 1; }
  double time(int from, int to) const { return at(time_, to) - at(time_, from); }

  //! With recomputation, microbatches in flight keep only their input; one of them has all activations.
  std::uint64_t memory(int from, int to, int in_flight) const {
    const std::uint64_t resident = at(resident_, to) - at(resident_, from);
    const std::uint64_t full = at(in_flight_, to) - at(in_flight_, from);
    const auto count = static_cast<std::uint64_t>(in_flight);
    return recompute_ ? resident + at(input_, from) * count + full : resident + full * count;
  }

 private:
  template <class T>
  static T at(const std::vector<T>& values, int i) {
    return values[static_cast<std::size_t>(i)];
  }

  std::vector<double> time_;
  std::vector<std::uint64_t> resident_, in_flight_, input_;
  bool recompute_ = false;
};

//! The times of all ranges, sorted, without duplicates.
inline std::vector<double> run_times(const Chain& chain) {
  std::vector<double> times;
  for (int from = 0; from < chain.size(); ++from) {
    for (int to = from + 1; to <= chain.size(); ++to) times.push_back(chain.time(from, to));
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  return times;
}

//! The least time of a range above `bound`.
inline double next_run_time(const Chain& chain, double bound) {
  double next = std::numeric_limits<double>::infinity();
  for (int from = 0, to = 1; from < chain.size(); ++from) {
    to = std::max(to, from + 1);
    while (to < chain.size() && chain.time(from, to) <= bound) ++to;
    if (const double time = chain.time(from, to); time > bound) next = std::min(next, time);
  }
  return next;
}

}  // namespace penstock::plan
