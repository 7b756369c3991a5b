// Writes costs as TOML.
#include "plan/cost_text.h"

#include "base/text.h"

namespace penstock::plan {

std::string cost_number(double number) {
  return formatted("%.6e", number);
}

std::string to_toml(const StageCosts& costs) {
  std::string text = str_cat("forward = ", cost_number(costs.forward), "\ninput = ", cost_number(costs.input),
                             "\nweight = ", cost_number(costs.weight), "\n");
  if (costs.backward) text += "backward = " + cost_number(*costs.backward) + "\n";
  text += str_cat("activation_bytes = ", costs.activation_bytes, "\ninput_bytes = ", costs.input_bytes,
                  "\noutput_bytes = ", costs.output_bytes, "\nparameter_bytes = ", costs.parameter_bytes,
                  "\ngradient_bytes = ", costs.gradient_bytes, "\noptimizer_bytes = ", costs.optimizer_bytes,
                  "\n");
  return text;
}

}  // namespace penstock::plan
