// Language models that `penstock generate` runs, split into one stage per rank.
#pragma once

#include "commands/trained_gpt.h"

#include <penstock/comm/world.h>
#include <penstock/models/sampling.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

using Tokens = std::vector<std::int64_t>;

//! The stage of a language model on this rank.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  //! Returns the logits of the token after `text`, on the last rank; an undefined tensor on the others. All
  //! ranks call it, with the text of the last call and one more token.
  virtual at::Tensor next_logits(const Tokens& text) = 0;
};

//! Loads the stage of this rank.
std::unique_ptr<LanguageModel> staged_gpt(const TrainedGpt& gpt, const comm::World& world);
std::unique_ptr<LanguageModel> staged_export(const std::string& model, const std::string& checkpoint,
                                             const std::vector<checkpoint::RenameRule>& renames,
                                             const comm::World& world);

//! Check before ranks start that the model can be split into `ranks` stages and that it takes these tokens.
//! Throw UsageError.
void check_staged_gpt(const TrainedGpt& gpt, int ranks, const Tokens& prompt);
void check_staged_export(const std::string& model, const std::string& checkpoint,
                         const std::vector<checkpoint::RenameRule>& renames, int ranks, const Tokens& prompt);

//! Generates tokens on all ranks; the last one draws them. `on_token` is called with each token on every
//! rank.
void generate(LanguageModel& model, Tokens text, const models::SampleOptions& options,
              const comm::World& world, const std::function<void(std::int64_t)>& on_token);

}  // namespace penstock::tool
