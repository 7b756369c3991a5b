// Adds a low-rank term to an embedding.
#include <penstock/base/error.h>
#include <penstock/models/adaptable_embedding.h>

#include <torch/torch.h>

namespace penstock::models {

void AdaptableEmbeddingImpl::add_adapter(std::int64_t rank, double scale) {
  if (!lora_embedding_A.is_empty()) throw UsageError("the embedding has an adapter already");
  const auto layer = [&](std::int64_t from, std::int64_t to) {
    torch::nn::Linear made(torch::nn::LinearOptions(from, to).bias(false));
    made->to(weight.device(), weight.scalar_type());
    return made;
  };
  lora_embedding_A = register_module("lora_embedding_A", layer(options.num_embeddings(), rank));
  lora_embedding_B = register_module("lora_embedding_B", layer(rank, options.embedding_dim()));
  scale_ = scale;
  const torch::NoGradGuard no_grad;
  lora_embedding_A->weight.zero_();
}

at::Tensor AdaptableEmbeddingImpl::forward(const at::Tensor& indices) {
  const at::Tensor result = torch::nn::EmbeddingImpl::forward(indices);
  if (lora_embedding_A.is_empty()) return result;
  // A product with one-hot rows, without making them.
  const at::Tensor rows = torch::embedding(lora_embedding_A->weight.t(), indices);
  return result + lora_embedding_B(rows) * scale_;
}

}  // namespace penstock::models
