// The time of the slowest stage is the time of some range of layers, so a binary search over these times
// finds the exact minimum. For each bound, dynamic programming over the ranks minimizes the memory of the
// fullest rank. The stages of a rank are not adjacent in the chain, so the state has one position per stage
// ("chunk"); the search enumerates the boundaries between chunks.
#include "base/text.h"
#include "plan/layer_chain.h"
#include "plan/partition_search.h"

#include <penstock/base/error.h>
#include <penstock/plan/partition.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <unordered_map>

namespace penstock::plan {
namespace {

constexpr std::uint64_t kNoMemoryBound = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMaxTransitions = 10'000'000;  //!< transitions per call, well under a second
//! Longer chains have too many ranges to list, and their exact search over memory exceeds the limit above.
constexpr int kMaxListedLayers = 2048;

//! One stage per rank: `first + r` on rank r, or `last - r` if the chunk is descending (second half of a V).
struct Chunk {
  int first = 0;
  bool descending = false;
};

class BottleneckSearch {
 public:
  BottleneckSearch(const Chain& chain, const PartitionOptions& options, int ranks, std::vector<Chunk> chunks)
      : chain_(chain), options_(options), ranks_(ranks), chunks_(std::move(chunks)) {}

  //! Minimizes the memory of the fullest rank over the partitions whose slowest stage is within the bound.
  std::uint64_t best(double bound, std::vector<int>& first_layer) {
    bound_ = bound;
    best_memory_ = kNoMemoryBound;
    exhausted_ = false;
    if (!find_windows()) return kNoMemoryBound;
    std::vector<int> starts{0};
    if (chunks_.empty() || chain_.size() > kMaxListedLayers) {
      exhausted_ = true;
    } else {
      guess(starts);
    }
    if (exhausted_) by_stage();
    first_layer = first_layer_;
    return best_memory_;
  }

  //! Whether some partition is within the bound, whatever its memory.
  bool feasible(double bound) {
    bound_ = bound;
    return find_windows();
  }

  bool exhausted() const { return exhausted_; }

 private:
  int num_stages() const { return static_cast<int>(options_.rank_of_stage.size()); }
  int in_flight(int stage) const {
    return options_.in_flight.empty() ? 1 : options_.in_flight[static_cast<std::size_t>(stage)];
  }
  bool fits(int from, int to) const { return chain_.time(from, to) <= bound_; }

  //! Computes the lowest and highest feasible position of each boundary under the bound.
  bool find_windows() {
    const int count = num_stages(), layers = chain_.size();
    low_.assign(static_cast<std::size_t>(count) + 1, 0);
    high_.assign(static_cast<std::size_t>(count) + 1, 0);
    for (int s = 1; s <= count; ++s) {  // the furthest position; an earlier start does not reach further
      const int from = high(s - 1);
      int end = std::min(from + 1, layers);
      if (!fits(from, end)) return false;
      while (end < layers && fits(from, end + 1)) ++end;
      high_[static_cast<std::size_t>(s)] = end;
    }
    if (high(count) < layers) return false;
    low_[static_cast<std::size_t>(count)] = layers;
    for (int s = count - 1; s >= 0; --s) {
      int start = low(s + 1) - 1;
      if (start < 0 || !fits(start, low(s + 1))) return false;
      while (start > 0 && fits(start - 1, low(s + 1))) --start;
      low_[static_cast<std::size_t>(s)] = std::max(start, s);
      high_[static_cast<std::size_t>(s)] = std::min(high(s), layers - (count - s));
      if (low(s) > high(s)) return false;
    }
    return low(0) == 0;
  }
  int low(int boundary) const { return low_[static_cast<std::size_t>(boundary)]; }
  int high(int boundary) const { return high_[static_cast<std::size_t>(boundary)]; }

  //! Tries every start of the next chunk, then runs the dynamic program over the ranks.
  void guess(std::vector<int>& starts) {
    if (exhausted_) return;
    if (starts.size() == chunks_.size()) {
      starts.push_back(chain_.size());
      walk(starts);
      starts.pop_back();
      return;
    }
    const int boundary = chunks_[starts.size()].first;
    for (int at = std::max(low(boundary), starts.back() + ranks_); at <= high(boundary); ++at) {
      starts.push_back(at);
      guess(starts);
      starts.pop_back();
    }
  }

