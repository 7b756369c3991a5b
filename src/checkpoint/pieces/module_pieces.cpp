// Pieces of modules and optimizers.
#include <penstock/base/error.h>
#include <penstock/checkpoint/distributed_pieces.h>
#include <penstock/checkpoint/module_pieces.h>

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <set>

namespace penstock::checkpoint {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

void* key_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

//! A tensor object with several names becomes one piece.
void add_named(const torch::OrderedDict<std::string, at::Tensor>& named, const std::string& prefix,
               PieceKind kind, std::map<void*, std::size_t>& indices, std::vector<Piece>& pieces) {
  for (const auto& item : named) {
    if (!item.value().defined()) continue;
    const std::string name = prefix + item.key();
    const auto [it, fresh] = indices.emplace(key_of(item.value()), pieces.size());
    if (fresh) {
      pieces.push_back(tensor_piece(name, item.value(), kind));
    } else {
      pieces[it->second].aliases.push_back(name);
    }
  }
}

//! The fields of an optimizer state, with the names of the Python optimizers.
struct Fields {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::int64_t> numbers;
};

template <class State>
Fields adam_fields(const State& state) {
  Fields fields{{{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}}, {{"step", state.step()}}};
  if (state.max_exp_avg_sq().defined()) fields.tensors.emplace("max_exp_avg_sq", state.max_exp_avg_sq());
  return fields;
}

Fields fields_of(const OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    return adam_fields(*adamw);
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) return adam_fields(*adam);
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    if (!sgd->momentum_buffer().defined()) return {};
    return {{{"momentum_buffer", sgd->momentum_buffer()}}, {}};
  }
  if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state))
    return {{{"sum", adagrad->sum()}}, {{"step", adagrad->step()}}};
  if (const auto* rms = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    Fields fields{{{"square_avg", rms->square_avg()}}, {{"step", rms->step()}}};
    if (rms->momentum_buffer().defined()) fields.tensors.emplace("momentum_buffer", rms->momentum_buffer());
    if (rms->grad_avg().defined()) fields.tensors.emplace("grad_avg", rms->grad_avg());
    return fields;
  }
  throw UsageError("only the states of AdamW, Adam, SGD, Adagrad and RMSprop can be saved", {},
                   "create the pieces of the optimizer states yourself");
}

template <class State>
std::unique_ptr<OptimizerParamState> adam_state(const Fields& fields) {
  auto state = std::make_unique<State>();
  state->step(fields.numbers.at("step"));
  state->exp_avg(fields.tensors.at("exp_avg"));
  state->exp_avg_sq(fields.tensors.at("exp_avg_sq"));
  if (const auto it = fields.tensors.find("max_exp_avg_sq"); it != fields.tensors.end())
    state->max_exp_avg_sq(it->second);
  return state;
}

//! A kind of optimizer: the fields of its states, and how to construct a state from them.
struct Kind {
  Fields fields;  //!< names only
  std::function<std::unique_ptr<OptimizerParamState>(const Fields&)> make;
};

template <class Options, class State>
Kind adam_kind(const Optimizer& optimizer) {
  Kind kind{{{{"exp_avg", {}}, {"exp_avg_sq", {}}}, {{"step", 0}}}, adam_state<State>};
  if (static_cast<const Options&>(optimizer.defaults()).amsgrad()) kind.fields.tensors["max_exp_avg_sq"];
  return kind;
}

Kind rms_prop_kind(const Optimizer& optimizer) {
  using namespace torch::optim;
  const auto& options = static_cast<const RMSpropOptions&>(optimizer.defaults());
  Kind kind{{{{"square_avg", {}}}, {{"step", 0}}},
            [](const Fields& fields) -> std::unique_ptr<OptimizerParamState> {
              auto state = std::make_unique<RMSpropParamState>();
              state->step(fields.numbers.at("step"));
              state->square_avg(fields.tensors.at("square_avg"));
              if (const auto it = fields.tensors.find("momentum_buffer"); it != fields.tensors.end())
                state->momentum_buffer(it->second);
              if (const auto it = fields.tensors.find("grad_avg"); it != fields.tensors.end())
                state->grad_avg(it->second);
              return state;
            }};
  if (options.momentum() > 0) kind.fields.tensors["momentum_buffer"];
  if (options.centered()) kind.fields.tensors["grad_avg"];
  return kind;
}

