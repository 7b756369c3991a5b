// Cross entropy with the options of PyTorch, also of logits that are sharded over the classes.
#pragma once

#include <penstock/train/model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace penstock::train {

//! The label that means over labels leave out, as in PyTorch.
inline constexpr std::int64_t kIgnoredLabel = -100;

//! Class weights on the devices that asked for them: a copy per microbatch would block the host each time.
//! Copies of the object share the tensors.
class ClassWeights {
 public:
  explicit ClassWeights(const LossOptions& options);

  //! Undefined if there are no weights. Ranks that are threads may call it at the same time.
  at::Tensor on(c10::Device device) const;

 private:
  at::Tensor on_host_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::shared_ptr<std::map<std::string, at::Tensor>> copies_ =
      std::make_shared<std::map<std::string, at::Tensor>>();
};

//! The mean cross entropy of class indices, or of probabilities in the shape of the logits. All dims of the
//! logits except the last are flattened. `weights` of the classes may be undefined. Distributed logits must
//! be sharded along the classes and need class indices: they stay local, and a few numbers per row are
//! communicated.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weights,
                         double smoothing);

}  // namespace penstock::train
