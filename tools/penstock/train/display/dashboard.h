// The live page of a run (`--dashboard`). Rank 0 writes marked lines; the command, which outlives restarts of
// the ranks, keeps them and serves them to a browser on this machine.
#pragma once

#include "studio/page_server.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace penstock::tool {

//! The kinds of marked lines of rank 0.
enum class DashboardLine : char {
  Begin = 'B',       //!< JSON: model, schedule, stages, first_step, steps
  Step = 'R',        //!< JSON of a step, as in the log
  Validation = 'V',  //!< JSON: step, validation_loss
  Timeline = 'T',    //!< SVG of the last step
};
//! One line for `DashboardData::take`. Empty if the content is too long for a line.
std::string dashboard_line(DashboardLine kind, std::string_view content);

//! What the page shows. Safe for several threads.
class DashboardData {
 public:
  //! Takes the line if it is marked. Returns false for any other line.
  bool take(std::string_view line);
  //! The page at `/`, the numbers at `/data.json?generation=G&from=N`, the last timeline at `/timeline.svg`.
  //! Numbers are sent from index N on, or completely if G is not the current generation.
  std::optional<Content> find(std::string_view target) const;

 private:
  void begin(std::string_view content);
  std::string json(std::size_t from, std::size_t generation) const;

  mutable std::mutex mutex_;
  std::string info_ = "null", timeline_;
  std::vector<std::string> steps_, validations_;  // JSON objects
  std::size_t generation_ = 1;                    // changes whenever steps are removed
  std::size_t timelines_ = 0;
};

//! Serves the page from a thread, until it is destroyed.
class Dashboard {
 public:
  Dashboard();
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  std::string address() const { return server_.address(); }
  DashboardData& data() { return data_; }

 private:
  DashboardData data_;
  PageServer server_;
  Descriptor stop_;
  std::thread thread_;
};

}  // namespace penstock::tool
