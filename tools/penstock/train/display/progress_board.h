// The progress of each rank of a run, as one line of shared memory per rank. The line outlives a killed rank,
// so the launcher can report what the rank was doing. The memory leaves no file behind.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/schedule/action.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::tool {

//! Launcher side: owns the memory.
class ProgressBoard {
 public:
  explicit ProgressBoard(int ranks);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  //! Returns the environment variables that the ranks need.
  std::map<std::string, std::string> environment() const;
  //! Returns the progress of a rank, such as `step 7, stage 1, action 1F2`; empty if it has reported none.
  std::string of(Rank rank) const;
  int ranks() const { return ranks_; }
  void clear();

 private:
  int file_ = -1;
  int ranks_;
  char* memory_ = nullptr;
};

//! Rank side: reports progress. Does nothing if the environment names no board.
class RankProgress {
 public:
  explicit RankProgress(Rank rank);
  ~RankProgress();
  RankProgress(const RankProgress&) = delete;
  RankProgress& operator=(const RankProgress&) = delete;

  //! Reports a phase of the run: `setup`, `checkpoint`, … The step is nullopt during setup.
  void report(std::optional<std::int64_t> step, std::string_view phase);
  void report(std::optional<std::int64_t> step, const schedule::Action& action);

 private:
  void write(std::optional<std::int64_t> step, const std::string& what);

  char* memory_ = nullptr;
  char* line_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace penstock::tool
