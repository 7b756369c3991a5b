// Runs a forward pass with the recorder enabled.
#include "graph/capture/recorder.h"
#include "graph/ir/meta.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>
#include <penstock/graph/capture.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

// A process can register only one fallback per dispatch key. Define another key if a library uses this one.
#ifndef PENSTOCK_CAPTURE_KEY
#define PENSTOCK_CAPTURE_KEY DeferredInit
#endif

namespace penstock::graph {
namespace {

using c10::IValue;

constexpr c10::DispatchKey kCaptureKey = c10::DispatchKey::PENSTOCK_CAPTURE_KEY;

thread_local Recorder* recorder = nullptr;
thread_local int meta_scopes = 0;

//! The dispatcher fallback: receives every operator call during a capture.
void record(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kCaptureKey);
  if (!recorder) {
    if (meta_scopes > 0) redirect_devices(op, *stack);
    op.callBoxed(stack);
  } else if (op.operator_name().name == "penstock::pipe_split") {
    recorder->mark_split();
  } else {
    recorder->call(op, *stack);
  }
}

void do_nothing() {}

//! Saves and restores the state that a forward pass changes: buffers and the random state.
class Unchanged {
 public:
  explicit Unchanged(const ModelTensors& model) {
    const c10::AutoGradMode no_grad(false);
    for (const auto& [name, buffer] : model.buffers) {
      if (buffer.defined()) saved_.emplace_back(buffer, buffer.clone());
    }
    save(at::detail::getDefaultCPUGenerator());
    for (const auto* list : {&model.parameters, &model.buffers}) {
      for (const auto& [name, tensor] : *list) {
        if (tensor.defined() && !tensor.is_cpu() && !tensor.is_meta())
          save(at::globalContext().defaultGenerator(tensor.device()));
      }
    }
  }
  ~Unchanged() {
    const c10::AutoGradMode no_grad(false);
    for (auto& [buffer, copy] : saved_) buffer.copy_(copy);
    for (auto& [generator, state] : random_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  void save(at::Generator generator) {
    for (const auto& [known, state] : random_) {
      if (known == generator) return;
    }
    const std::lock_guard lock(generator.mutex());
    random_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
  std::vector<std::pair<at::Generator, at::Tensor>> random_;
};

class RecorderScope {
 public:
  explicit RecorderScope(Recorder& now) {
    if (recorder) throw UsageError("captures cannot be nested");
    recorder = &now;
  }
  ~RecorderScope() { recorder = nullptr; }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;
};

bool has_no_memory(const ModelTensors& model) {
  for (const auto* list : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *list) {
      if (tensor.defined() && tensor.is_meta()) return true;
    }
  }
  return false;
}

IValue copied(const IValue& leaf, bool without_memory) {
  if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
  const at::Tensor& tensor = leaf.toTensor();
  if (without_memory) return meta_like(tensor);
  return tensor.detach().clone().set_requires_grad(tensor.requires_grad());
}

std::string leaf_name(std::string path) {
  for (char& c : path) {
    if (c == '[' || c == '.') c = '_';
  }
  std::erase(path, ']');
  return path;
}

}  // namespace

Captured capture(const ForwardFunction& forward, const ModelTensors& model, const value::Args& args,
                 const value::Kwargs& kwargs) {
  c10::impl::GenericDict named(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : kwargs) named.insert(name, value);
  value::FlatTree flat =
      value::flatten(c10::ivalue::Tuple::create({c10::ivalue::Tuple::create(args), named}));
  const bool without_memory = has_no_memory(model);
  for (IValue& leaf : flat.leaves) leaf = copied(leaf, without_memory);
  const IValue copy = unflatten(flat.leaves, flat.structure);

  const Unchanged unchanged(model);
  Recorder now(model);
  now.without_memory = without_memory;
  Graph head;  // provides the names of the inputs
  head.input_structure = flat.structure;
  const std::vector<std::string> paths = head.input_paths();
  std::vector<GraphInput> inputs;
  for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
    const bool tensor = flat.leaves[i].isTensor() && flat.leaves[i].toTensor().defined();
    inputs.push_back({now.add_input(leaf_name(paths[i]), flat.leaves[i]),
                      tensor ? std::nullopt : std::optional(flat.leaves[i])});
  }
  const value::Args call_args = copy.toTupleRef().elements()[0].toTupleRef().elements().vec();
  value::Kwargs call_kwargs;
  for (const auto& entry : copy.toTupleRef().elements()[1].toGenericDict()) {
    call_kwargs.emplace(entry.key().toStringRef(), entry.value());
  }
  IValue result;
  {
    const RecorderScope scope(now);
    const c10::impl::IncludeDispatchKeyGuard on(kCaptureKey);
    result = forward(call_args, call_kwargs);
  }
  value::FlatTree out = value::flatten(result);
  std::vector<Arg> outputs;
  for (const IValue& leaf : out.leaves) outputs.push_back(now.output(leaf));
  Captured captured = now.finish();
  Graph& graph = captured.graph;
  graph.inputs = std::move(inputs);
  graph.input_structure = std::move(flat.structure);
  graph.outputs = std::move(outputs);
  graph.output_structure = std::move(out.structure);
  graph = remove_dead_nodes(graph);
  check_graph(graph);
  return captured;
}

MetaDeviceScope::MetaDeviceScope() {
  if (meta_scopes++ == 0) c10::impl::tls_set_dispatch_key_included(kCaptureKey, true);
}

MetaDeviceScope::~MetaDeviceScope() {
  if (--meta_scopes == 0) c10::impl::tls_set_dispatch_key_included(kCaptureKey, false);
}

void pipe_split() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("penstock::pipe_split", "").typed<void()>();
  op.call();
}

ModuleScope::ModuleScope(const std::string& name) {
  if (recorder) recorder->enter(name);
}

ModuleScope::~ModuleScope() {
  if (recorder) recorder->leave();
}

}  // namespace penstock::graph

TORCH_LIBRARY(penstock, library) {
  library.def("pipe_split() -> ()");
}

TORCH_LIBRARY_IMPL(penstock, BackendSelect, library) {
  library.impl("pipe_split", &penstock::graph::do_nothing);
}

TORCH_LIBRARY_IMPL(_, PENSTOCK_CAPTURE_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&penstock::graph::record>());
}
