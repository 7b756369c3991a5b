// The training loop: batch, forward and backward over the pipeline, clip, update, report, validate, save.
#include "base/number_text.h"
#include "base/text.h"
#include "train/data/device_batch.h"
#include "train/data/locked_source.h"
#include "train/diagnostics/not_finite.h"
#include "train/loop/checkpoint_manager.h"
#include "train/loop/loss_scale.h"
#include "train/loop/measure.h"
#include "train/loop/pass_loader.h"
#include "train/loop/run_log.h"
#include "train/loop/step_report.h"
#include "train/loop/validation.h"
#include "train/lora/adapter_note.h"
#include "train/model/assembly.h"
#include "train/model/auto_plan.h"
#include "train/model/master_weights.h"

#include <penstock/base/error.h>
#include <penstock/train/trainer.h>

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

tensor::DeviceMesh checked_mesh(const comm::World& world, const RunOptions& options) {
  check(options);
  return make_mesh(world, options.parallel);
}

// The notes of the caller, and with LoRA one about adapters and base, of which one rank reads a part.
checkpoint::Notes notes_of(const comm::World& world, const Model& model, const RunOptions& options,
                           checkpoint::Notes notes) {
  if (model.lora() == nullptr) return notes;
  std::string text;
  if (world.rank().value == 0) text = to_json(*adapter_note_of(model, options.init));
  notes[kAdapterNote] = world.group().broadcast_object(c10::IValue(text), 0).toStringRef();
  return notes;
}

class Run {
 public:
  Run(const comm::World& world, const Model& model, const DataSource& data, const RunOptions& options,
      const RunExtras& extras)
      : model_(model),
        data_(data),
        options_(options),
        extras_(extras),
        mesh_(checked_mesh(world, options)),
        device_(world.device()),
        reduction_(model.reduction()),
        rate_(options.learning_rate, options.steps),
        loss_scale_(options, has_float16_parameters(model)),
        progress_{.hook = extras.hook},
        checkpoints_(mesh_.all(), options_, notes_of(world, model, options, extras.notes)),
        reports_(world.rank().value == 0) {}

  RunResult run() {
    progress_.enter(RunPhase::Setup);
    // Before anything is loaded: the notes may explain why that fails.
    if (observer() && checkpoints_.step() > 0) observer()->on_resume(stored_notes());
    set_up();
    start_loading();
    log_.emplace(options_, reports_, first_step_);
    if (observer()) observer()->on_begin(info());
    for (const auto& messages : {checkpoints_.messages(), assembly_.messages})
      for (const std::string& message : messages) report(message);
    for (progress_.step = first_step_; progress_.step <= options_.steps; ++progress_.step) {
      try {
        if (std::optional<StepRecord> record = step()) {
          result_.losses.push_back(record->loss);
          if (observer()) observer()->on_step(*record);
          if (options_.live_timeline) report_timeline();
          if (is_due(options_.eval_every)) record->validation_loss = evaluate();
          log_->write(*record);
        }
        if (checkpoint_is_due()) save(progress_.step);
        report_checkpoint();
        if (result_.stopped != 0) break;
      } catch (const UsageError&) {
        throw;
      } catch (const Error& error) {
        std::throw_with_nested(RunError(progress_.step, error));
      }
    }
    if (result_.stopped == 0) progress_.step = options_.steps;
    result_.last_step = progress_.step;
    finish();
    return std::move(result_);
  }

 private:
  Observer* observer() const { return reports_ ? extras_.observer : nullptr; }
  void report(const std::string& message) const {
    if (observer()) observer()->on_message(message);
  }
  void report_in_step(const std::string& message) const {
    report(str_cat("step ", progress_.step, ": ", message));
  }

