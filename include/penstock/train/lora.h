// Low-rank adapters (LoRA): W x + b becomes W x + b + scale * B(A(dropout(x))), in which only A and B are
// trained. The parameters of the model itself, the base, are frozen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Which linear layers get adapters, and of which kind. The defaults are those of the Python package PEFT.
struct LoraOptions {
  //! Patterns of module paths, as in ParameterGroupOptions: a pattern selects a linear layer, or all linear
  //! layers of a module.
  std::vector<std::string> patterns{};
  std::int64_t rank = 8;   //!< rows of A and columns of B
  double alpha = 8;        //!< the scale is alpha / rank
  double dropout = 0;      //!< of the input of A
  std::uint64_t seed = 1;  //!< A is initialized from this seed and its name; B is 0

  double scale() const { return alpha / static_cast<double>(rank); }
};

//! Throws UsageError if an option is invalid.
void check(const LoraOptions& options);

//! A linear layer with an adapter.
struct AdaptedLayer {
  std::string module;       //!< its path: `layers.0.up`
  std::string weight;       //!< its parameter W: `layers.0.up.weight`
  bool transposed = false;  //!< W has the shape [inputs, outputs]

  std::string a() const { return module + ".lora_A.weight"; }  //!< the parameter A: [rank, inputs]
  std::string b() const { return module + ".lora_B.weight"; }  //!< the parameter B: [outputs, rank]
};

//! The adapters of a model.
struct Lora {
  LoraOptions options;
  std::vector<AdaptedLayer> layers{};
};

//! `LoRA of rank 8 for 12 layers`.
std::string to_string(const Lora& lora);

}  // namespace penstock::train
