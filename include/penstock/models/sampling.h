// How tokens are chosen from the logits of a language model.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace penstock::models {

//! How tokens are sampled.
struct SampleOptions {
  std::int64_t tokens = 100;
  double temperature = 0.8;           //!< 0: greedy
  std::optional<std::int64_t> top{};  //!< sample only from the `top` most likely tokens
  //! Of these, sample only from the most likely tokens whose probabilities sum up to at least this value.
  std::optional<double> top_p{};
  std::uint64_t seed = 0;
  //! For a model of separate documents: the token that ends one. The tokens after it do not depend on those
  //! before it.
  std::optional<std::int64_t> separator{};
};

//! Throws UsageError if an option is out of range.
void check(const SampleOptions& options);

//! A generator on the CPU, which draws the same tokens on every device.
at::Generator sample_generator(const SampleOptions& options);

//! Chooses a token: divides the logits, of dim 1, by the temperature, keeps the `top` most likely tokens,
//! then those of `top_p`, and draws one of them. With temperature 0, returns the most likely token.
std::int64_t choose_token(const at::Tensor& logits, const SampleOptions& options, at::Generator& generator);

}  // namespace penstock::models
