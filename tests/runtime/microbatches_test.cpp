// Batches on their way into a step and losses on their way out: what cannot be cut, users' own types, nested
// values, and weights that the targets give.
#include "runtime/against_dense.h"
#include "runtime/models.h"
#include "support/check.h"

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

PipelineStage own_stage(World& world, std::shared_ptr<torch::nn::Module> owner,
                        const StageFunction& forward) {
  return {make_stage_module(std::move(owner), forward), world.rank().value, world.size(), at::kCPU,
          world.group()};
}

LossFunction squares() {
  return tensor_loss([](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); });
}

// What each of two ranks says to a batch that cannot be cut, and that it is a ShapeError where it began.
std::vector<std::string> refusals(const StepInput& batch) {
  std::vector<std::string> texts(2);
  run_thread_ranks(2, [&](World& world) {
    std::string& text = texts[static_cast<std::size_t>(world.rank().value)];
    try {
      Schedule1F1B(stages_for(mlp(), world.group(), ScheduleKind::OneFOneB, 1), kParts, options_for(mlp(), 2))
          .step(batch);
    } catch (const ShapeError& e) {
      text = e.what();
    } catch (const PeerFailed& e) {
      text = e.what();
    }
  });
  return texts;
}

TEST(Batches, ThatCannotBeCutAreNamedWithTensorDimSizesAndCount) {
  // Fewer rows than microbatches: each rank names what it was given, or what it heard of the other.
  EXPECT_THAT(refusals(mlp().batch(3)),
              Each(AllOf(HasSubstr("4 microbatches"), HasSubstr("has only 3 rows in dim 0 (shape [3, 6])"))));
  StepInput two = mlp().batch(8);
  two.args.emplace_back(at::ones({2, 10}));
  EXPECT_THAT(refusals(two), Each(AllOf(HasSubstr("args[1] has only 2 rows in dim 0 (shape [2, 10])"),
                                        HasSubstr("4 microbatches"))));
  two.args[1] = at::ones({10});
  EXPECT_THAT(refusals(two), Each(HasSubstr("args[1] has 10 rows in dim 0 (shape [10]), which disagrees with "
                                            "args[0] with 8 rows in dim 0 (shape [8, 6])")));
}

// A user's own type with rows, as the reference's block masks are.
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

TEST(Batches, MayHoldUsersTypesThatTheirSplittersCut) {
  register_splitter(typeid(RowMask),
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
  run_thread_ranks(2, [&](World& world) {
    const StageFunction masked = [](const Args& args, const Kwargs& kwargs) -> StageResult {
      return args[0].toTensor() * rows_in(kwargs.at("mask"));
    };
    StepInput batch{{x}, {}, {}};
    batch.stage_kwargs[StageId(0)]["mask"] = row_mask(mask);
    batch.stage_kwargs[StageId(1)]["mask"] = row_mask(mask + 1);
    for (int step = 0; step < 2; ++step) {
      const StepResult result = ForwardOnly(own_stage(world, nullptr, masked), kParts).step(batch);
      if (world.rank().value == 1) CHECK_TENSORS(result.outputs.toTensor(), x * mask * (mask + 1));
    }
  });
}

// Between stages: a dict in a tuple in a tuple, a list, numbers and texts, one tensor in two places.
TEST(Values, NestedTreesTravelForwardAndTheirGradientsBack) {
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
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::InterleavedZeroBubble}) {
    run_thread_ranks(2, [&](World& world) {
      torch::nn::Linear owner(torch::nn::LinearOptions(6, 6).bias(false));
      {
        const at::NoGradGuard no_grad;
        owner->weight.copy_(weight());
      }
      const StageFunction forward = [&](const Args& args, const Kwargs&) -> StageResult {
        if (world.rank().value == 0) return c10::IValue(first(args[0].toTensor().matmul(owner->weight)));
        CHECK_SAME(args.size(), 3U);
        CHECK_THAT(args[2].isNone());
        return second(args[0], args[1].toTensor());
      };
      PipelineOptions options;
      options.loss = squares();
      PipelineSchedule pipeline({own_stage(world, owner.ptr(), forward)}, kind, kParts, options);
      for (int step = 0; step < 2; ++step) pipeline.step({x}, target);
      if (world.rank().value == 0)
        CHECK_THAT(at::allclose(owner->weight.grad(), 2 * dense.grad(), 1e-4, 1e-5));
    });
  }
}

// The mean over the tokens that count: microbatches hold different numbers of them. What is reported stays
// the user's.
TEST(Losses, AreWeighedByTheTokensThatAreNotIgnored) {
  constexpr std::int64_t ignored = -100;
  const at::Tensor x = at::randn({10, 6});
  at::Tensor target = at::arange(10).remainder(6);
  for (const std::int64_t row : {1, 2, 4, 8}) target[row] = ignored;
  const auto cross_entropy = [](const at::Tensor& logits, const at::Tensor& t) {
    return at::cross_entropy_loss(logits, t, {}, at::Reduction::Mean, ignored);
  };
  const Model model = skip_net();
  const auto modules = model.make(2);
  const StageResult hidden = modules[0]->forward({x}, {});
  const auto logits = [&] { return modules[1]->forward({hidden.output}, hidden.skips).output.toTensor(); };
  const at::Tensor whole = cross_entropy(logits(), target);
  whole.backward();
  const auto rows = at::tensor_split(logits().detach(), kParts), labels = at::tensor_split(target, kParts);
  run_thread_ranks(2, [&](World& world) {
    PipelineOptions options = options_for(model, 2);
    options.loss = tensor_loss(cross_entropy);
    options.reduction = LossReduction::weighted(
        [](const c10::IValue& t) { return (t.toTensor() != ignored).sum().item<double>(); });
    PipelineSchedule pipeline(stages_for(model, world.group(), ScheduleKind::OneFOneB, 1), "1F1B", kParts,
                              options);
    const StepResult result = pipeline.step({x}, target);
    const auto rank = static_cast<std::size_t>(world.rank().value);
    const auto grads = snapshot_grads(pipeline.stages().front().module()),
               expected = snapshot_grads(*modules[rank]);
    for (std::size_t i = 0; i < grads.size(); ++i)
      CHECK_THAT(at::allclose(grads[i].tensor, expected[i].tensor, 1e-5, 1e-6));
    if (rank == 0) return;
    CHECK_THAT(at::allclose(result.loss, whole.detach()));
    for (std::size_t m = 0; m < kParts; ++m)
      CHECK_THAT(at::allclose(result.losses[m], cross_entropy(rows[m], labels[m])));
  });
}

}  // namespace
}  // namespace penstock::test
