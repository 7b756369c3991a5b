// Batches and losses of a step: batches that cannot be split, user-defined types, nested values, and weights
// computed from targets.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/linear.h>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kParts = 4;

runtime::PipelineStage own_stage(comm::World& world, std::shared_ptr<torch::nn::Module> owner,
                                 const runtime::StageFunction& forward) {
  return {runtime::make_stage_module(std::move(owner), forward), StageId(world.rank().value), world.size(),
          at::kCPU, world.group()};
}

runtime::LossFunction squares() {
  return runtime::tensor_loss(
      [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); });
}

// The errors of two ranks for a batch that cannot be split; it is a ShapeError on the rank where it occurs.
std::vector<std::string> split_errors(const TestBatch& batch) {
  std::vector<std::string> texts(2);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    std::string& text = texts[world.rank().index()];
    try {
      step_on(runtime::Schedule1F1B(stages_for(mlp(), world.group(), schedule::ScheduleKind::OneFOneB, 1),
                                    kParts, options_for(mlp(), 2)),
              batch);
    } catch (const ShapeError& e) {
      text = e.what();
    } catch (const PeerFailed& e) {
      text = e.what();
    }
  });
  return texts;
}

TEST(RuntimeBatches, UnsplittableBatchErrorNamesTensorDimSizesAndCount) {
  // Fewer rows than microbatches: each rank reports its own input, or the error of the other rank.
  EXPECT_THAT(split_errors(mlp().batch(3)),
              Each(AllOf(HasSubstr("4 microbatches"), HasSubstr("has only 3 rows in dim 0 (shape [3, 6])"))));
  TestBatch two = mlp().batch(8);
  two.args.emplace_back(at::ones({2, 10}));
  EXPECT_THAT(split_errors(two), Each(AllOf(HasSubstr("args[1] has only 2 rows in dim 0 (shape [2, 10])"),
                                            HasSubstr("4 microbatches"))));
  two.args[1] = at::ones({10});
  EXPECT_THAT(split_errors(two),
              Each(HasSubstr("args[1] has 10 rows in dim 0 (shape [10]), which disagrees with "
                             "args[0] with 8 rows in dim 0 (shape [8, 6])")));
}

// A user-defined type with rows, like the block masks of the reference.
struct RowMask : torch::CustomClassHolder {
  explicit RowMask(at::Tensor rows_in) : rows(std::move(rows_in)) {}
  at::Tensor rows;
};

c10::IValue row_mask(const at::Tensor& rows) {
  return c10::IValue::make_capsule(c10::make_intrusive<RowMask>(rows));
}

const at::Tensor& rows_in(const c10::IValue& value) {
  return dynamic_cast<const RowMask&>(*value.toCapsule()).rows;
}

TEST(RuntimeBatches, SplitRegisteredUserTypes) {
  value::register_splitter(typeid(RowMask),
                           {[](const c10::IValue& value) { return std::optional(rows_in(value).size(0)); },
                            [](const c10::IValue& value, const std::vector<std::int64_t>& sizes) {
                              std::vector<c10::IValue> parts;
                              for (const auto& part : rows_in(value).split_with_sizes(sizes))
                                parts.push_back(row_mask(part));
                              return parts;
                            },
                            [](const std::vector<c10::IValue>& parts) {
                              std::vector<at::Tensor> rows;
                              for (const c10::IValue& part : parts) rows.push_back(rows_in(part));
                              return row_mask(at::cat(rows));
                            }});
  const at::Tensor x = at::randn({10, 6}), mask = at::arange(10, at::kFloat).unsqueeze(1);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const runtime::StageFunction masked = [](const value::Args& args,
                                             const value::Kwargs& kwargs) -> runtime::StageResult {
      return args[0].toTensor() * rows_in(kwargs.at("mask"));
    };
    TestBatch batch{{x}};
    batch.options.stage_kwargs[StageId(0)]["mask"] = row_mask(mask);
    batch.options.stage_kwargs[StageId(1)]["mask"] = row_mask(mask + 1);
    for (int step = 0; step < 2; ++step) {
      const runtime::StepResult result =
          step_on(runtime::ScheduleForwardOnly(own_stage(world, nullptr, masked), kParts), batch);
      if (world.rank().value == 1) CHECK_TENSORS(result.outputs.toTensor(), x * mask * (mask + 1));
    }
  });
}

