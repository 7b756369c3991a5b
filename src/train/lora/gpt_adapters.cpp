// Adds adapters to the linear layers of a GPT.
#include "train/lora/gpt_adapters.h"

#include "train/lora/initial_values.h"
#include "train/lora/layer_patterns.h"

#include <penstock/models/adaptable_linear.h>

namespace penstock::train {

void add_adapters(torch::nn::Module& module, const LoraOptions& options) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(false);
  for (const auto& item : module.named_modules("", false)) {
    auto* const layer = dynamic_cast<models::AdaptableLinearImpl*>(item.value().get());
    if (layer == nullptr || !selects_layer(options, item.key())) continue;
    layer->add_adapter(options.rank, options.scale(), options.dropout);
    initialize_adapter(layer->lora_A->weight, AdaptedLayer{item.key(), {}}.a(), options.seed);
  }
}

Lora selected_layers(const torch::nn::Module& module, const LoraOptions& options) {
  check(options);
  Lora lora{options};
  std::vector<std::string> modules;
  for (const auto& item : module.named_modules("", false)) {
    if (dynamic_cast<const models::AdaptableLinearImpl*>(item.value().get()) == nullptr) continue;
    modules.push_back(item.key());
    if (selects_layer(options, item.key())) lora.layers.push_back({item.key(), item.key() + ".weight"});
  }
  check_patterns(options, modules);
  return lora;
}

}  // namespace penstock::train