  struct Entry {
    std::uint64_t memory = kNoMemoryBound;
    std::uint64_t parent = 0;
  };
  using Reached = std::unordered_map<std::uint64_t, Entry>;

  static int position(std::uint64_t key, std::size_t chunk) {
    return static_cast<int>((key >> (16 * chunk)) & 0xffff);
  }
  static std::uint64_t with(std::uint64_t key, std::size_t chunk, int at) {
    return (key & ~(std::uint64_t{0xffff} << (16 * chunk))) |
           (static_cast<std::uint64_t>(at) << (16 * chunk));
  }

  //! Rank by rank, advances the position in each chunk past the layers that the rank takes.
  void walk(const std::vector<int>& starts) {
    std::vector<Reached> reached(static_cast<std::size_t>(ranks_) + 1);
    std::uint64_t begin = 0, goal = 0;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      begin = with(begin, c, chunks_[c].descending ? starts[c + 1] : starts[c]);
      goal = with(goal, c, chunks_[c].descending ? starts[c] : starts[c + 1]);
    }
    reached[0][begin] = {0, 0};
    for (int rank = 0; rank < ranks_; ++rank) {
      auto& next = reached[static_cast<std::size_t>(rank) + 1];
      for (const auto& [key, entry] : reached[static_cast<std::size_t>(rank)]) {
        extend(rank, 0, key, key, 0, entry.memory, starts, next);
        if (exhausted_) return;
      }
    }
    const auto& last = reached.back();
    const auto found = last.find(goal);
    if (found == last.end() || found->second.memory >= best_memory_) return;
    best_memory_ = found->second.memory;
    trace(reached, goal);
  }

  //! Chooses the end of this rank's stage in chunk c, then in the following chunks.
  void extend(int rank, std::size_t c, std::uint64_t from, std::uint64_t key, std::uint64_t memory,
              std::uint64_t so_far, const std::vector<int>& starts, Reached& next) {
    if (c == chunks_.size()) {
      Entry& entry = next[key];
      if (const std::uint64_t worst = std::max(memory, so_far); worst < entry.memory) entry = {worst, from};
      return;
    }
    const Chunk& chunk = chunks_[c];
    const int stage = chunk.descending ? chunk.first + ranks_ - 1 - rank : chunk.first + rank;
    const int at = position(key, c);
    const int step = chunk.descending ? -1 : 1;
    const int boundary = chunk.descending ? stage : stage + 1;  // the boundary chosen here
    const int first = chunk.descending ? std::max(low(boundary), starts[c]) : low(boundary);
    const int last = chunk.descending ? high(boundary) : std::min(high(boundary), starts[c + 1]);
    for (int to = at + step; to >= first || step > 0; to += step) {
      if (step > 0 && to > last) break;
      const int from_layer = std::min(at, to), to_layer = std::max(at, to);
      if (!fits(from_layer, to_layer)) break;
      if (++spent_ > kMaxTransitions) {
        exhausted_ = true;
        return;
      }
      if (to < first || to > last) continue;
      const std::uint64_t sum = memory + chain_.memory(from_layer, to_layer, in_flight(stage));
      if (std::max(sum, so_far) >= best_memory_) continue;
      extend(rank, c + 1, from, with(key, c, to), sum, so_far, starts, next);
      if (exhausted_) return;
    }
  }

  void trace(const std::vector<Reached>& reached, std::uint64_t key) {
    first_layer_.assign(static_cast<std::size_t>(num_stages()) + 1, chain_.size());
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      const std::uint64_t before = reached[static_cast<std::size_t>(rank) + 1].at(key).parent;
      for (std::size_t c = 0; c < chunks_.size(); ++c) {
        const Chunk& chunk = chunks_[c];
        const int stage = chunk.descending ? chunk.first + ranks_ - 1 - rank : chunk.first + rank;
        first_layer_[static_cast<std::size_t>(stage)] = position(chunk.descending ? key : before, c);
      }
      key = before;
    }
  }

