// Oracle for data parallelism: one process trains the small GPT on the full batch.
#pragma once

#include "support/models/small_gpt.h"

#include <penstock/comm/world.h>
#include <penstock/runtime/stage_module.h>

#include <string>
#include <vector>

namespace penstock::test {

struct DenseGpt {
  std::vector<at::Tensor> losses;              //!< by step
  std::vector<value::NamedTensor> gradients;   //!< of the first step; undefined if there is none
  std::vector<value::NamedTensor> parameters;  //!< after the last step
};

constexpr int kGptSteps = 3, kGptRows = 8;

//! Trains with AdamW on batches of kGptRows rows, each split into `parts` backward passes.
DenseGpt run_dense_gpt(Variant variant, int parts = 1);

//! The parameters for an optimizer: tied ones must not be updated twice.
std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module);
//! Copies of the parameters by name, each once.
std::vector<value::NamedTensor> copies(const torch::nn::Module& module);
//! Copies of the gradients by name.
std::vector<value::NamedTensor> gradient_copies(const torch::nn::Module& module);

//! Throws if they differ by more than `tolerance`, relative to the largest number if that is above 1.
void expect_near(const std::string& what, const at::Tensor& actual, const at::Tensor& expected,
                 double tolerance = 1e-5);
void expect_near(const std::string& what, const std::vector<value::NamedTensor>& actual,
                 const std::vector<value::NamedTensor>& expected, double tolerance = 1e-5);

//! The communication of a rank since the construction of this object.
class Traffic {
 public:
  explicit Traffic(const comm::World& world);
  struct Sum {
    int count = 0;
    std::uint64_t bytes = 0;
  };
  Sum of(const std::string& op) const;

 private:
  const comm::World& world_;
  std::uint64_t from_;
};

}  // namespace penstock::test
