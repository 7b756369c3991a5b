// The message of an expected error.
#pragma once

#include <penstock/base/error.h>

#include <string>

namespace penstock::test {

//! Runs `body` and returns the message of the E that it throws, or "no error". Other exceptions pass through.
template <class E = Error, class Body>
std::string error_message(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace penstock::test