// Values between stages: a dict in a tuple in a tuple, a list, numbers, strings, and one tensor that occurs
// twice.
TEST(RuntimeValues, NestedTreesPassForwardAndGradientsReturn) {
  const auto weight = [] { return at::arange(36, at::kFloat).view({6, 6}).div(40); };
  const auto first = [](const at::Tensor& y) {
    c10::impl::GenericDict named(c10::StringType::get(), c10::AnyType::get());
    named.insert("twice", y * 2);
    c10::List<at::Tensor> list({y.sin(), y.detach().argmax(1)});
    named.insert("list", list);
    return c10::ivalue::Tuple::create(
        {c10::ivalue::Tuple::create({named, c10::IValue(3), "text"}), c10::IValue(y), c10::IValue()});
  };
  const auto second = [](const c10::IValue& nested, const at::Tensor& y) {
    const auto& items = nested.toTupleRef().elements();
    const auto named = items[0].toGenericDict();
    const auto list = named.at("list").toTensorVector();
    if (items[2].toStringRef() != "text") throw std::logic_error("another text");
    return named.at("twice").toTensor() * list[0] * static_cast<double>(items[1].toInt()) +
           y * list[1].unsqueeze(1);
  };
  const at::Tensor x = at::randn({10, 6}), target = at::randn({10, 6});
  const at::Tensor dense = weight().requires_grad_(true);
  const at::Tensor y = x.matmul(dense);
  const auto parts = first(y)->elements();
  (second(parts[0], parts[1].toTensor()) - target).square().mean().backward();
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::InterleavedZeroBubble}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      torch::nn::Linear owner(torch::nn::LinearOptions(6, 6).bias(false));
      {
        const at::NoGradGuard no_grad;
        owner->weight.copy_(weight());
      }
      const runtime::StageFunction forward = [&](const value::Args& args,
                                                 const value::Kwargs&) -> runtime::StageResult {
        if (world.rank().value == 0) return c10::IValue(first(args[0].toTensor().matmul(owner->weight)));
        CHECK_SAME(args.size(), 3U);
        CHECK_THAT(args[2].isNone());
        return second(args[0], args[1].toTensor());
      };
      runtime::PipelineOptions options;
      options.loss = squares();
      runtime::PipelineSchedule pipeline({own_stage(world, owner.ptr(), forward)}, kind, kParts, options);
      for (int step = 0; step < 2; ++step) pipeline.step({x}, target);
      if (world.rank().value == 0)
        CHECK_THAT(at::allclose(owner->weight.grad(), 2 * dense.grad(), 1e-4, 1e-5));
    });
  }
}

constexpr std::int64_t kIgnored = -100;

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& t) {
  return at::cross_entropy_loss(logits, t, {}, at::Reduction::Mean, kIgnored);
}

// As users write it: without a valid label, both the loss and its gradient are NaN.
at::Tensor masked_mean(const at::Tensor& logits, const at::Tensor& t) {
  const at::Tensor valid = t.ne(kIgnored), picked = at::where(valid, t, at::zeros_like(t));
  const at::Tensor each = -at::log_softmax(logits, 1).gather(1, picked.unsqueeze(1)).squeeze(1);
  return (each * valid).sum() / valid.sum();
}

