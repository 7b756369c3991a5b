// The edges along which values flow between stages: from each stage to the next, plus skip edges.
#pragma once

#include <penstock/base/ids.h>

#include <optional>
#include <span>
#include <vector>

namespace penstock::schedule {

//! An output of `from` is an input of `to`.
struct StageEdge {
  StageId from;
  StageId to;
  friend constexpr auto operator<=>(const StageEdge&, const StageEdge&) = default;
};

//! All edges, with indices: edge s < stages-1 goes from s to s+1; the skip edges follow in ascending order.
class Wiring {
 public:
  Wiring() = default;
  //! Throws UsageError if a skip edge is out of range, backward, duplicate, or between adjacent stages.
  explicit Wiring(int stages, std::vector<StageEdge> skips = {});

  int num_stages() const { return stages_; }
  int edges() const { return static_cast<int>(edges_.size()); }
  const StageEdge& edge(int index) const { return edges_[static_cast<std::size_t>(index)]; }
  //! The skip edges, in ascending order.
  std::span<const StageEdge> skips() const;
  //! The index of the edge; nullopt if there is none.
  std::optional<int> find(StageId from, StageId to) const;
  //! The edges into or out of a stage: the one of the adjacent stage, then skip edges in ascending order.
  std::span<const int> into(StageId stage) const { return slice(in_, in_start_, stage); }
  std::span<const int> out_of(StageId stage) const { return slice(out_, out_start_, stage); }

  friend bool operator==(const Wiring& a, const Wiring& b) {
    return a.stages_ == b.stages_ && a.edges_ == b.edges_;
  }

 private:
  static std::span<const int> slice(const std::vector<int>& all, const std::vector<int>& start,
                                    StageId stage) {
    const auto s = stage.index();
    return std::span(all).subspan(static_cast<std::size_t>(start[s]),
                                  static_cast<std::size_t>(start[s + 1] - start[s]));
  }

  int stages_ = 0;
  std::vector<StageEdge> edges_;
  std::vector<int> in_, in_start_, out_, out_start_;
};

}  // namespace penstock::schedule
