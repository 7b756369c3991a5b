// The progress of each rank of a run, as one line of shared memory per rank. The line outlives a killed rank,
// so the launcher can report what the rank was doing. The memory leaves no file behind.
#pragma once

#include <penstock/schedule/action.h>

#include <cstdint>
#include <map>
#include <string>

namespace penstock::train {

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
  std::string of(int rank) const;
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
  explicit RankProgress(int rank);
  ~RankProgress();
  RankProgress(const RankProgress&) = delete;
  RankProgress& operator=(const RankProgress&) = delete;

  void at(std::int64_t step, const char* what);
  void at(std::int64_t step, const schedule::Action& action);

 private:
  void write(const char* text);

  char* memory_ = nullptr;
  char* line_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace penstock::train
