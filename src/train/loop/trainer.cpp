// The training loop: batch, forward and backward over the pipeline, clip, update, report, validate, save.
#include "base/text.h"
#include "train/diagnostics/not_finite.h"
#include "train/loop/checkpoint_manager.h"
#include "train/loop/log_file.h"
#include "train/loop/measure.h"
#include "train/loop/validation.h"
#include "train/model/assembly.h"
#include "train/model/auto_plan.h"

#include <penstock/base/error.h>
#include <penstock/train/trainer.h>

#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

// The report of a rank to all others, once per step.
struct Report {
  double loss = 0, grad_norm = 0, busy = 0, end = 0, peak = 0;
};
constexpr std::int64_t kReportSize = 5;

std::vector<Report> exchange(const comm::Group& world, const Report& mine) {
  const at::Tensor tensor =
      at::tensor({mine.loss, mine.grad_norm, mine.busy, mine.end, mine.peak}, at::kDouble);
  const std::vector<at::Tensor> all =
      world.size() > 1 ? world.all_gather(tensor) : std::vector<at::Tensor>{tensor};
  std::vector<Report> reports;
  for (const at::Tensor& one : all) {
    const auto* v = one.const_data_ptr<double>();
    reports.push_back({v[0], v[1], v[2], v[3], v[4]});
  }
  static_assert(sizeof(Report) == kReportSize * sizeof(double));
  return reports;
}

Mesh checked_mesh(const comm::World& world, const RunOptions& options) {
  check(options);
  return make_mesh(world, options.parallel);
}

class Run {
 public:
  Run(const comm::World& world, Model& model, const DataSource& data, const RunOptions& options,
      const RunExtras& extras)
      : model_(model),
        data_(data),
        options_(options),
        extras_(extras),
        mesh_(checked_mesh(world, options)),
        reduction_(model.reduction()),
        progress_(world.rank().value),
        saves_(mesh_, options_),
        reports_(world.rank().value == 0) {}

  RunResult run() {
    progress_.at("setup");
    set_up();
    LogFile log(reports_ ? options_.log_json : "", first_step_);
    if (observer()) observer()->began(info());
    for (const auto& remarks : {saves_.remarks(), model_.remarks()})
      for (const std::string& remark : remarks)
        if (observer()) observer()->noted(remark);
    for (progress_.step = first_step_; progress_.step <= options_.steps; ++progress_.step) {
      try {
        const StepRecord record = step();
        result_.losses.push_back(record.loss);
        log.write(record);
        if (observer()) observer()->stepped(record);
        if (options_.eval_every > 0 && progress_.step % options_.eval_every == 0) evaluate();
        if (save_is_due()) save(progress_.step);
        tell_of_saved();
      } catch (const UsageError&) {
        throw;
      } catch (const Error& error) {
        std::throw_with_nested(Error("step " + std::to_string(progress_.step) + ": " + error.message(),
                                     error.context(), error.hint()));
      }
    }
    progress_.step = options_.steps;
    finish();
    return std::move(result_);
  }

 private:
  Observer* observer() const { return reports_ ? extras_.observer : nullptr; }

  void set_up() {
    const Rows mine = rows_of(options_, 0, 0);
    model_.check_rows(value::chunk_sizes(mine.end - mine.begin, options_.parallel.microbatches));
    choose_cuts();
    const schedule::Schedule schedule = choose_schedule();
    assembly_ = assemble(mesh_, model_, schedule, options_, progress_);
    saves_.load(assembly_);
    first_step_ = saves_.step() + 1;
    // A restart must repeat the decisions even before the first checkpoint is due.
    if (saves_.on() && !decisions_.empty() && first_step_ == 1) save(0);
    result_.plan = decisions_.plan;
  }

  // Chooses the split positions of a model that is balanced by measured times: rank 0 measures them, or takes
  // them from the checkpoint, and broadcasts them.
  void choose_cuts() {
    const ParallelOptions& asked = options_.parallel;
    const bool planned = to_lower(asked.schedule) == "auto";
    const int stages =
        planned ? asked.pp * std::max(asked.stages_per_rank, 1) : schedule_of(asked, asked.schedule).stages();
    std::string cuts;
    if (mesh_.world.rank() == 0) {
      cuts = saves_.decisions().cuts;
      if (cuts.empty() || std::count(cuts.begin(), cuts.end(), ' ') + 2 != stages) {
        const Rows all = rows_of(options_, 0, 0);
        const std::int64_t rows = value::chunk_sizes(all.end - all.begin, asked.microbatches).front();
        cuts = model_.measured_cuts(stages, data_.training(1, options_.batch, {0, rows}));
      }
    }
    if (mesh_.world.size() > 1) cuts = mesh_.world.broadcast_object(c10::IValue(cuts), 0).toStringRef();
    model_.use_cuts(cuts);
    decisions_.cuts = cuts;
  }

