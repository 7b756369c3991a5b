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

//! How `actual` differs from `expected`; empty if the elements differ by at most atol + rtol * |expected|.
inline std::string tensor_difference(const at::Tensor& actual, const at::Tensor& expected, double rtol,
                                     double atol) {
  if (!actual.defined() || !expected.defined())
    return actual.defined() == expected.defined() ? ""
           : actual.defined()                     ? "it is defined"
                                                  : "it is undefined";
  std::ostringstream text;
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    text << actual.scalar_type() << actual.sizes() << ", expected " << expected.scalar_type()
         << expected.sizes();
  } else if (!actual.equal(expected) && !((rtol > 0 || atol > 0) && actual.allclose(expected, rtol, atol))) {
    const at::Tensor largest = actual.sub(expected.to(at::kComplexDouble)).abs().max();
    text << "by up to " << largest.item<double>();
  }
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
#define CHECK_CLOSE(a, b, rtol, atol)                                                             \
  do {                                                                                            \
    const std::string check_text = penstock::test::tensor_difference((a), (b), (rtol), (atol));   \
    if (!check_text.empty())                                                                      \
      penstock::test::check_failed(__FILE__, __LINE__, #a " differs from " #b ": " + check_text); \
  } while (false)
#define CHECK_TENSORS(a, b) CHECK_CLOSE(a, b, 0, 0)
