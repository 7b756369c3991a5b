// Small models of the kinds that pipelines meet, as stages.
#pragma once

#include "runtime/support/dense.h"

#include <vector>

namespace penstock::test {

Model mlp();               //!< linear layers with dropout
Model frozen_mlp();        //!< every second stage takes no gradient, the first one too
Model tied_transformer();  //!< token embedding in the first stage, shared with the head in the last
Model batch_norm_cnn();
Model skip_net();     //!< stage s feeds stage S-1-s, as in a U-Net
Model many_values();  //!< several inputs and outputs, integers, None, unused values, a mask for every stage

std::vector<Model> all_models();

}  // namespace penstock::test
