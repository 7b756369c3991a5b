// Chooses tokens.
#include <penstock/base/error.h>
#include <penstock/models/sampling.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

namespace penstock::models {
namespace {

at::Tensor without(const at::Tensor& scores, const at::Tensor& removed) {
  return scores.masked_fill(removed, -std::numeric_limits<double>::infinity());
}

}  // namespace

void check(const SampleOptions& options) {
  if (options.tokens < 0) throw UsageError("the number of tokens must be at least 0");
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    throw UsageError("the temperature must be a number of at least 0", {}, "use 0 for the most likely token");
  if (options.top && *options.top < 1) throw UsageError("top must be at least 1", {}, "for example 40");
  if (options.top_p && !(*options.top_p > 0 && *options.top_p <= 1))
    throw UsageError("top_p must be greater than 0 and at most 1", {}, "for example 0.95");
}

at::Generator sample_generator(const SampleOptions& options) {
  return at::make_generator<at::CPUGeneratorImpl>(options.seed);
}

std::int64_t choose_token(const at::Tensor& logits, const SampleOptions& options, at::Generator& generator) {
  if (options.temperature <= 0) return logits.argmax().item<std::int64_t>();
  at::Tensor scores = logits.to(at::kCPU, at::kFloat) / options.temperature;
  if (options.top && *options.top < scores.size(0))
    scores = without(scores, scores < std::get<0>(scores.topk(*options.top)).min());
  if (options.top_p && *options.top_p < 1) {
    const auto [sorted, order] = scores.softmax(0).sort(0, /*descending=*/true);
    // A token stays if the more likely tokens do not reach the sum yet; the first one always does.
    const at::Tensor before = sorted.cumsum(0) - sorted;
    scores = without(scores, at::zeros_like(before, at::kBool).scatter(0, order, before >= *options.top_p));
  }
  return at::multinomial(scores.softmax(0), 1, false, generator).item<std::int64_t>();
}

}  // namespace penstock::models
