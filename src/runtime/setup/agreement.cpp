// Agreement between ranks.
#include "runtime/setup/agreement.h"

#include "base/text.h"
#include "runtime/setup/signature.h"
#include "value/chunk_rules.h"

#include <penstock/base/error.h>
#include <penstock/torch_version.h>
#include <penstock/version.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <map>
#include <set>

namespace penstock::runtime {
namespace {

std::string program_hash(const schedule::Program& program) {
  Signature hash;
  for (const schedule::ActionList& list : program.draft().ranks) {
    for (const schedule::Action& action : list) hash.add(std::string_view(to_string(action)));
    hash.add(std::string_view("|"));
  }
  return std::to_string(hash.value());
}

std::string declared(const PipelineOptions& options) {
  std::string text;
  for (const SkipValue& skip : options.skips) {
    text += str_cat(skip.name, ":", skip.from.value, ">", skip.to.value, " ");
  }
  for (const SharedParameter& shared : options.shared) {
    text += "shared";
    for (const ParameterLocation& location : shared)
      text += str_cat(" ", location.stage.value, ".", location.name);
    text += "; ";
  }
  return text;
}

}  // namespace

// Ordered so that the first difference reported is the easiest to understand.
SetupFields fields_of(const PipelineSetup& setup) {
  const PipelineOptions& options = setup.options;
  return {{"Penstock version", version()},
          {"libtorch version", torch_version()},
          {"number of stages", std::to_string(setup.program.num_stages())},
          {"number of microbatches", std::to_string(setup.program.microbatches())},
          {"schedule", setup.program.name()},
          {"program", program_hash(setup.program)},
          {"kind of device", c10::DeviceTypeName(setup.stages.front().device().type(), true)},
          {"default dtype", std::string(c10::get_default_dtype().name())},
          {"shape mode", std::string(to_string(options.shapes))},
          {"scaling of gradients", options.scale_grads ? "on" : "off"},
          {"loss on all ranks", options.loss_on_all_ranks ? "on" : "off"},
          {"skip values and shared parameters", declared(options)},
          {"seed", std::to_string(options.seed)}};
}

void compare_fields(const comm::Group& group, const SetupFields& local) {
  c10::impl::GenericList values(c10::AnyType::get());
  for (const auto& [name, value] : local) values.push_back(c10::IValue(value));
  const std::vector<c10::IValue> all = group.all_gather_object(c10::IValue(values));
  for (std::size_t field = 0; field < local.size(); ++field) {
    const auto firsts = all[0].toListRef();
    const std::string first = field < firsts.size() ? firsts[field].toStringRef() : "none";
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const auto received = all[rank].toListRef();  // another version may have fewer fields
      const std::string other = field < received.size() ? received[field].toStringRef() : "none";
      if (other == first) continue;
      throw UsageError(str_cat("the ranks' pipelines differ in the ", local[field].first, ": ", first,
                               " on rank ", group.global_rank(0).value, ", ", other, " on rank ",
                               group.global_rank(static_cast<int>(rank)).value),
                       {},
                       "construct the pipeline with the same stages, microbatches and options on every rank");
    }
  }
}

void compare_setups(const PipelineSetup& setup) {
  compare_fields(setup.group, fields_of(setup));
}

void learn_from_all_ranks(PipelineSetup& setup) {
  bool any = false;
  c10::impl::GenericList names(c10::AnyType::get());
  for (const PipelineStage& stage : setup.stages) {
    const auto keywords = stage.module().keywords();
    any = any || !keywords;
    if (keywords)
      for (const std::string& name : *keywords) names.push_back(c10::IValue(name));
  }
  const bool loss = setup.local(setup.last_stage()) && setup.options.loss;
  const c10::IValue report = c10::ivalue::Tuple::create({any ? c10::IValue() : c10::IValue(names), loss});
  std::set<std::string> all;
  setup.has_loss = false;
  for (const c10::IValue& gathered : setup.group.all_gather_object(report)) {
    const auto& facts = gathered.toTupleRef().elements();
    setup.has_loss = setup.has_loss || facts[1].toBool();
    any = any || facts[0].isNone();
    if (facts[0].isNone()) continue;
    for (const c10::IValue& name : facts[0].toListRef()) all.insert(name.toStringRef());
  }
  setup.keywords = any ? std::nullopt : std::optional(std::move(all));
}

namespace {

// Exchanges a byte of device memory with each peer. Transports with ordered transfers may open a connection
// of two ranks inside the first call, where both must meet: all ranks visit their pairs in the same order,
// and the lower rank of a pair sends first.
void open_device_connections(const PipelineSetup& setup, const std::set<int>& peers) {
  const auto exchange = [&](int peer) {
    const at::Tensor byte = at::zeros({1}, at::device(setup.stages.front().device()).dtype(at::kByte));
    const bool first = setup.rank.value < peer;
    if (first) setup.group.isend(byte, peer).wait();
    setup.group.irecv(byte, peer).wait();
    if (!first) setup.group.isend(byte, peer).wait();
  };
  // Pairs in the order of their lower rank, then of their higher rank.
  for (const int peer : peers) {
    if (peer < setup.rank.value) exchange(peer);
  }
  for (const int peer : peers) {
    if (peer > setup.rank.value) exchange(peer);
  }
}

}  // namespace

