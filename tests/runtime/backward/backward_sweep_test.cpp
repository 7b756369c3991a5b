// Random small graphs through the split backward, compared bitwise with autograd. PENSTOCK_SWEEP_GRAPHS=n
// runs more.
#include "runtime/support/split_check.h"

#include <cstdlib>
#include <random>

namespace penstock::test {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

constexpr std::int64_t kRows = 4, kWidth = 6;

// Every value is [rows, width], every weight [width, width] and every vector [width], so that any operator
// can be applied anywhere.
class Graph {
 public:
  explicit Graph(std::uint64_t seed) : seed_(seed) {}

  FunctionalModel model() const {
    torch::manual_seed(static_cast<std::int64_t>(seed_));
    std::mt19937_64 random(seed_);
    FunctionalModel model;
    Tensors weights, vectors;
    for (int i = 0; i < 3; ++i) {
      weights.push_back((torch::randn({kWidth, kWidth}) * 0.4).set_requires_grad(random() % 6 != 0));
      vectors.push_back(torch::randn({kWidth}).set_requires_grad(random() % 6 != 0));
    }
    model.params = weights;
    model.params.insert(model.params.end(), vectors.begin(), vectors.end());
    model.forward = [=, seed = seed_](const Tensors& inputs) { return grow(seed, weights, vectors, inputs); };
    return model;
  }

 private:
  static Tensors grow(std::uint64_t seed, const Tensors& weights, const Tensors& vectors,
                      const Tensors& inputs) {
    std::mt19937_64 random(seed + 1);
    Tensors values = inputs;
    Tensors derived = weights;
    const auto any = [&](const Tensors& from) { return from[random() % from.size()]; };
    const std::uint64_t steps = 3 + random() % 12;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const Tensor x = random() % 3 == 0 ? any(values) : values.back();
      switch (random() % 14) {
        case 0:
        case 1:
          values.push_back(F::linear(x, any(derived), any(vectors)).tanh());
          break;
        case 2:
          values.push_back(F::linear(x, any(derived)));
          break;
        case 3:
          values.push_back(at::layer_norm(x, {kWidth}, any(vectors), any(vectors)));
          break;
        case 4:
          values.push_back(x + any(values));
          break;
        case 5:
          values.push_back(x * any(vectors) + any(vectors));
          break;
        case 6:
          values.push_back(x.matmul(any(values).t()).softmax(1).matmul(x));
          break;
        case 7:
          derived.push_back(any(derived) * any(vectors));
          break;
        case 8:
          derived.push_back(any(derived).t());
          break;
        case 9: {
          const auto halves = x.chunk(2, 1);
          values.push_back(at::cat({halves[1], halves[0].relu()}, 1));
          break;
        }
        case 10:
          values.push_back(x.detach() + any(vectors));
          break;
        case 11:
          values.push_back(at::bmm(x.unsqueeze(0), any(derived).unsqueeze(0)).squeeze(0));
          break;
        case 12:
          values.push_back(any(vectors).expand({kRows, kWidth}));
          break;
        default:
          values.push_back(at::dropout(at::gelu(x), 0.2, true));
          break;
      }
    }
    Tensors outputs = {values.back()};
    for (std::uint64_t i = random() % 3; i > 0; --i) outputs.push_back(any(values));
    if (random() % 4 == 0) outputs.push_back(any(values).argmax(1));
    if (random() % 4 == 0) outputs.push_back(any(values).t());
    return outputs;
  }

  std::uint64_t seed_;
};

TEST(RuntimeSplitSweep, MatchesAutogradForRandomGraphs) {
  const char* chosen = std::getenv("PENSTOCK_SWEEP_GRAPHS");
  const std::uint64_t count = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 300;
  for (std::uint64_t seed = 0; seed < count && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    torch::manual_seed(static_cast<std::int64_t>(seed) + 77);
    const auto batches = batches_of(
        [&] {
          Tensors inputs = {input({kRows, kWidth}), input({kRows, kWidth})};
          inputs[0].set_requires_grad(seed % 5 != 0);
          inputs[1].set_requires_grad(seed % 3 != 0);
          return inputs;
        },
        2);
    expect_same_as_plain([&] { return Graph(seed).model(); }, batches);
  }
}

}  // namespace
}  // namespace penstock::test
