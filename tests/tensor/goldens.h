// Reads the golden file of make_goldens.py: the reference's results of operators on distributed tensors.
#pragma once

#include <penstock/tensor/placement.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::test {

struct GoldenInput {
  std::string kind;  //!< of its elements
  std::vector<std::int64_t> sizes;
};

struct GoldenValue {
  bool exact = false;
  std::string dtype;
  at::Tensor tensor;  //!< double
};

//! A result of the reference in one layout: its placements and, per rank, sizes and checksum (absent if the
//! value is partial).
struct GoldenResult {
  tensor::Placements placements;
  struct Local {
    std::vector<std::int64_t> sizes;
    std::optional<double> checksum;
  };
  std::vector<Local> ranks;
};

struct GoldenLayout {
  std::string text;  //!< its line
  std::vector<std::int64_t> mesh;
  std::vector<tensor::Placements> inputs;
  std::string refusal;  //!< `refused`, `differs`, `other`: the reference has no comparable result
  std::vector<GoldenResult> results;
};

struct GoldenOp {
  std::string name;  //!< `aten::mm`, or `redistribute`
  std::vector<GoldenInput> inputs;
  std::vector<std::string> args;
  std::vector<GoldenValue> values;
  std::vector<std::optional<GoldenValue>> gradients;  //!< by input
  std::vector<GoldenLayout> layouts;
};

struct Goldens {
  std::int64_t seed = 0;
  std::vector<GoldenOp> ops;
};

//! Throws if a line is malformed.
Goldens read_goldens(const std::string& file);

//! The elements of input `which`, by the same formulas as in make_goldens.py.
at::Tensor golden_numbers(const std::string& kind, const std::vector<std::int64_t>& sizes, std::int64_t which,
                          std::int64_t seed);
bool golden_has_gradient(const std::string& kind);

}  // namespace penstock::test
