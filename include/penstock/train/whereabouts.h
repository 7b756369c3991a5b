// Where each rank of a run is: a line of shared memory for each, which outlives a rank that is killed, so
// that the command can say what it was doing. Nothing is left in a file system.
#pragma once

#include <penstock/schedule/action.h>

#include <cstdint>
#include <map>
#include <string>

namespace penstock::train {

//! The command's side: makes the memory.
class WhereaboutsBoard {
 public:
  explicit WhereaboutsBoard(int ranks);
  ~WhereaboutsBoard();
  WhereaboutsBoard(const WhereaboutsBoard&) = delete;
  WhereaboutsBoard& operator=(const WhereaboutsBoard&) = delete;

  //! What the ranks need in their environment.
  std::map<std::string, std::string> environment() const;
  //! `step 7, stage 1, action 1F2`, or empty if the rank has said nothing.
  std::string of(int rank) const;
  int ranks() const { return ranks_; }
  void clear();

 private:
  int file_ = -1;
  int ranks_;
  char* memory_ = nullptr;
};

//! A rank's side; without a board in the environment it does nothing.
class Whereabouts {
 public:
  explicit Whereabouts(int rank);
  ~Whereabouts();
  Whereabouts(const Whereabouts&) = delete;
  Whereabouts& operator=(const Whereabouts&) = delete;

  void at(std::int64_t step, const char* what);
  void at(std::int64_t step, const Action& action);

 private:
  void write(const char* text);

  char* memory_ = nullptr;
  char* line_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace penstock::train