Kind kind_of(const Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const AdamW*>(&optimizer)) return adam_kind<AdamWOptions, AdamWParamState>(optimizer);
  if (dynamic_cast<const Adam*>(&optimizer)) return adam_kind<AdamOptions, AdamParamState>(optimizer);
  if (dynamic_cast<const SGD*>(&optimizer)) {
    return {{{{"momentum_buffer", {}}}, {}},
            [](const Fields& fields) -> std::unique_ptr<OptimizerParamState> {
              auto state = std::make_unique<SGDParamState>();
              state->momentum_buffer(fields.tensors.at("momentum_buffer"));
              return state;
            }};
  }
  if (dynamic_cast<const Adagrad*>(&optimizer))
    return {{{{"sum", {}}}, {{"step", 0}}}, [](const Fields& fields) -> std::unique_ptr<OptimizerParamState> {
              auto state = std::make_unique<AdagradParamState>();
              state->step(fields.numbers.at("step"));
              state->sum(fields.tensors.at("sum"));
              return state;
            }};
  if (dynamic_cast<const RMSprop*>(&optimizer)) return rms_prop_kind(optimizer);
  throw UsageError("only the states of AdamW, Adam, SGD, Adagrad and RMSprop can be loaded", {},
                   "create the pieces of the optimizer states yourself");
}

Piece state_piece(const Piece& parameter, const std::string& state, const at::Tensor& tensor) {
  Piece piece = parameter;
  piece.kind = PieceKind::Optimizer;
  piece.state = state;
  piece.local = tensor;
  return piece;
}

Piece number_piece(const Piece& parameter, const std::string& state, const at::Tensor& number) {
  Piece piece = state_piece(parameter, state, number);
  piece.shape = {};
  piece.region = FullTensor{};
  return piece;
}

}  // namespace

std::vector<Piece> module_pieces(const torch::nn::Module& module, const std::string& prefix) {
  std::vector<Piece> pieces;
  std::map<void*, std::size_t> indices;
  add_named(module.named_parameters(), prefix, PieceKind::Parameter, indices, pieces);
  add_named(module.named_buffers(), prefix, PieceKind::Buffer, indices, pieces);
  return pieces;
}

std::vector<Piece> optimizer_pieces(const std::vector<Piece>& parameters, const Optimizer& optimizer) {
  std::vector<Piece> pieces;
  for (const Piece& parameter : parameters) {
    const auto it = optimizer.state().find(key_of(parameter.local));
    if (parameter.kind != PieceKind::Parameter || it == optimizer.state().end()) continue;
    const Fields fields = fields_of(*it->second);
    for (const auto& [name, tensor] : fields.tensors) pieces.push_back(state_piece(parameter, name, tensor));
    for (const auto& [name, number] : fields.numbers) {
      pieces.push_back(
          number_piece(parameter, name, at::scalar_tensor(number, at::TensorOptions(at::kLong))));
    }
  }
  return pieces;
}

OptimizerLoad optimizer_load(const Checkpoint& checkpoint, const std::vector<Piece>& parameters,
                             Optimizer& optimizer) {
  const Kind kind = kind_of(optimizer);
  std::set<std::string> stepped;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.kind == PieceKind::Optimizer) stepped.insert(tensor.name);
  }
  struct NewState {
    void* key;
    Fields fields;
    std::map<std::string, at::Tensor> numbers;
  };
  auto new_states = std::make_shared<std::vector<NewState>>();
  OptimizerLoad load;
  for (const Piece& parameter : parameters) {
    const StoredTensor* stored = checkpoint.find(parameter.name);
    if (parameter.kind != PieceKind::Parameter || stored == nullptr || !stepped.contains(stored->name))
      continue;
    NewState state{key_of(parameter.local), kind.fields, {}};
    for (auto& [name, tensor] : state.fields.tensors) {
      tensor = at::zeros_like(parameter.local.detach(), at::MemoryFormat::Preserve);
      load.pieces.push_back(state_piece(parameter, name, tensor));
    }
    for (const auto& [name, number] : state.fields.numbers) {
      const at::Tensor& target = state.numbers[name] = at::zeros({}, at::TensorOptions(at::kLong));
      load.pieces.push_back(number_piece(parameter, name, target));
    }
    new_states->push_back(std::move(state));
  }
  load.adopt = [new_states, make = kind.make, &optimizer] {
    for (NewState& state : *new_states) {
      for (auto& [name, number] : state.fields.numbers) number = state.numbers.at(name).item<std::int64_t>();
      optimizer.state()[state.key] = make(state.fields);
    }
  };
  return load;
}

}  // namespace penstock::checkpoint
