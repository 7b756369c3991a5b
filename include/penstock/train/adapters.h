// The adapters in a checkpoint of a LoRA run, and the model that they make together with their base.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/lora.h>
#include <penstock/train/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

//! What a checkpoint says about its adapters and their base.
struct AdapterNote {
  Lora lora;
  //! The weights from which the run started; nullopt: those of the model.
  std::optional<InitialWeights> init{};
  //! Of the smallest parameters of the base.
  std::uint32_t base_checksum = 0;
};

//! Returns the note of a checkpoint; nullopt if it is not of a LoRA run. Throws ParseError if it is damaged.
std::optional<AdapterNote> adapter_note(const checkpoint::Checkpoint& checkpoint);

//! Reads a parameter or buffer of a model by its name. Values that the model draws at random are those of a
//! run with this seed; nullopt: of the model itself, or unknown.
using ReadTensor = std::function<at::Tensor(const std::string& name, std::optional<std::uint64_t> seed)>;

//! The weights of a LoRA run as weights of the model: W + scale * B A for layers with adapters.
class MergedWeights {
 public:
  //! `state` lists the parameters and buffers of the model without adapters, of which only metadata is used;
  //! `own` reads their values, which are the base if the run had no initial weights. If its initial weights
  //! were those of another run with LoRA, that run's adapters are merged, too. Reads a part of the base to
  //! verify it. Throws UsageError if the adapters do not fit the model, or were trained on another base.
  MergedWeights(std::shared_ptr<const checkpoint::Checkpoint> adapters, std::vector<checkpoint::Piece> state,
                ReadTensor own);
  ~MergedWeights();
  MergedWeights(MergedWeights&&) noexcept;
  MergedWeights& operator=(MergedWeights&&) noexcept;

  //! Returns a parameter or buffer, by any of its names.
  at::Tensor read(const std::string& name) const;
  //! Returns an undefined tensor if the value is that of `own`.
  at::Tensor read_changed(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

//! Writes the adapters of a checkpoint to a safetensors file with the names of PEFT, such as
//! `base_model.model.layers.0.up.lora_A.weight`. Throws UsageError if the checkpoint has none.
void export_adapters(const checkpoint::Checkpoint& checkpoint, const std::filesystem::path& file);

//! Writes `adapter_model.safetensors` and `adapter_config.json`, the format of PEFT, to a directory, which it
//! creates. `base` is the name of the base model in the configuration; empty: unknown.
void export_adapter_directory(const checkpoint::Checkpoint& checkpoint,
                              const std::filesystem::path& directory, const std::string& base = {});

}  // namespace penstock::train
