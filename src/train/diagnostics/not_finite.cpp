// Searches for the first value that is not finite.
#include "train/diagnostics/not_finite.h"

#include "base/text.h"
#include "train/data/device_batch.h"
#include "train/loop/counted_rows.h"
#include "train/model/auto_plan.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <tuple>

namespace penstock::train {
namespace {

using Kind = NotFinite::Kind;

// A finding with its position in forward order: by part of the batch, then microbatch, then stage, with the
// loss after the last stage. Findings that no output shows come last.
struct Located {
  bool hidden = false;
  std::int64_t part = 0, microbatch = 0, stage = 0, replica = 0;
  std::string message{}, tensor{}, op{};
  bool data = false;

  auto position() const { return std::tie(hidden, part, microbatch, stage, replica); }
};

std::string data_name(const NotFinite& found, const Batch& batch, std::int64_t stage) {
  if (found.kind == Kind::Target) return "target";
  if (found.kind == Kind::Keyword && batch.kwargs.contains(found.name)) return found.name;
  if (found.kind != Kind::Argument || stage > 0) return "";
  const auto number = static_cast<std::size_t>(std::stoull(found.name));
  return number < batch.names.size() ? batch.names[number] : "argument " + found.name;
}

std::string message_of(const NotFinite& found, std::int64_t stage) {
  switch (found.kind) {
    case Kind::Argument:
      return str_cat("an output of stage ", stage - 1, " contains ", found.value);
    case Kind::Keyword:
      return "the value " + quote(found.name) + " of an earlier stage contains " + found.value;
    case Kind::Parameter:
      return "parameter " + quote(found.name) + " contains " + found.value;
    case Kind::Output:
      return "first seen in the output, which contains " + found.value;
    case Kind::Target:
    case Kind::Loss:
      return "every output is finite, but the loss is " + found.value;
  }
  return {};
}

// Returns the first finding of this rank in one part of the batch.
std::optional<Located> search(const Assembly& assembly, const PassBatch& pass, std::int64_t first_row) {
  StageObserver& observer = *assembly.observer;
  observer.finite = true;
  observer.losses = 0;
  observer.loss.reset();
  for (const auto& [index, stage] : assembly.stages) stage->reset();
  // Use training mode, as in the failed step.
  const Batch& batch = pass.batch;
  assembly.pipeline->eval(batch.args, pass.target(), {.kwargs = batch.kwargs, .keep_mode = true});
  observer.finite = false;
  const schedule::Program& program = assembly.pipeline->program();
  std::optional<Located> first;
  const auto consider = [&](const std::optional<NotFinite>& found, std::int64_t stage) {
    if (!found) return;
    Located here{.hidden = found->hidden, .microbatch = found->microbatch, .stage = stage, .op = found->op};
    if (first && first->position() < here.position()) return;
    here.tensor = data_name(*found, batch, stage);
    here.data = !here.tensor.empty();
    here.message = message_of(*found, stage);
    if (here.data) {
      const auto sizes = value::chunk_sizes(pass.rows, program.microbatches());
      const std::int64_t row =
          std::accumulate(sizes.begin(), sizes.begin() + found->microbatch, first_row + found->row);
      here.message = str_cat("the data's ", quote(here.tensor), " contains ", found->value, " in row ", row,
                             " of the batch (counted from 0)");
    }
    if (found->kind == Kind::Parameter) here.tensor = found->name;
    first = here;
  };
  for (const auto& [index, stage] : assembly.stages) consider(stage->first_bad(), index.value);
  consider(observer.loss, program.num_stages());
  return first;
}

c10::IValue to_value(const Located& it) {
  return c10::ivalue::Tuple::create(
      {it.hidden, it.part, it.microbatch, it.stage, it.replica, it.message, it.tensor, it.op, it.data});
}

Located from_value(const c10::IValue& value) {
  const std::vector<c10::IValue> items = value.toTupleRef().elements().vec();
  return {items[0].toBool(),      items[1].toInt(),       items[2].toInt(),
          items[3].toInt(),       items[4].toInt(),       items[5].toStringRef(),
          items[6].toStringRef(), items[7].toStringRef(), items[8].toBool()};
}

Error error_of(const Located& first, const std::string& text, const RunOptions& options, int stages,
               const std::string& hint) {
  std::string where;
  if (options.accumulate > 1) where += str_cat(", part ", first.part, " of the batch");
  if (options.parallel.dp > 1) where += str_cat(", replica ", first.replica);
  const ErrorContext context{.stage = StageId(std::min<std::int64_t>(first.stage, stages - 1)),
                             .microbatch = MicrobatchId(first.microbatch),
                             .tensor = first.tensor,
                             .op = first.op};
  const char* const finite = first.hidden ? "every forward pass and its loss are finite, but " : "";
  return Error(text + ": " + finite + first.message + where, context,
               first.data ? "check the data, or use on_nan = skip to skip the update of such steps" : hint);
}

}  // namespace

Error find_not_finite(const tensor::DeviceMesh& mesh, const Assembly& assembly, const DataSource& data,
                      const RunOptions& options, const StepRecord& record) {
  const comm::Group& world = mesh.all();
  const int replica = mesh.group("dp").rank();
  std::optional<Located> first;
  for (std::int64_t part = 0; part < options.accumulate; ++part) {
    const Rows rows = rows_of(options, replica, part);
    PassBatch pass = training_pass(data, options, record.step, replica, part);
    pass.batch = to_device(std::move(pass.batch), assembly.device);
    std::optional<Located> found = search(assembly, pass, rows.begin);
    if (!found) continue;
    found->part = part;
    found->replica = replica;
    if (!first || found->position() < first->position()) first = found;
  }
  const c10::IValue local = first ? to_value(*first) : c10::IValue();
  const std::vector<c10::IValue> all =
      world.size() > 1 ? world.all_gather_object(local) : std::vector<c10::IValue>{local};
  first.reset();
  for (const c10::IValue& value : all) {
    if (value.isNone()) continue;
    const Located other = from_value(value);
    if (!first || other.position() < first->position()) first = other;
  }
  std::ostringstream text;
  text << "the loss is " << record.loss << " and the norm of the gradients " << record.grad_norm;
  const std::string hint =
      "reduce the learning rate, use warmup or grad_clip, or use on_nan = skip to skip such updates";
  if (!first)
    return Error(text.str() + ": every forward pass and its loss are finite, so a backward pass produced it",
                 {}, hint);
  return error_of(*first, text.str(), options, assembly.pipeline->program().num_stages(), hint);
}

}  // namespace penstock::train
