// Low-rank adapters (LoRA): W x + b becomes W x + b + scale * B(A(dropout(x))), and row x of an embedding
// table plus scale * B times column x of A. Only A and B are trained. The parameters of the model itself, the
// base, are frozen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Which layers get adapters, and of which kind. The defaults are those of the Python package PEFT.
struct LoraOptions {
  //! Patterns of module paths, as in ParameterGroupOptions: a pattern selects a linear layer or an embedding,
  //! or all linear layers of a module.
  std::vector<std::string> patterns{};
  std::int64_t rank = 8;  //!< rows of A and columns of B
  double alpha = 8;       //!< the scale is alpha / rank
  double dropout = 0;     //!< of the input of A; embeddings have none
  //! A of a linear layer and B of an embedding are initialized from this seed and their names; the other
  //! factor is 0.
  std::uint64_t seed = 1;

  double scale() const { return alpha / static_cast<double>(rank); }
};

//! Throws UsageError if an option is invalid.
void check(const LoraOptions& options);

//! A linear layer or an embedding with an adapter. The inputs of an embedding are the rows of its table, its
//! outputs are their features.
struct AdaptedLayer {
  std::string module;       //!< its path: `layers.0.up`
  std::string weight;       //!< its parameter W: `layers.0.up.weight`
  bool transposed = false;  //!< W has the shape [inputs, outputs], like the table of an embedding
  bool embedding = false;

  //! The modules of the factors: `layers.0.up.lora_A`, or `token.lora_embedding_A` of an embedding.
  std::string a_module() const { return module + (embedding ? ".lora_embedding_A" : ".lora_A"); }
  std::string b_module() const { return module + (embedding ? ".lora_embedding_B" : ".lora_B"); }
  std::string a() const { return a_module() + ".weight"; }  //!< the parameter A: [rank, inputs]
  std::string b() const { return b_module() + ".weight"; }  //!< the parameter B: [outputs, rank]
};

//! The adapters of a model.
struct Lora {
  LoraOptions options;
  std::vector<AdaptedLayer> layers{};
};

//! `LoRA of rank 8 for 12 layers`.
std::string to_string(const Lora& lora);

}  // namespace penstock::train