// The mean over valid tokens: microbatches contain different numbers of them. The reported losses remain
// those of the user.
TEST(RuntimeLosses, AreWeightedByValidTokens) {
  const at::Tensor x = at::randn({10, 6});
  at::Tensor target = at::arange(10).remainder(6);
  for (const std::int64_t row : {1, 2, 4, 8}) target[row] = kIgnored;
  const PipelineModel model = skip_net();
  const auto modules = model.make(2);
  const runtime::StageResult hidden = modules[0]->forward({x}, {});
  const auto logits = [&] { return modules[1]->forward({hidden.output}, hidden.skips).output.toTensor(); };
  const at::Tensor full_loss = cross_entropy(logits(), target);
  full_loss.backward();
  const auto rows = at::tensor_split(logits().detach(), kParts), labels = at::tensor_split(target, kParts);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    runtime::PipelineOptions options = options_for(model, 2);
    options.loss = runtime::tensor_loss(cross_entropy);
    options.reduction = runtime::LossReduction::mean_over_valid_labels();
    runtime::PipelineSchedule pipeline(stages_for(model, world.group(), schedule::ScheduleKind::OneFOneB, 1),
                                       "1F1B", kParts, options);
    const runtime::StepResult result = pipeline.step({x}, target);
    const auto rank = world.rank().index();
    const auto grads = snapshot_grads(pipeline.stages().front().module()),
               expected = snapshot_grads(*modules[rank]);
    for (std::size_t i = 0; i < grads.size(); ++i)
      CHECK_THAT(at::allclose(grads[i].tensor, expected[i].tensor, 1e-5, 1e-6));
    if (rank == 0) return;
    CHECK_THAT(at::allclose(result.loss, full_loss.detach()));
    for (std::size_t m = 0; m < kParts; ++m)
      CHECK_THAT(at::allclose(result.losses[m], cross_entropy(rows[m], labels[m])));
  });
}

// One step and three accumulated ones, one of which has no valid label; with and without scaled gradients.
TEST(RuntimeLosses, MicrobatchesWithoutValidLabelsContributeNothing) {
  const at::Tensor x = at::randn({12, 6});
  at::Tensor target = at::arange(12).remainder(6);
  for (const std::int64_t row : {0, 1, 2, 5, 8, 9, 10, 11})
    target[row] = kIgnored;  // 4 valid, all above row 2
  for (const auto& loss : {cross_entropy, masked_mean}) {
    for (const schedule::ScheduleKind kind :
         {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::InterleavedZeroBubble}) {
      const PipelineModel model = skip_net();
      const auto modules = model.make(2);
      const runtime::StageResult hidden = modules[0]->forward({x}, {});
      const at::Tensor full_loss =
          loss(modules[1]->forward({hidden.output}, hidden.skips).output.toTensor(), target);
      full_loss.backward();
      const auto expect_full_batch = [&](const runtime::PipelineSchedule& pipeline, std::size_t rank,
                                         double factor) {
        const auto grads = snapshot_grads(pipeline.stages().front().module()),
                   expected = snapshot_grads(*modules[rank]);
        for (std::size_t i = 0; i < grads.size(); ++i)
          CHECK_THAT(at::allclose(grads[i].tensor * factor, expected[i].tensor, 1e-5, 1e-6));
      };
      comm::run_thread_ranks(2, [&](comm::World& world) {
        const auto rank = world.rank().index();
        runtime::PipelineOptions options = options_for(model, 2);
        options.loss = runtime::tensor_loss(loss);
        options.reduction = runtime::LossReduction::mean_over_valid_labels();
        const auto make = [&] {
          return runtime::PipelineSchedule(stages_for(model, world.group(), kind, 1), kind, kParts, options);
        };
        runtime::PipelineSchedule at_once = make();
        const runtime::StepResult result = at_once.step({x}, target);
        if (rank == 1) CHECK_THAT(at::allclose(result.loss, full_loss.detach()));
        if (rank == 1) CHECK_THAT(result.losses[0].isnan().item<bool>());  // defined by the user
        expect_full_batch(at_once, rank, 1);

        runtime::PipelineSchedule parts = make();
        at::Tensor sum = at::zeros({});
        for (const std::int64_t begin : {0, 4, 8}) {
          const runtime::StepResult one =
              parts.step({x.narrow(0, begin, 4)}, target.narrow(0, begin, 4), {.loss_denominator = 4.0 / 3});
          if (rank == 1) sum = sum + one.loss / 3;
          if (rank == 1 && begin == 8) CHECK_SAME(one.loss.item<double>(), 0.0);
        }
        if (rank == 1) CHECK_THAT(at::allclose(sum, full_loss.detach()));
        expect_full_batch(parts, rank, 1.0 / 3);

        // No valid label at all: no loss, and gradients of zero.
        runtime::PipelineSchedule nothing = make();
        const runtime::StepResult empty = nothing.step({x}, at::full_like(target, kIgnored));
        if (rank == 1) CHECK_SAME(empty.loss.item<double>(), 0.0);
        for (const value::NamedTensor& grad : snapshot_grads(nothing.stages().front().module()))
          CHECK_TENSORS(grad.tensor, at::zeros_like(grad.tensor));

        // The plain sum of the microbatches with valid labels: rows 3 and 4 in one, 6 and 7 in another.
        options.scale_grads = false;
        runtime::PipelineSchedule plain = make();
        plain.step({x}, target);
        expect_full_batch(plain, rank, 0.5);
      });
    }
  }
}

