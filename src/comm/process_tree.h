// The processes of a job: the ranks, and whatever they started. Every one of them inherits the job's mark in
// its environment, and is found by it wherever it went: into another process group or session, or to another
// parent.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>

namespace penstock {

class JobMark {
 public:
  //! `id` is unique: nobody else's environment contains it.
  explicit JobMark(std::string id) : id_(std::move(id)) {}

  //! Name and value of the variable for the ranks. A job that is started by a rank of another one has both
  //! marks.
  std::pair<std::string, std::string> variable() const;
  //! Ends every process that has the mark, until none is left (or cannot be ended; for a few seconds at
  //! most).
  void end_processes() const;

 private:
  int end_once() const;

  std::string id_;
};

//! A process that outlives a killed launcher, by a moment: long enough to end the processes of its job and to
//! remove its directories. It holds nothing of the launcher's open, and hears of its end through a pipe.
class Guardian {
 public:
  explicit Guardian(const JobMark& mark);
  //! The launcher ends in order: there is nothing left to do.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void add_group(pid_t group) { tell('g', std::to_string(group)); }
  void add_directory(const std::filesystem::path& directory) { tell('d', directory.string()); }
  //! These processes have been ended and their ids are free for others.
  void forget_groups() { tell('f', {}); }

 private:
  void tell(char what, const std::string& text);

  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace penstock
