// The playground's interface: a JSON request in, a JSON answer out. Compiled to WebAssembly for the page, and
// natively for its test. docs/playground.md describes the operations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::playground {

struct Answer {
  std::string text;           //!< JSON: an object, with the member `error` if the request failed
  std::vector<double> boxes;  //!< of a simulation; see boxes.h
};

//! Does not throw.
Answer answer(std::string_view request);

}  // namespace penstock::playground
