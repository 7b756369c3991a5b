// Checks for code that runs inside ranks, where GoogleTest's macros do not work: they throw.
#pragma once

#include <ATen/core/Tensor.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace penstock::test {

[[noreturn]] inline void check_failed(const char* file, int line, const std::string& what) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <class A, class B>
std::string difference(const char* expression, const A& a, const B& b) {
  std::ostringstream text;
  text << expression << " (" << a << " and " << b << ")";
  return text.str();
}

}  // namespace penstock::test

#define CHECK_THAT(condition)                                                       \
  do {                                                                              \
    if (!(condition)) penstock::test::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)
#define CHECK_SAME(a, b)                                                                        \
  do {                                                                                          \
    const auto& check_a = (a);                                                                  \
    const auto& check_b = (b);                                                                  \
    if (!(check_a == check_b))                                                                  \
      penstock::test::check_failed(__FILE__, __LINE__,                                          \
                                   penstock::test::difference(#a " == " #b, check_a, check_b)); \
  } while (false)
#define CHECK_TENSORS(a, b)                                                                             \
  do {                                                                                                  \
    if (!at::equal((a), (b))) penstock::test::check_failed(__FILE__, __LINE__, #a " differs from " #b); \
  } while (false)
