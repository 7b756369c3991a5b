// A dense run: forward through all stages with one autograd graph, one backward per microbatch.
#include "support/dense.h"

#include <penstock/runtime/random.h>

#include <ATen/ATen.h>

namespace penstock::test {
namespace {

value::Args as_args(const c10::IValue& output) {
  return output.isTuple() ? output.toTupleRef().elements().vec() : value::Args{output};
}

// Runs one microbatch through all stages; skip values go to their declared consumers.
c10::IValue forward(const std::vector<std::shared_ptr<runtime::StageModule>>& modules,
                    const std::vector<runtime::SkipValue>& skips, value::Args args,
                    const std::vector<value::Kwargs>& stage_kwargs, runtime::RandomKey key) {
  std::vector<value::Kwargs> kwargs = stage_kwargs;
  c10::IValue output;
  for (std::size_t s = 0; s < modules.size(); ++s) {
    key.stage = StageId(static_cast<std::int64_t>(s));
    const runtime::RandomScope random(key);
    const runtime::StageResult result = modules[s]->forward(args, kwargs[s]);
    for (const runtime::SkipValue& skip : skips) {
      if (skip.from == key.stage) kwargs[skip.to.index()][skip.name] = result.skips.at(skip.name);
    }
    output = result.output;
    args = as_args(output);
  }
  return output;
}

// Tied parameters are one tensor here: the copies get the sum of all gradients explicitly.
void share_gradients(const std::vector<std::shared_ptr<runtime::StageModule>>& modules,
                     const std::vector<runtime::SharedParameter>& shared) {
  const auto find = [&](const runtime::ParameterLocation& location) {
    for (const value::NamedTensor& item : modules[location.stage.index()]->parameters()) {
      if (item.name == location.name) return item.tensor;
    }
    throw std::logic_error("no such parameter");
  };
  for (const runtime::SharedParameter& locations : shared) {
    at::Tensor sum;
    for (const runtime::ParameterLocation& location : locations) {
      const at::Tensor grad = find(location).grad();
      if (grad.defined()) sum = sum.defined() ? sum + grad : grad.clone();
    }
    for (const runtime::ParameterLocation& location : locations) find(location).mutable_grad() = sum.clone();
  }
}

}  // namespace

void sgd_step(runtime::StageModule& module) {
  const at::NoGradGuard no_grad;
  for (const value::NamedTensor& item : module.parameters()) {
    at::Tensor parameter = item.tensor;
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    parameter.mutable_grad() = at::Tensor();
  }
}

std::vector<value::NamedTensor> snapshot(const std::vector<value::NamedTensor>& tensors) {
  std::vector<value::NamedTensor> copies;
  for (const value::NamedTensor& item : tensors)
    copies.push_back({item.name, item.tensor.defined() ? item.tensor.detach().clone() : at::Tensor()});
  return copies;
}

std::vector<value::NamedTensor> snapshot_grads(const runtime::StageModule& module) {
  std::vector<value::NamedTensor> grads;
  for (const value::NamedTensor& item : module.parameters()) grads.push_back({item.name, item.tensor.grad()});
  return snapshot(grads);
}

TestBatch replica_batch(const TestBatch& batch, int replica, int replicas) {
  if (replicas == 1) return batch;
  const auto r = static_cast<std::size_t>(replica);
  const value::Chunks chunks =
      value::split_args_kwargs_into_chunks(batch.args, batch.options.kwargs, replicas);
  TestBatch part{
      chunks.args[r], value::split_tree(batch.target, replicas, "target")[r], {.kwargs = chunks.kwargs[r]}};
  for (const auto& [stage, own] : batch.options.stage_kwargs)
    part.options.stage_kwargs[stage] = value::split_args_kwargs_into_chunks({}, own, replicas).kwargs[r];
  return part;
}

DenseRun run_dense(const PipelineModel& model, int stages, int microbatches, int rows, int steps,
                   std::uint64_t seed, int replicas) {
  const auto modules = model.make(stages);
  const auto skips = model.skips(stages);
  DenseRun run;
  for (int step = 0; step < steps; ++step) {
    const TestBatch full_batch = model.batch(rows);
    std::vector<at::Tensor> losses;
    std::vector<c10::IValue> outputs;
    for (int replica = 0; replica < replicas; ++replica) {
      const TestBatch batch = replica_batch(full_batch, replica, replicas);
      const value::Chunks chunks =
          value::split_args_kwargs_into_chunks(batch.args, batch.options.kwargs, microbatches);
      const auto targets = value::split_tree(batch.target, microbatches, "target");
      std::vector<std::vector<value::Kwargs>> kwargs(static_cast<std::size_t>(microbatches));
      for (auto& of_microbatch : kwargs) of_microbatch.resize(modules.size());
      for (const auto& [stage, own] : batch.options.stage_kwargs) {
        if (stage.value >= stages) continue;
        const auto stage_chunks = value::split_args_kwargs_into_chunks({}, own, microbatches).kwargs;
        for (std::size_t m = 0; m < stage_chunks.size(); ++m) kwargs[m][stage.index()] = stage_chunks[m];
      }
      for (std::size_t m = 0; m < targets.size(); ++m) {
        const runtime::RandomKey key{seed, static_cast<std::uint64_t>(step), StageId(0),
                                     MicrobatchId(static_cast<std::int64_t>(m)),
                                     static_cast<std::uint32_t>(replica)};
        const c10::IValue output = forward(modules, skips, chunks.args[m], kwargs[m], key);
        const at::Tensor loss = model.loss(output, targets[m], {});
        const double share = static_cast<double>(chunks.rows[m]) / rows;
        loss.backward(at::full_like(loss, share));
        losses.push_back(loss.detach());
        outputs.push_back(
            value::map_tensors(output, [](const at::Tensor& tensor) { return tensor.detach(); }));
      }
    }
    run.losses.push_back(losses);
    run.outputs.push_back(value::merge_chunks(outputs));
    share_gradients(modules, model.shared(stages));
    for (const auto& module : modules) {
      if (step == 0) run.gradients.push_back(snapshot_grads(*module));
      sgd_step(*module);
    }
  }
  for (const auto& module : modules) {
    run.parameters.push_back(snapshot(module->parameters()));
    run.buffers.push_back(snapshot(module->buffers()));
  }
  return run;
}

}  // namespace penstock::test
