// Lets a rank finish its step after SIGINT or SIGTERM.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>

namespace penstock::tool {

//! Catches the signals as long as it exists. The first one is only remembered; a second one has its default
//! effect and ends the process.
class StopSignals {
 public:
  enum class Which {
    Interrupt,  //!< SIGINT: the launcher sends it to its ranks for either signal, and SIGTERM to end them
    Both,       //!< SIGINT and SIGTERM, for ranks of other launchers
  };
  explicit StopSignals(Which which);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  //! The number of the signal that was received, or 0.
  static int received();

 private:
  static constexpr std::array kCaught{SIGINT, SIGTERM};

  std::size_t count_;
  std::array<struct sigaction, kCaught.size()> before_{};
};

}  // namespace penstock::tool