  //! The fallback if there are too many states: minimizes the memory of the fullest *stage* by dynamic
  //! programming over stages. Exact for one stage per rank.
  void by_stage() {
    const int count = num_stages(), layers = chain_.size();
    // Boundary s has an entry for each position in its window.
    std::vector<std::size_t> begin{0};
    for (int s = 0; s <= count; ++s)
      begin.push_back(begin.back() + static_cast<std::size_t>(high(s) - low(s) + 1));
    std::vector<std::uint64_t> memory(begin.back(), kNoMemoryBound);
    std::vector<int> parent(memory.size(), -1);
    const auto index = [&](int s, int at) {
      return begin[static_cast<std::size_t>(s)] + static_cast<std::size_t>(at - low(s));
    };
    memory[index(0, 0)] = 0;
    for (int s = 0; s < count; ++s) {
      for (int at = low(s); at <= high(s); ++at) {
        if (memory[index(s, at)] == kNoMemoryBound) continue;
        for (int to = std::max(at + 1, low(s + 1)); to <= high(s + 1) && fits(at, to); ++to) {
          const std::uint64_t needed = chain_.memory(at, to, in_flight(s));
          if (options_.memory_cap && needed > *options_.memory_cap) break;  // more layers need more
          const std::uint64_t worst = std::max(memory[index(s, at)], needed);
          if (worst >= memory[index(s + 1, to)]) continue;
          memory[index(s + 1, to)] = worst;
          parent[index(s + 1, to)] = at;
        }
      }
    }
    if (memory[index(count, layers)] == kNoMemoryBound) return;
    std::vector<int> first_layer(static_cast<std::size_t>(count) + 1, layers);
    for (int s = count; s > 0; --s)
      first_layer[static_cast<std::size_t>(s) - 1] =
          parent[index(s, first_layer[static_cast<std::size_t>(s)])];
    std::vector<std::uint64_t> ranks(static_cast<std::size_t>(ranks_), 0);
    for (int s = 0; s < count; ++s) {
      ranks[options_.rank_of_stage[static_cast<std::size_t>(s)].index()] +=
          chain_.memory(first_layer[static_cast<std::size_t>(s)],
                        first_layer[static_cast<std::size_t>(s) + 1], in_flight(s));
    }
    const std::uint64_t fullest = *std::max_element(ranks.begin(), ranks.end());
    if (fullest >= best_memory_) return;
    best_memory_ = fullest;
    first_layer_ = first_layer;
  }

  const Chain& chain_;
  const PartitionOptions& options_;
  int ranks_;
  std::vector<Chunk> chunks_;
  double bound_ = 0;
  std::vector<int> low_, high_, first_layer_;
  std::uint64_t best_memory_ = kNoMemoryBound;
  std::size_t spent_ = 0;
  bool exhausted_ = false;
};

//! The chunks of a placement; empty if it does not consist of chunks over all ranks (the search then runs
//! stage by stage).
std::vector<Chunk> chunks_of(const std::vector<Rank>& rank_of_stage, int ranks, int layers) {
  const int stages = static_cast<int>(rank_of_stage.size());
  if (stages % ranks != 0 || stages / ranks > 4 || layers > 0xffff) return {};
  std::vector<Chunk> chunks;
  for (int first = 0; first < stages; first += ranks) {
    bool up = true, down = true;
    for (int i = 0; i < ranks; ++i) {
      const int rank = rank_of_stage[static_cast<std::size_t>(first + i)].value;
      up &= rank == i;
      down &= rank == ranks - 1 - i;
    }
    if (!up && !down) return {};
    chunks.push_back({first, !up});
  }
  return chunks;
}

