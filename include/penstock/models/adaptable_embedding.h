// An embedding to which a low-rank adapter (LoRA) can be added. Needs torch::nn, like gpt.h.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace penstock::models {

//! Looks up rows of the table W, and with an adapter adds scale * B times columns of A.
class AdaptableEmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  using torch::nn::EmbeddingImpl::EmbeddingImpl;

  //! Adds the submodules `lora_embedding_A`, with a weight [rank, rows], and `lora_embedding_B`, with a
  //! weight [features, rank]. The former is 0, so the result does not change yet.
  void add_adapter(std::int64_t rank, double scale);
  at::Tensor forward(const at::Tensor& indices);

  torch::nn::Linear lora_embedding_A{nullptr}, lora_embedding_B{nullptr};  //!< empty without an adapter

 private:
  double scale_ = 1;
};
TORCH_MODULE(AdaptableEmbedding);

}  // namespace penstock::models