  void set_up() {
    if (const std::optional<std::string> position = checkpoints_.note(kPositionNote))
      data_.continue_at(checkpoints_.step(), *position);
    const Rows rows = rows_of(options_, 0, 0);
    model_.check_rows(value::chunk_sizes(rows.end - rows.begin, options_.parallel.microbatches));
    const ModelSplit split = choose_split(num_stages(options_.parallel));
    const schedule::Schedule schedule = choose_schedule(split);
    assembly_ = assemble(mesh_, device_, model_, split, schedule, data_, options_, progress_);
    checkpoints_.load(assembly_, model_);
    loss_scale_.restore(checkpoints_.decisions().loss_scale);
    first_step_ = checkpoints_.step() + 1;
    // A restart must repeat the decisions even before the first checkpoint is due.
    if (checkpoints_.enabled() && !decisions_.empty() && first_step_ == 1) save(0);
    if (!decisions_.plan.empty()) result_.plan = decisions_.plan;
    result_.first_step = first_step_;
  }

  void start_loading() {
    const std::int64_t steps = std::max<std::int64_t>(options_.steps - first_step_ + 1, 0);
    const auto load = [this, replica = mesh_.group("dp").rank()](std::int64_t number) {
      LoadedPass loaded = load_training_pass(data_, options_, first_step_ + number / options_.accumulate,
                                             replica, number % options_.accumulate);
      loaded.pass.batch = pinned(std::move(loaded.pass.batch), device_);
      return loaded;
    };
    passes_.emplace(load, steps * options_.accumulate, options_.prefetch, device_);
  }

  // Rank 0 takes a measured split from the checkpoint, or measures it, and broadcasts it. Every rank computes
  // any other split itself.
  ModelSplit choose_split(int stages) {
    if (stages == 1 || model_.has_given_split()) return model_.split(stages);
    const comm::Group& world = mesh_.all();
    std::string text;
    if (world.rank() == 0) {
      std::optional<ModelSplit> split = checkpoints_.decisions().split;
      if (!split || split->num_stages() != stages) {
        const Rows all = rows_of(options_, 0, 0);
        const std::int64_t rows =
            value::chunk_sizes(all.end - all.begin, options_.parallel.microbatches).front();
        const std::int64_t there = std::min(rows, data_.training_rows(1, options_.batch));
        split =
            model_.measured_split(stages, to_device(data_.training(1, options_.batch, {0, there}), device_));
      }
      if (split) text = to_string(*split);
    }
    if (world.size() > 1) text = world.broadcast_object(c10::IValue(text), 0).toStringRef();
    if (text.empty()) return model_.split(stages);
    decisions_.split = parse_model_split(text);
    return *decisions_.split;
  }

  schedule::Schedule choose_schedule(const ModelSplit& split) {
    const ParallelOptions& parallel_options = options_.parallel;
    if (parallel_options.table) return *parallel_options.table;
    if (const auto* kind = std::get_if<schedule::ScheduleKind>(&parallel_options.schedule))
      return schedule_of(parallel_options, *kind);
    if (const std::string stored = checkpoints_.decisions().plan; !stored.empty()) {
      schedule::Schedule plan = read_plan(stored);
      if (plan.placement.ranks() == parallel_options.pp &&
          plan.microbatches == parallel_options.microbatches &&
          plan.num_stages() == num_stages(parallel_options)) {
        decisions_.plan = stored;
        return plan;
      }
    }
    schedule::Schedule plan = plan_schedule(mesh_, device_, model_, split, data_, options_, progress_);
    decisions_.plan = plan_text(plan);
    return plan;
  }

  void save(std::int64_t step) {
    progress_.enter(RunPhase::Checkpoint);
    guard_storage([&] { checkpoints_.wait(); });
    report_checkpoint();
    if (loss_scale_.is_dynamic()) decisions_.loss_scale = loss_scale_.text();
    decisions_.position = data_.position_after(step, options_.batch);
    guard_storage([&] { checkpoints_.save(step, assembly_, decisions_); });
  }

  // A checkpoint is written in the background and reported when it is complete.
  void report_checkpoint() {
    const std::optional<std::int64_t> step = checkpoints_.last_complete();
    if (!step || step == reported_) return;
    reported_ = step;
    if (observer())
      observer()->on_checkpoint(*step, *options_.checkpoint.directory / checkpoint::checkpoint_name(*step));
  }

  // With StoragePolicy::Warn, training continues without the checkpoint.
  template <class Body>
  void guard_storage(const Body& body) {
    try {
      body();
    } catch (const checkpoint::StorageError& error) {
      if (options_.checkpoint.on_error == StoragePolicy::Stop) throw;
      report_in_step(error.message() + "; training continues");
    }
  }