  schedule::Schedule choose_schedule() {
    const ParallelOptions& asked = options_.parallel;
    if (to_lower(asked.schedule) != "auto") return schedule_of(asked, asked.schedule);
    if (const std::string stored = saves_.decisions().plan; !stored.empty()) {
      schedule::Schedule plan = read_plan(stored);
      const int each = plan.stages() / plan.placement.ranks();
      if (plan.placement.ranks() == asked.pp && plan.microbatches == asked.microbatches &&
          each == std::max(asked.stages_per_rank, 1)) {
        decisions_.plan = stored;
        return plan;
      }
    }
    schedule::Schedule plan = plan_schedule(mesh_, model_, data_, options_, progress_);
    decisions_.plan = plan_text(plan);
    return plan;
  }

  void save(std::int64_t step) {
    progress_.at("checkpoint");
    guard_storage([&] { saves_.wait(); });
    tell_of_saved();
    guard_storage([&] { saves_.save(step, assembly_, decisions_); });
  }

  // A checkpoint is written in the background and reported when it is complete.
  void tell_of_saved() {
    const std::optional<std::int64_t> step = saves_.last_complete();
    if (!step || step == told_) return;
    told_ = step;
    if (observer())
      observer()->saved(*step, options_.checkpoint.directory + "/" + checkpoint::checkpoint_name(*step));
  }

  // With StoragePolicy::Warn, training continues without the checkpoint.
  template <class Body>
  void guard_storage(const Body& body) {
    try {
      body();
    } catch (const checkpoint::StorageError& error) {
      if (options_.checkpoint.on_error == StoragePolicy::Stop) throw;
      if (observer())
        observer()->noted("step " + std::to_string(progress_.step) + ": " + error.message() +
                          "; training continues");
    }
  }

  bool save_is_due() const {
    const std::int64_t every = options_.checkpoint.every, step = progress_.step;
    return saves_.on() && (step == options_.steps || (every > 0 && step % every == 0));
  }

  RunInfo info() const {
    const schedule::Program& program = assembly_.pipeline->program();
    return {model_.describe(), program.name(), program.stages(), first_step_, options_.steps};
  }

