// The weights to which adapters are added: those of the model, or the initial weights of the run.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/adapters.h>
#include <penstock/train/model.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {

class AdapterMerge;

//! Checkpoints of adapters, each of which is the base of the previous one.
using AdapterChain = std::vector<std::filesystem::path>;

class BaseWeights {
 public:
  //! `state` lists the parameters and buffers without adapters; only their metadata is used. `own` reads
  //! those of the model, for the run with this seed. Opens the initial weights, which may be those of another
  //! run with LoRA; `chain` are the runs whose base this is.
  BaseWeights(std::vector<checkpoint::Piece> state, ReadTensor own, const std::optional<InitialWeights>& init,
              std::optional<std::uint64_t> seed, const AdapterChain& chain = {});
  ~BaseWeights();
  BaseWeights(BaseWeights&&) noexcept;
  BaseWeights& operator=(BaseWeights&&) noexcept;

  //! The metadata of a tensor, by any of its names. Throws UsageError if there is none.
  const checkpoint::Piece& metadata(const std::string& name) const;
  //! Whether a tensor comes from the model, not from initial weights.
  bool is_own(const checkpoint::Piece& piece) const;
  //! Returns the values in the dtype of the model.
  at::Tensor read(const checkpoint::Piece& piece) const;
  //! A checksum of the smallest parameters, up to 64 MiB and at least one. It identifies a base without
  //! reading all of it: any training changes these parameters, too. For initial weights of a run with LoRA,
  //! it is that of their adapters and their base: merged values depend on the processor.
  std::uint32_t checksum() const;

 private:
  const checkpoint::StoredTensor* stored(const checkpoint::Piece& piece) const;

  std::vector<checkpoint::Piece> state_;
  std::map<std::string, std::size_t> by_name_;  // by all names
  ReadTensor own_;
  std::optional<std::uint64_t> seed_;
  std::optional<checkpoint::Checkpoint> init_;
  std::unique_ptr<const AdapterMerge> merged_;  // initial weights of a run with LoRA
};

//! The names of the smallest tensors, up to 64 MiB and at least one, from bytes and names.
std::vector<std::string> smallest_tensors(std::vector<std::pair<std::uint64_t, std::string>> tensors);
//! Adds the elements of a tensor to a checksum.
std::uint32_t checksum_of(const at::Tensor& tensor, std::uint32_t sum);

//! The parameters and buffers of a model, without its adapters.
std::vector<checkpoint::Piece> base_state(const Model& model);
//! Reads the parameters and buffers of a model. Throws UsageError if it does not know them.
ReadTensor own_weights(const Model& model);
//! The base of a model with LoRA.
BaseWeights base_of(const Model& model, const std::optional<InitialWeights>& init);

}  // namespace penstock::train
