// The weights to which adapters are added: those of the model, or the initial weights of the run.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/adapters.h>
#include <penstock/train/model.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

//! Reads parameters and buffers of a model by their names.
using ReadTensors = std::function<std::vector<at::Tensor>(const std::vector<std::string>& names)>;

class BaseWeights {
 public:
  //! `state` lists the parameters and buffers without adapters; only their metadata is used. Opens the
  //! initial weights.
  BaseWeights(std::vector<checkpoint::Piece> state, ReadTensors own,
              const std::optional<InitialWeights>& init);

  //! The metadata of a tensor, by any of its names. Throws UsageError if there is none.
  const checkpoint::Piece& metadata(const std::string& name) const;
  //! Whether a tensor comes from the model, not from initial weights.
  bool is_own(const checkpoint::Piece& piece) const;
  //! Returns the values in the dtype of the model.
  at::Tensor read(const checkpoint::Piece& piece) const;
  //! A checksum of the smallest parameters, up to 64 MiB and at least one. It identifies a base without
  //! reading all of it: any training changes these parameters, too.
  std::uint32_t checksum() const;

 private:
  const checkpoint::StoredTensor* stored(const checkpoint::Piece& piece) const;
  std::vector<const checkpoint::Piece*> smallest_parameters() const;

  std::vector<checkpoint::Piece> state_;
  std::map<std::string, std::size_t> by_name_;  // by all names
  ReadTensors own_;
  std::optional<checkpoint::Checkpoint> init_;
};

//! The base of a model with LoRA.
BaseWeights base_of(const Model& model, const std::optional<InitialWeights>& init);

}  // namespace penstock::train
