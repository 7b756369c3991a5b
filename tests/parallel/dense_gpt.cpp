// The dense run of the small GPT and the comparison with it.
#include "parallel/dense_gpt.h"

#include "parallel/replica_agreement.h"
#include "support/check.h"

#include <penstock/comm/flight_record.h>

#include <algorithm>

namespace penstock::test {
namespace {

std::vector<value::NamedTensor> named(const torch::nn::Module& module) {
  std::vector<value::NamedTensor> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  return parallel::each_once(all);
}

}  // namespace

std::vector<value::NamedTensor> copies(const torch::nn::Module& module) {
  std::vector<value::NamedTensor> all = named(module);
  for (value::NamedTensor& item : all) item.tensor = item.tensor.detach().clone();
  return all;
}

std::vector<value::NamedTensor> gradient_copies(const torch::nn::Module& module) {
  std::vector<value::NamedTensor> all = named(module);
  for (value::NamedTensor& item : all)
    item.tensor = item.tensor.grad().defined() ? item.tensor.grad().clone() : at::Tensor();
  return all;
}

std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const value::NamedTensor& item : named(module)) all.push_back(item.tensor);
  return all;
}

DenseGpt run_dense_gpt(Variant variant, int parts) {
  at::set_num_threads(1);
  SmallGpt model(variant);
  torch::optim::AdamW optimizer = adamw(unique_parameters(*model));
  DenseGpt run;
  for (int step = 0; step < kGptSteps; ++step) {
    const Tokens batch = tokens_of(kGptRows, step);
    optimizer.zero_grad();
    at::Tensor sum;
    for (int part = 0; part < parts; ++part) {
      const Tokens own = batch.shard(part, parts);
      const at::Tensor loss = loss_of(model(own.inputs), own.targets) / parts;
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    run.losses.push_back(sum);
    if (step == 0) run.gradients = gradient_copies(*model);
    optimizer.step();
  }
  run.parameters = copies(*model);
  return run;
}

void expect_near(const std::string& what, const at::Tensor& actual, const at::Tensor& expected,
                 double tolerance) {
  if (actual.defined() != expected.defined())
    throw std::logic_error(what + (actual.defined() ? " is there and should not be" : " is missing"));
  if (!actual.defined() || actual.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const std::string difference = tensor_difference(actual, expected, 0, tolerance * scale);
  if (!difference.empty()) throw std::logic_error(what + " differs: " + difference);
}

void expect_near(const std::string& what, const std::vector<value::NamedTensor>& actual,
                 const std::vector<value::NamedTensor>& expected, double tolerance) {
  CHECK_SAME(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CHECK_SAME(actual[i].name, expected[i].name);
    expect_near(what + " " + expected[i].name, actual[i].tensor, expected[i].tensor, tolerance);
  }
}

Traffic::Traffic(const comm::World& world) : world_(world), from_(0) {
  const auto records = world.flight_records();
  if (!records.empty()) from_ = records.back().number;
}

Traffic::Sum Traffic::of(const std::string& op) const {
  Sum sum;
  for (const comm::FlightRecord& record : world_.flight_records()) {
    if (record.number <= from_ || op != record.op) continue;
    ++sum.count;
    sum.bytes += record.bytes;
  }
  return sum;
}

}  // namespace penstock::test