// One tensor that three stages read, twice by name: its gradient is the sum of all three.
TEST(RuntimeValues, ValueUsedByThreeStagesSumsTheirGradients) {
  constexpr int stages = 4;
  const at::Tensor x = at::randn({10, 6}), target = at::randn({10, 6});
  const auto weight = [](int stage) {
    return at::arange(36, at::kFloat).view({6, 6}).sin().mul(0.3 + 0.1 * stage);
  };
  const auto value_of = [](int stage, const at::Tensor& y, const at::Tensor& shared) {
    return stage == 2 ? y * shared.cos() : stage == 3 ? y + 3 * shared.sin() : y;
  };
  std::vector<at::Tensor> dense;
  at::Tensor y = x, shared;
  for (int stage = 0; stage < stages; ++stage) {
    dense.push_back(weight(stage).requires_grad_(true));
    y = value_of(stage, y.matmul(dense.back()).tanh(), shared);
    if (stage == 0) shared = y;
  }
  (y - target).square().mean().backward();

  runtime::PipelineOptions options;
  options.loss = squares();
  for (const int user : {2, 3}) options.skips.push_back({"shared", StageId(0), StageId(user)});
  for (const auto& [tested, ranks] : {std::pair{schedule::ScheduleKind::GPipe, 4},
                                      {schedule::ScheduleKind::OneFOneB, 4},
                                      {schedule::ScheduleKind::InterleavedZeroBubble, 4},
                                      {schedule::ScheduleKind::Interleaved1F1B, 2},
                                      {schedule::ScheduleKind::ZBVZeroBubble, 2}}) {
    comm::run_thread_ranks(ranks, [&, kind = tested](comm::World& world) {
      std::vector<torch::nn::Linear> owners;
      std::vector<runtime::PipelineStage> own;
      const schedule::Placement placement =
          make_schedule(kind, {world.size(), stages / world.size(), kParts}).placement;
      for (const StageId id : placement.stages_of(Rank(world.rank().value))) {
        torch::nn::Linear owner(torch::nn::LinearOptions(6, 6).bias(false));
        {
          const at::NoGradGuard no_grad;
          owner->weight.copy_(weight(id.value));
        }
        const runtime::StageFunction forward = [&value_of, owner, id](
                                                   const value::Args& args,
                                                   const value::Kwargs& kwargs) -> runtime::StageResult {
          const auto it = kwargs.find("shared");
          const at::Tensor out = value_of(id.value, args[0].toTensor().matmul(owner->weight).tanh(),
                                          it == kwargs.end() ? at::Tensor() : it->second.toTensor());
          if (id.value == 0) return {out, {{"shared", out}}};
          return out;
        };
        owners.push_back(owner);
        own.emplace_back(runtime::make_stage_module(owner.ptr(), forward), id, stages, at::kCPU,
                         world.group());
      }
      runtime::PipelineSchedule pipeline(own, kind, kParts, options);
      for (int step = 0; step < 2; ++step) pipeline.step({x}, target);
      for (std::size_t i = 0; i < own.size(); ++i)
        CHECK_THAT(
            at::allclose(owners[i]->weight.grad(), 2 * dense[own[i].index().index()].grad(), 1e-4, 1e-6));
    });
  }
}

}  // namespace
}  // namespace penstock::test
