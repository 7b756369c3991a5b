// Collects the validator's findings, with their places as the user counts them.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/validate.h>

#include <cstddef>
#include <string>

namespace penstock {

class Findings {
 public:
  Findings(Diagnostics& list, Places places) : list_(list), places_(places) {}

  //! `rank 1, step 4` or `row 2, column 5`.
  std::string place(std::size_t rank, std::size_t step) const {
    if (places_ == Places::RowAndColumn) {
      return "row " + std::to_string(rank + 1) + ", column " + std::to_string(step + 1);
    }
    return "rank " + std::to_string(rank) + ", step " + std::to_string(step);
  }
  std::string place(std::size_t rank) const {
    return (places_ == Places::RowAndColumn ? "row " + std::to_string(rank + 1)
                                            : "rank " + std::to_string(rank));
  }

  void error(std::string where, std::string message) {
    ++count_;
    if (count_ <= most) list_.push_back({Severity::Error, std::move(where), std::move(message)});
  }

  //! Says how many more there were than are kept.
  void close() {
    if (count_ > most)
      list_.push_back({Severity::Error, "", "and " + std::to_string(count_ - most) + " more"});
  }

  std::size_t count() const { return count_; }

 private:
  static constexpr std::size_t most =
      1000;  // beyond, they help nobody and a hostile file would fill the memory
  Diagnostics& list_;
  Places places_;
  std::size_t count_ = 0;
};

}  // namespace penstock