//! The least of the times of all ranges that works: by binary search in their sorted list.
template <class Works>
std::optional<double> least_listed_bound(const Chain& chain, const Works& works) {
  const std::vector<double> bounds = run_times(chain);
  std::vector<int> first_layer;
  std::size_t low = 0, high = bounds.size();  // bounds[high] works, bounds[low - 1] does not
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (works(bounds[middle], first_layer)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high == bounds.size() ? std::nullopt : std::optional(bounds[high]);
}

//! The same without the list: bisects the values from the mean time of a stage on, and moves from one value
//! to the next at the end.
template <class Works>
std::optional<double> least_bound_of_long_chain(const Chain& chain, BottleneckSearch& search,
                                                std::size_t stages, std::uint64_t cap, const Works& works) {
  const double total = chain.time(0, chain.size());
  std::vector<int> first_layer;
  const auto good = [&](double bound) {
    return cap == kNoMemoryBound - 1 ? search.feasible(bound) : works(bound, first_layer);
  };
  if (!good(total)) return std::nullopt;
  double low = next_run_time(chain, total / static_cast<double>(stages) * (1 - 1e-9)), high = low;
  for (double step = low / 8; !good(high); step *= 2) {  // doubles the distance until a bound works
    low = next_run_time(chain, high);
    high = std::min(total, std::max(low, high + step));
  }
  for (int round = 0; round < 64 && low < high; ++round) {
    const double middle = low + (high - low) / 2;
    if (good(middle)) {
      high = middle;
    } else {
      low = next_run_time(chain, middle);
    }
  }
  return high;
}

Partition finish(std::span<const Layer> layers, const Chain& chain, const PartitionOptions& options,
                 std::vector<int> first_layer, int ranks) {
  Partition result;
  result.first_layer = std::move(first_layer);
  result.stages = make_stages(layers, result.first_layer);
  result.rank_memory.assign(static_cast<std::size_t>(ranks), 0);
  for (std::size_t s = 0; s + 1 < result.first_layer.size(); ++s) {
    const int from = result.first_layer[s], to = result.first_layer[s + 1];
    result.slowest = std::max(result.slowest, chain.time(from, to));
    const int count = options.in_flight.empty() ? 1 : options.in_flight[s];
    result.rank_memory[options.rank_of_stage[s].index()] += chain.memory(from, to, count);
  }
  result.fullest = *std::max_element(result.rank_memory.begin(), result.rank_memory.end());
  return result;
}

}  // namespace

std::vector<StageCosts> make_stages(std::span<const Layer> layers, const std::vector<int>& first_layer) {
  std::vector<StageCosts> stages;
  for (std::size_t s = 0; s + 1 < first_layer.size(); ++s) {
    const auto from = static_cast<std::size_t>(first_layer[s]),
               to = static_cast<std::size_t>(first_layer[s + 1]);
    stages.push_back(merge_layers(layers.subspan(from, to - from)));
    if (s > 0 && stages.back().input_bytes == 0) stages.back().input_bytes = stages[s - 1].output_bytes;
  }
  return stages;
}

std::optional<Partition> partition_layers(std::span<const Layer> layers, const PartitionOptions& options) {
  const std::size_t stages = options.rank_of_stage.size();
  if (stages == 0) throw UsageError("a partition needs at least one stage");
  if (layers.size() < stages) {
    throw UsageError(str_cat(layers.size(), " layers cannot fill ", stages, " stages"), {},
                     str_cat("use at most ", layers.size(), " stages"));
  }
  if (!options.in_flight.empty() && options.in_flight.size() != stages) {
    throw UsageError("in_flight must have one entry per stage");
  }
  int most_in_flight = 1;
  for (const int count : options.in_flight) {
    if (count < 0) throw UsageError("in_flight must not be negative");
    most_in_flight = std::max(most_in_flight, count);
  }
  check_layers(layers, most_in_flight);
  for (const Layer& layer : layers) {
    if (layer.costs.recompute != layers.front().costs.recompute) {
      throw UsageError("either all layers or none must recompute their activations");
    }
  }
  int ranks = 1;
  for (const Rank rank : options.rank_of_stage) {
    if (rank.value < 0) throw UsageError(str_cat("invalid rank ", rank.value));
    ranks = std::max(ranks, rank.value + 1);
  }
  const Chain chain(layers);
  BottleneckSearch search(chain, options, ranks, chunks_of(options.rank_of_stage, ranks, chain.size()));
  // With one stage per rank, the search stage by stage is exact, too.
  const std::set<Rank> used(options.rank_of_stage.begin(), options.rank_of_stage.end());
  const bool one_each = used.size() == stages;
  const std::uint64_t cap = options.memory_cap.value_or(kNoMemoryBound - 1);
  bool exact = true;
  const auto works = [&](double bound, std::vector<int>& first_layer) {
    const bool found = search.best(bound, first_layer) <= cap;
    exact &= one_each || !search.exhausted();
    return found;
  };
  std::vector<int> first_layer;
  const std::optional<double> bound = chain.size() > kMaxListedLayers
                                          ? least_bound_of_long_chain(chain, search, stages, cap, works)
                                          : least_listed_bound(chain, works);
  if (!bound) return std::nullopt;
  search.best(*bound, first_layer);
  if (chain.size() > kMaxListedLayers) exact = one_each;
  Partition result = finish(layers, chain, options, std::move(first_layer), ranks);
  result.exact = exact;
  return result;
}

}  // namespace penstock::plan
