// The message of an expected error.
#pragma once

#include <penstock/base/error.h>

#include <gmock/gmock.h>

#include <string>

//! Expects that `statement` throws a `type` whose message contains `text`.
#define EXPECT_ERROR(statement, type, text) \
  EXPECT_THAT(::penstock::test::error_message<type>([&] { statement; }), ::testing::HasSubstr(text))

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