void warm_up(const PipelineSetup& setup) {
  std::set<int> peers;
  const schedule::Wiring& wiring = setup.program.wiring();
  for (int edge = 0; edge < wiring.edges(); ++edge) {
    const Rank from = setup.rank_of(wiring.edge(edge).from);
    const Rank to = setup.rank_of(wiring.edge(edge).to);
    if (from == to || (from != setup.rank && to != setup.rank)) continue;
    peers.insert(from == setup.rank ? to.value : from.value);
  }
  std::map<int, comm::Work> receives;
  std::map<int, at::Tensor> bytes;
  for (const int peer : peers) {
    bytes[peer] = at::empty({1}, at::kByte);
    receives.emplace(peer, setup.group.irecv(bytes[peer], peer));
    setup.group.isend(at::empty({1}, at::kByte), peer).detach();
  }
  for (auto& [peer, receive] : receives) {
    try {
      receive.wait();
    } catch (const PeerFailed&) {
      throw;
    } catch (const Error& e) {
      const auto [low, high] =
          std::minmax({setup.group.global_rank(setup.rank.value).value, setup.group.global_rank(peer).value});
      throw CommError(str_cat("ranks ", low, " and ", high, " cannot reach each other: ", e.message()),
                      e.context(), e.hint());
    }
  }
  if (setup.group.send_mode() == schedule::SendMode::Ordered) open_device_connections(setup, peers);
  // Ranks whose own pairs work learn here that another pair failed.
  if (setup.group.size() > 1) setup.group.barrier();
}

NoteExchange::NoteExchange(const PipelineSetup& setup, const StepNote& local)
    : setup_(setup), microbatches_(local.signatures.size()) {
  const at::Tensor note = at::empty({static_cast<std::int64_t>(3 + 2 * microbatches_)}, at::kLong);
  auto* sent = note.mutable_data_ptr<std::int64_t>();
  sent[0] = static_cast<std::int64_t>(local.step);
  sent[1] = local.train ? 1 : 0;
  sent[2 + 2 * microbatches_] = local.row_order;
  for (std::size_t m = 0; m < microbatches_; ++m) {
    sent[2 + m] = static_cast<std::int64_t>(local.signatures[m]);
    sent[2 + microbatches_ + m] = local.rows[m];
  }
  all_ = at::empty({setup.group.size(), note.numel()}, at::kLong);
  work_ = setup.group.iall_gather_into(all_, note);
}

std::vector<StepNote> NoteExchange::finish() {
  work_.wait();
  std::vector<StepNote> notes;
  for (int rank = 0; rank < setup_.group.size(); ++rank) {
    const auto* received = all_.const_data_ptr<std::int64_t>() + rank * all_.size(1);
    StepNote other{
        static_cast<std::uint64_t>(received[0]), received[1] != 0, {}, {}, received[2 + 2 * microbatches_]};
    for (std::size_t m = 0; m < microbatches_; ++m) {
      other.signatures.push_back(static_cast<std::uint64_t>(received[2 + m]));
      other.rows.push_back(received[2 + microbatches_ + m]);
    }
    notes.push_back(std::move(other));
    if (notes.back().train != notes.front().train || notes.back().step != notes.front().step) {
      const auto text = [](const StepNote& n) {
        return str_cat((n.train ? "step " : "evaluation "), n.step);
      };
      throw UsageError(str_cat("the ranks do not run the same step: rank ", setup_.group.global_rank(0).value,
                               " runs ", text(notes.front()), ", rank ", setup_.group.global_rank(rank).value,
                               " runs ", text(notes.back())));
    }
  }
  return notes;
}

std::vector<StepNote> exchange_notes(const PipelineSetup& setup, const StepNote& local) {
  if (setup.group.size() == 1) return {local};
  return NoteExchange(setup, local).finish();
}

std::int64_t row_order_code(const value::RowOrder& order) {
  if (order.size() <= 1) return static_cast<std::int64_t>(order.size());
  Signature signature;
  for (const std::int64_t shard : order) signature.add(static_cast<std::uint64_t>(shard));
  return static_cast<std::int64_t>(signature.value());
}

// Compared across ranks, because the input of the first stage, the target of the last and the keyword
// arguments may be given on different ranks.
void check_row_orders(const PipelineSetup& setup, const std::vector<StepNote>& notes) {
  std::size_t first = 0;
  while (first < notes.size() && notes[first].row_order == 0) ++first;
  for (std::size_t rank = first + 1; rank < notes.size(); ++rank) {
    if (notes[rank].row_order == 0 || notes[rank].row_order == notes[first].row_order) continue;
    const auto given = [&](std::size_t member) {
      return str_cat("rank ", setup.group.global_rank(static_cast<int>(member)).value,
                     " was given rows that are ", (notes[member].row_order == 1 ? "not sharded" : "sharded"));
    };
    const bool both = notes[first].row_order != 1 && notes[rank].row_order != 1;
    throw ShapeError(given(first) + " and " + given(rank) + (both ? " in a different way" : "") +
                         ", so microbatches would pair different rows",
                     {}, value::row_order_hint());
  }
}

const value::RowOrder& BatchRowOrder::find(const PipelineSetup& setup, const std::vector<StepNote>& notes,
                                           const value::RowOrder& local) {
  const auto holder =
      std::find_if(notes.begin(), notes.end(), [](const StepNote& note) { return note.row_order != 0; });
  // If nothing is split, or the caller split the batch, the rows of the microbatches are consecutive.
  if (holder == notes.end()) return known_.at(1);
  const auto known = known_.find(holder->row_order);
  if (known != known_.end()) return known->second;
  const auto root = static_cast<int>(holder - notes.begin());
  const c10::IValue order = setup.group.broadcast_object(c10::IValue(local), root);
  return known_[holder->row_order] = order.toIntVector();
}

}  // namespace penstock::runtime