  bool is_due(std::optional<std::int64_t> every) const { return every && progress_.step % *every == 0; }
  bool checkpoint_is_due() const {
    const bool last = progress_.step == options_.steps || result_.stopped != 0;
    return checkpoints_.enabled() && (last || is_due(options_.checkpoint.every));
  }

  std::map<std::string, std::string> stored_notes() const {
    std::map<std::string, std::string> notes;
    for (const auto& [name, ignored] : extras_.notes)
      if (const std::optional<std::string> note = checkpoints_.note(name)) notes[name] = *note;
    return notes;
  }

  RunInfo info() const {
    const schedule::Program& program = assembly_.pipeline->program();
    return {model_.summary(), program.name(), program.num_stages(), first_step_, options_.steps};
  }

  // Runs a step. Returns its record if it is logged; otherwise the host reads nothing from the device, except
  // the norm if the update depends on it.
  std::optional<StepRecord> step() {
    const auto start = Clock::now();
    progress_.enter(RunPhase::Step);
    bool logged = is_logged();
    // Counting bytes for the planner has a small cost, so only one step does it: the second, because the
    // first includes allocations that later ones reuse.
    assembly_.observer->measure = progress_.step == std::min(first_step_ + 1, options_.steps);
    assembly_.optimizer->zero_grad();
    StepReport local;
    std::vector<runtime::StepResult> parts = run_parts();
    progress_.enter(RunPhase::Update);
    const double divisor = loss_scale_.value() * static_cast<double>(options_.accumulate);
    if (divisor != 1) assembly_.optimizer->scale_gradients(1.0 / divisor);
    const bool reads_norm =
        options_.grad_clip || options_.on_nan == NanPolicy::Skip || loss_scale_.is_dynamic();
    // The last step is logged. Where the host would not wait for the device, only logged steps ask.
    if (!logged && (reads_norm || assembly_.device.is_cpu()))
      logged = is_asked_to_stop(mesh_.all(), extras_.stop);
    if (logged || reads_norm) {
      local.grad_norm = assembly_.pipeline->clip_grad_norm(
          options_.grad_clip.value_or(std::numeric_limits<double>::infinity()));
      if (!std::isfinite(local.grad_norm)) logged = true;  // on all ranks, which have the same norm
    }
    StepRecord record{.step = progress_.step};
    record.rate = rate_.at(progress_.step);
    if (loss_scale_.is_dynamic()) record.loss_scale = loss_scale_.value();
    if (logged) {
      read_results(local, parts);
      local.peak = static_cast<double>(peak_memory_bytes(assembly_.device));
      if (extras_.stop) local.stop = extras_.stop();
      const std::vector<StepReport> reports = exchange(mesh_.all(), local);
      fill(record, reports, options_.parallel, assembly_.loss_rank());
      peak_memory_ = record.peak_memory;
      // Every rank has the same reports, so all of them stop after the same step.
      for (const StepReport& one : reports)
        result_.stopped = std::max(result_.stopped, static_cast<int>(one.stop));
      if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) not_finite(record);
    }
    loss_scale_.update(record.skipped);
    checkpoints_.wait_for_copies();
    if (!record.skipped) assembly_.optimizer->step(record.rate);
    interval_.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    ++interval_.steps;
    if (!logged) return std::nullopt;
    interval_.close(record);
    return record;
  }

  // Runs the parts of the batch through the pipeline, without waiting for a device.
  std::vector<runtime::StepResult> run_parts() {
    std::vector<runtime::StepResult> results;
    std::optional<double> denominator;
    for (std::int64_t part = 0; part < options_.accumulate; ++part) {
      LoadedPass loaded = passes_->take();
      PassBatch& pass = loaded.pass;
      check_full(loaded);
      if (part == 0) denominator = scaled(loss_denominator(loaded), pass.rows);
      pass.batch = to_device(std::move(pass.batch), assembly_.device);
      const Batch& batch = pass.batch;
      if (part == 0) count_rows(loaded);
      const runtime::StepOptions step{.kwargs = batch.kwargs,
                                      .loss_denominator = denominator,
                                      .wait = false,
                                      .measure_memory = is_drawn(part)};
      results.push_back(assembly_.pipeline->step(batch.args, pass.target(), step));
    }
    broadcast_buffers(mesh_, assembly_);
    return results;
  }

  // Counts the rows of all replicas, without padding. Rank 0, whose record is used, always has rows in its
  // first pass, and rows have equal numbers of tokens.
  void count_rows(const LoadedPass& first) {
    const Batch& batch = first.pass.batch;
    interval_.examples += first.rows;
    if (batch.tokens && batch.examples > 0)
      interval_.tokens = interval_.tokens.value_or(0) + *batch.tokens * first.rows / batch.examples;
  }

  // Depends on the complete batch, so that all ranks throw.
  void check_full(const LoadedPass& loaded) const {
    if (loaded.rows >= options_.batch || !model_.needs_full_batches()) return;
    throw UsageError(str_cat("the batch of step ", progress_.step, " has only ", loaded.rows, " of ",
                             options_.batch, " rows, but the loss of this model needs full batches"),
                     {}, "drop the last batch of an epoch, or use a batch that divides the examples");
  }

  // A smaller denominator multiplies the loss and all gradients by the scale. Without a denominator, losses
  // are divided by the rows of a part.
  std::optional<double> scaled(std::optional<double> denominator, std::int64_t rows) const {
    if (!loss_scale_.is_dynamic()) return denominator;
    return denominator.value_or(static_cast<double>(rows)) / loss_scale_.value();
  }

  // Called after the norm was read: the device has then finished the step, and its times need no wait.
  void read_results(StepReport& local, const std::vector<runtime::StepResult>& parts) {
    std::vector<at::Tensor> losses;
    for (const runtime::StepResult& part : parts) {
      if (part.loss.defined()) losses.push_back(part.loss);
      const schedule::Timeline timeline = part.read_timeline();
      const Busy busy = busy_of(timeline);
      local.busy += busy.busy;
      local.end += busy.end;
      if (&part == &parts.back()) keep_timeline(timeline);
    }
    local.loss = mean_loss(losses) / loss_scale_.value();
  }

  // The first step is logged too: it shows whether the run starts well.
  bool is_logged() const {
    const std::int64_t step = progress_.step;
    return step == first_step_ || step == options_.steps || step % options_.log_every == 0 ||
           is_due(options_.eval_every);
  }

  // Whether a part of the batch is drawn. Reading the memory has a small cost, so no other part does it.
  bool is_drawn(std::int64_t part) const {
    const bool is_last = progress_.step == options_.steps && part + 1 == options_.accumulate;
    return is_last && (options_.timeline || options_.trace);
  }

  // Returns StepOptions::loss_denominator for the parts of the batch; nullopt if losses are weighted by rows
  // and the batch is complete, because all parts then have the same number of rows. Every rank can read all
  // labels, so this needs no communication.
  std::optional<double> loss_denominator(const LoadedPass& first) const {
    const std::int64_t parts = options_.parallel.dp * options_.accumulate;
    std::optional<double> weight = reduction_.weight_of(first.target);
    if (weight == 0.0)
      report_in_step(
          "no label of the batch counts: each is ignored or of a class with weight 0; its loss and gradients "
          "are 0");
    if (!weight && first.rows < options_.batch) weight = static_cast<double>(first.rows);
    return weight ? std::optional(*weight / static_cast<double>(parts)) : std::nullopt;
  }

  void not_finite(StepRecord& record) {
    if (loss_scale_.can_shrink() && std::isfinite(record.loss)) {
      record.skipped = true;
      report_in_step(str_cat("a gradient overflowed with a loss scale of ", decimal_text(loss_scale_.value()),
                             "; the update was skipped, and the scale is halved"));
      return;
    }
    switch (options_.on_nan) {
      case NanPolicy::Ignore:
        return;
      case NanPolicy::Skip:
        record.skipped = true;
        report_in_step("the loss or a gradient is not finite; the update was skipped");
        return;
      case NanPolicy::Stop:
        throw find_not_finite(mesh_, assembly_, data_, options_, record);
    }
  }

  void report_timeline() {
    if (timelines_.empty()) return;
    const schedule::Timeline gathered = gather_timeline(mesh_.group("pp"), timelines_.back());
    if (observer()) observer()->on_timeline(progress_.step, gathered);
  }

  // Returns the validation loss; nullopt if there is none.
  std::optional<double> evaluate() {
    if (data_.validation_rows() == 0) return std::nullopt;
    result_.validation_loss = validation_loss(mesh_, assembly_, model_, data_, options_);
    if (!result_.validation_loss)
      report_in_step("every label of the validation rows is ignored; there is no validation loss");
    else if (observer())
      observer()->on_evaluation(progress_.step, *result_.validation_loss);
    return result_.validation_loss;
  }

  // Keeps the last steps, for drawings and costs. The first step includes allocations and connection setup.
  void keep_timeline(const schedule::Timeline& timeline) {
    constexpr std::size_t most = 8;
    if (progress_.step == first_step_ && options_.steps > first_step_) return;
    timelines_.push_back(timeline);
    timeline_step_ = progress_.step;
    if (timelines_.size() > most) timelines_.erase(timelines_.begin());
  }

  void finish() {
    if (options_.timeline || options_.trace || options_.profile) write_measurements();
    if (extras_.gather_parameters) result_.parameters = gather_parameters(mesh_, assembly_);
    guard_storage([&] { checkpoints_.wait(); });
    report_checkpoint();
    result_.checkpoint = checkpoints_.newest();
    progress_.enter(RunPhase::End);
    mesh_.all().barrier();
  }

  void write_measurements() {
    if (timelines_.empty()) return;
    const comm::Group& pipeline = mesh_.group("pp");
    std::vector<schedule::Timeline> gathered;
    for (const schedule::Timeline& one : timelines_) gathered.push_back(gather_timeline(pipeline, one));
    const schedule::Program& program = assembly_.pipeline->program();
    const plan::Costs costs =
        measured_costs(gathered, gather_bytes(pipeline, program.num_stages(), assembly_.bytes()));
    if (!reports_) return;
    const MeasuredStep step{model_.summary(), timeline_step_, topology_text(options_.parallel), peak_memory_,
                            assembly_.device.is_cpu()};
    if (options_.timeline)
      write_file(*options_.timeline, timeline_page(program, gathered.back(), costs, step));
    if (options_.trace) write_file(*options_.trace, timeline_trace(program, gathered.back(), costs, step));
    if (options_.profile)
      write_file(*options_.profile,
                 cost_file(costs, options_.parallel.microbatches, model_.summary() + ", " + program.name()));
  }

  const Model& model_;
  LockedSource data_;  // the loading thread calls it too
  RunOptions options_;
  RunExtras extras_;
  tensor::DeviceMesh mesh_;
  at::Device device_;
  runtime::LossReduction reduction_;
  LearningRate rate_;
  LossScale loss_scale_;
  Progress progress_;
  CheckpointManager checkpoints_;
  bool reports_;
  Assembly assembly_;
  Decisions decisions_;
  std::int64_t first_step_ = 1;
  std::optional<std::int64_t> reported_;  // the last checkpoint reported to the observer
  std::vector<schedule::Timeline> timelines_;
  std::int64_t timeline_step_ = 0;          // of the last timeline
  std::vector<std::uint64_t> peak_memory_;  // per rank, of the last logged step
  LogInterval interval_;
  std::optional<RunLog> log_;  // set when the first step is known
  RunResult result_;
  std::optional<PassLoader> passes_;  // last: its thread ends before the other members
};

}  // namespace

bool RankHook::follows(schedule::ActionKind kind) const {
  return kind != schedule::ActionKind::RecvForward && kind != schedule::ActionKind::RecvBackward;
}

int restart_count() {
  const char* const text = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return text == nullptr ? 0 : std::atoi(text);
}

RunResult run(const comm::World& world, const Model& model, const DataSource& data, const RunOptions& options,
              const RunExtras& extras) {
  try {
    return Run(world, model, data, options, extras).run();
  } catch (const PeerFailed&) {
    throw;
  } catch (const std::exception& error) {
    comm::Group everyone = world.group();
    if (everyone.size() > 1) everyone.fail(error.what());  // so that other ranks can report the cause
    throw;
  }
}

}  // namespace penstock::train
