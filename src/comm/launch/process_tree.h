// Finds the processes of a job: the ranks and all processes that they started. Each inherits two marks, a
// variable in its environment and a resource limit. A mark identifies a process even in another process group
// or session, or under another parent; the limit remains if the process clears its environment.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>

namespace penstock::comm {

class JobMark {
 public:
  //! `id` must be unique: no environment of another job may contain it.
  explicit JobMark(std::string id);

  //! Returns name and value of the environment variable for the ranks. A job started by a rank of another job
  //! has both marks.
  std::pair<std::string, std::string> variable() const;
  //! Returns the soft limit of RLIMIT_RTTIME for the ranks: a number of microseconds that is unique to the
  //! job and too large to have an effect (more than 100,000 years). Inside another job it replaces the outer
  //! one.
  rlim_t time_limit() const { return time_limit_; }
  //! Kills every process with a mark, until none is left or 5 seconds have passed.
  void end_processes() const;

 private:
  bool is_on(pid_t pid) const;
  int end_once() const;

  std::string id_;
  rlim_t time_limit_;
};

//! A process that cleans up after a killed launcher: it kills the processes of the job and removes its
//! directories. It detects the end of the launcher through a pipe and keeps no other descriptor of it open.
class Guardian {
 public:
  explicit Guardian(const JobMark& mark);
  //! Called when the launcher ends normally: the guardian exits without cleaning up.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void add_group(pid_t group) { send_message('g', std::to_string(group)); }
  void add_directory(const std::filesystem::path& directory) { send_message('d', directory.string()); }
  //! The processes of these groups have ended, and their ids may be reused.
  void forget_groups() { send_message('f', {}); }

 private:
  void send_message(char what, const std::string& text);

  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace penstock::comm
