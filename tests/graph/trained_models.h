// Models that Python exports and trains where the test runs (make_trained_models.py).
#pragma once

#include "support/python.h"
#include "support/tensor_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::test {

//! The folder with the models, which are made once per program, with a random seed. Empty if PENSTOCK_PYTHON
//! names no Python with torch 2.13.
inline const std::string& trained_models() {
  static const TempDir folder;
  static const std::string path = [] {
    const std::string python = python_with_torch();
    if (python.empty()) return python;
    const std::string seed = std::to_string(std::random_device{}() % 100000);
    std::printf("seed of the models: %s\n", seed.c_str());
    const Outcome made =
        run_program({python, "-B", "-W", "ignore", PENSTOCK_SOURCE_DIR "/tests/graph/make_trained_models.py",
                     folder.path(), seed});
    if (made.code != 0) throw std::runtime_error("make_trained_models.py failed: " + made.err);
    return folder.path();
  }();
  return path;
}

//! Python's results for one model.
struct TrainedModel {
  explicit TrainedModel(const std::string& name)
      : file(trained_models() + "/" + name + ".pt2"),
        tensors(read_tensors(trained_models() + "/" + name + ".safetensors")) {
    std::ifstream list(trained_models() + "/" + name + ".txt");
    for (std::string kind, key; list >> kind >> key;) names[kind].push_back(key);
  }

  const at::Tensor& at(const std::string& name) const { return tensors.at(name); }
  //! The inputs of a step.
  std::vector<at::Tensor> inputs(std::int64_t step) const {
    std::vector<at::Tensor> all;
    for (int k = 0; tensors.contains("x." + std::to_string(k)); ++k)
      all.push_back(tensors.at("x." + std::to_string(k))[step]);
    return all;
  }
  at::Tensor target(std::int64_t step) const { return at("target")[step].flatten(); }
  std::int64_t steps() const { return at("target").size(0); }

  std::string file;
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::vector<std::string>> names;  //!< by `parameter`, `buffer` and `state`
};

}  // namespace penstock::test

#define SKIP_WITHOUT_PYTHON()                   \
  if (penstock::test::trained_models().empty()) \
  GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with torch 2.13"
