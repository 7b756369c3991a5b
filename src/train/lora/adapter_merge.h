// Adapters of a checkpoint, merged into their base.
#pragma once

#include "train/lora/base_weights.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::train {

class AdapterMerge {
 public:
  //! Opens the base and verifies it. See MergedWeights for the other arguments and the errors; throws
  //! UsageError also if the checkpoint is in the chain, that is, its own base.
  AdapterMerge(std::shared_ptr<const checkpoint::Checkpoint> adapters, std::vector<checkpoint::Piece> state,
               ReadTensor own, const AdapterChain& chain = {});

  const AdapterNote& note() const { return note_; }
  const std::filesystem::path& path() const { return adapters_->path(); }
  //! Returns a parameter or buffer, by any of its names.
  at::Tensor read(const std::string& name) const;
  //! Returns an undefined tensor if the value is that of `own`.
  at::Tensor read_changed(const std::string& name) const;
  //! A checksum of the smallest adapters and the checksum of their base.
  std::uint32_t checksum() const;

 private:
  void check();
  void check_shape(const std::string& name, const std::vector<std::int64_t>& expected) const;
  at::Tensor merged(const AdaptedLayer& layer, const at::Tensor& weight) const;

  std::shared_ptr<const checkpoint::Checkpoint> adapters_;
  AdapterNote note_;
  BaseWeights base_;
  std::map<std::string, const AdaptedLayer*> layers_{};  // by weight
};

//! Opens initial weights that are the checkpoint of a run with LoRA; null if they are others. Throws
//! UsageError if they do not exist, or with rename rules.
std::unique_ptr<const AdapterMerge> open_adapters(const InitialWeights& weights,
                                                  const std::vector<checkpoint::Piece>& state,
                                                  const ReadTensor& own, const AdapterChain& chain = {});

}  // namespace penstock::train