  StepRecord step() {
    const auto start = Clock::now();
    if (progress_.at("step")) poison();
    // Counting bytes for the planner has a small cost, so only the first step does it.
    assembly_.watch->measure = progress_.step == first_step_;
    assembly_.optimizer->zero_grad();
    StepRecord record{.step = progress_.step};
    std::int64_t tokens = 0;
    Report mine;
    std::optional<double> denominator;
    for (std::int64_t part = 0; part < options_.accumulate; ++part) {
      const Batch batch = data_.training(progress_.step, options_.batch, rows_of(options_, mesh_.dp, part));
      if (part == 0) denominator = loss_denominator(batch);
      runtime::StepInput input{batch.args, batch.kwargs, batch.target};
      input.loss_denominator = denominator;
      const runtime::StepResult result = assembly_.pipeline->step(input);
      mine.loss += result.loss.item<double>() / static_cast<double>(options_.accumulate);
      tokens += batch.tokens;
      const Busy busy = busy_of(result.timeline);
      mine.busy += busy.busy;
      mine.end += busy.end;
      if (part + 1 == options_.accumulate) keep_timeline(result.timeline);
    }
    progress_.at("update");
    if (options_.accumulate > 1)
      assembly_.optimizer->scale_gradients(1.0 / static_cast<double>(options_.accumulate));
    const double limit =
        options_.grad_clip > 0 ? options_.grad_clip : std::numeric_limits<double>::infinity();
    mine.grad_norm = assembly_.pipeline->clip_grad_norm(limit);
    mine.peak = static_cast<double>(peak_resident_bytes());
    fill(record, exchange(mesh_.world, mine));
    record.rate = rate_at(options_.rate, progress_.step, options_.steps);
    if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) not_finite(record);
    if (!record.skipped) assembly_.optimizer->step(record.rate);
    record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    record.examples_per_second = static_cast<double>(options_.batch) / record.seconds;
    if (tokens > 0)
      record.tokens_per_second = static_cast<double>(tokens * options_.parallel.dp) / record.seconds;
    return record;
  }

  // Returns StepInput::loss_denominator for the parts of the batch; nullopt if losses are weighted by rows,
  // because all parts have the same number of rows. Every rank can read all labels, so this needs no
  // communication.
  std::optional<double> loss_denominator(const Batch& first_part) const {
    const std::int64_t parts = options_.parallel.dp * options_.accumulate;
    const std::optional<double> weight = reduction_.weight_of(
        parts == 1 ? first_part.target : data_.training_target(progress_.step, options_.batch));
    if (weight == 0.0 && observer())
      observer()->noted("step " + std::to_string(progress_.step) +
                        ": every label of the batch is ignored; its loss and gradients are 0");
    return weight ? std::optional(*weight / static_cast<double>(parts)) : std::nullopt;
  }

  // Combines the reports of all ranks into one record, identical on every rank.
  void fill(StepRecord& record, const std::vector<Report>& reports) const {
    const int replicas = options_.parallel.dp, tensors = options_.parallel.tp;
    double busy = 0, end = 0;
    for (const Report& report : reports) {
      busy += report.busy;
      end = std::max(end, report.end);
      record.peak_memory.push_back(static_cast<std::uint64_t>(report.peak));
    }
    // The first pipeline rank of each replica.
    for (int d = 0; d < replicas; ++d)
      record.loss += reports[static_cast<std::size_t>(d * tensors)].loss / replicas;
    record.grad_norm = reports.front().grad_norm;
    if (end > 0) record.bubble = std::max(0.0, 1 - busy / (end * static_cast<double>(reports.size())));
  }

  void not_finite(StepRecord& record) {
    switch (options_.on_nan) {
      case NanPolicy::Ignore:
        return;
      case NanPolicy::Skip:
        record.skipped = true;
        if (observer())
          observer()->noted("step " + std::to_string(record.step) +
                            ": the loss or a gradient is not finite; the update was skipped");
        return;
      case NanPolicy::Stop:
        throw find_not_finite(mesh_, assembly_, data_, options_, record);
    }
  }

  void poison() {
    for (const runtime::NamedTensor& item : assembly_.optimizer->parameters())
      item.tensor.detach().fill_(std::nan(""));
  }

  void evaluate() {
    if (data_.validation_rows() == 0) return;
    model_.set_training(false);
    result_.validation = validation_loss(mesh_, assembly_, model_, data_, options_);
    model_.set_training(true);
    if (!observer()) return;
    if (result_.validation) {
      observer()->evaluated(progress_.step, *result_.validation);
    } else {
      observer()->noted("step " + std::to_string(progress_.step) +
                        ": every label of the validation rows is ignored; there is no validation loss");
    }
  }

  // Keeps the last steps, for drawings and costs. The first step includes allocations and connection set-up.
  void keep_timeline(const schedule::Timeline& timeline) {
    constexpr std::size_t most = 8;
    if (progress_.step == first_step_ && options_.steps > first_step_) return;
    timelines_.push_back(timeline);
    if (timelines_.size() > most) timelines_.erase(timelines_.begin());
  }

  void finish() {
    if (!options_.timeline.empty() || !options_.trace.empty() || !options_.profile.empty()) write_measures();
    if (extras_.gather_parameters) result_.parameters = gather_parameters(mesh_, assembly_);
    guard_storage([&] { saves_.wait(); });
    tell_of_saved();
    result_.checkpoint = saves_.newest();
    progress_.at("end");
    mesh_.world.barrier();
  }

  void write_measures() {
    if (timelines_.empty()) return;
    std::vector<schedule::Timeline> whole;
    for (const schedule::Timeline& one : timelines_) whole.push_back(gather_timeline(mesh_.pipeline, one));
    const schedule::Program& program = assembly_.pipeline->program();
    const plan::Costs costs =
        measured_costs(whole, gather_bytes(mesh_.pipeline, program.stages(), assembly_.bytes()));
    if (!reports_) return;
    if (!options_.timeline.empty())
      write_file(options_.timeline, timeline_page(program, whole.back(), costs));
    if (!options_.trace.empty()) write_file(options_.trace, timeline_trace(whole.back()));
    if (!options_.profile.empty())
      write_file(options_.profile,
                 cost_file(costs, options_.parallel.microbatches, model_.describe() + ", " + program.name()));
  }

  Model& model_;
  const DataSource& data_;
  RunOptions options_;
  RunExtras extras_;
  Mesh mesh_;
  runtime::LossReduction reduction_;
  Progress progress_;
  CheckpointManager saves_;
  bool reports_;
  Assembly assembly_;
  Decisions decisions_;
  std::int64_t first_step_ = 1;
  std::optional<std::int64_t> told_;  // the last checkpoint reported to the observer
  std::vector<schedule::Timeline> timelines_;
  RunResult result_;
};

}  // namespace

void announce_start() {
  const char* const rank = std::getenv("RANK");
  if (rank != nullptr) Progress(std::atoi(rank)).at("start");
}

RunResult run(const comm::World& world, Model& model, const DataSource& data, const RunOptions& options,
              const RunExtras& extras) {
  try {
    return Run(world, model, data, options, extras).run();
  } catch (const PeerFailed&) {
    throw;
  } catch (const std::exception& error) {
    if (world.size() > 1) world.group().fail(error.what());  // so that other ranks can report the cause
    throw;
  }
}

}  // namespace penstock::train
