// Random chains of shape operators compared with dense tensors: sizes, strides, dtype, values and gradients,
// with even, uneven and empty shards.
#include "support/error_message.h"
#include "support/mesh_ranks.h"

#include <penstock/base/error.h>

#include <torch/torch.h>

#include <cstdlib>
#include <numeric>

namespace penstock::test {
namespace {

using Shape = std::vector<std::int64_t>;

struct Step {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> run;
};

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<unsigned>(n));
  }
  bool coin() { return below(2) == 0; }

  Shape shape() {
    Shape sizes(static_cast<std::size_t>(1 + below(4)));
    for (std::int64_t& size : sizes) size = below(12) == 0 ? 0 : coin() ? 1 + below(7) : 1 + below(2);
    return sizes;
  }
  tensor::AxisPlacement placement(std::int64_t dims) {
    const std::int64_t choice = below(dims + 2);
    if (choice < dims) return tensor::Shard(choice);
    return choice == dims ? tensor::AxisPlacement(tensor::Replicate())
                          : tensor::AxisPlacement(tensor::Partial());
  }
  //! A random dim, sometimes counted from the end.
  std::int64_t dim(std::int64_t dims) {
    const std::int64_t d = below(std::max<std::int64_t>(dims, 1));
    return coin() ? d : d - std::max<std::int64_t>(dims, 1);
  }
  //! Other sizes with the same number of elements, sometimes with a -1.
  Shape resized(const at::Tensor& x) {
    Shape sizes = x.sizes().vec();
    if (x.numel() == 0) return coin() ? sizes : Shape{0, 3};
    std::int64_t left = x.numel();
    sizes.clear();
    for (const std::int64_t factor : {2, 3, 2, 5}) {
      if (left % factor == 0 && coin()) {
        sizes.push_back(factor);
        left /= factor;
      }
      if (below(5) == 0) sizes.push_back(1);
    }
    sizes.insert(sizes.begin() + below(static_cast<std::int64_t>(sizes.size()) + 1), coin() ? left : -1);
    return sizes;
  }
  Shape order(std::int64_t dims) {
    Shape all(static_cast<std::size_t>(dims));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    return all;
  }

 private:
  std::mt19937 engine_;
};

Step draw_step(Draw& draw, const at::Tensor& x) {
  const std::int64_t dims = x.dim(), d = draw.dim(dims), e = draw.dim(dims);
  const std::int64_t size = dims == 0 ? 1 : x.size(d);
  const std::string at = "(" + std::to_string(d) + ")";
  switch (draw.below(32)) {
    case 0:
      return {"squeeze", [](const at::Tensor& t) { return t.squeeze(); }};
    case 1:
      return {"squeeze" + at, [=](const at::Tensor& t) { return t.squeeze(d); }};
    case 2:
      return {"squeeze list", [=](const at::Tensor& t) { return t.squeeze(d == e ? Shape{d} : Shape{0}); }};
    case 3:
      return {"unsqueeze" + at, [=](const at::Tensor& t) { return t.unsqueeze(d); }};
    case 4:
      return {"flatten", [](const at::Tensor& t) { return t.flatten(); }};
    case 5:
      return {"flatten tail", [=](const at::Tensor& t) { return t.flatten(t.dim() > 1 ? 1 : 0, -1); }};
    case 6:
    case 7: {
      const Shape sizes = draw.resized(x);
      return {"reshape " + c10::str(c10::IntArrayRef(sizes)),
              [=](const at::Tensor& t) { return t.reshape(sizes); }};
    }
    case 8: {
      const Shape sizes = draw.resized(x);
      return {"view " + c10::str(c10::IntArrayRef(sizes)),
              [=](const at::Tensor& t) { return t.view(sizes); }};
    }
    case 9: {
      Shape sizes = x.sizes().vec();
      for (std::int64_t& s : sizes) s = s == 1 ? 1 + draw.below(3) : draw.coin() ? -1 : s;
      if (draw.coin()) sizes.insert(sizes.begin(), 2);
      return {"expand " + c10::str(c10::IntArrayRef(sizes)),
              [=](const at::Tensor& t) { return t.expand(sizes); }};
    }
    case 10:
    case 11: {
      const Shape order = draw.order(dims);
      return {"permute " + c10::str(c10::IntArrayRef(order)),
              [=](const at::Tensor& t) { return t.permute(order); }};
    }
    case 12:
    case 13:
      return {"transpose" + at, [=](const at::Tensor& t) { return t.transpose(d, e); }};
    case 14:
      return {"mT", [](const at::Tensor& t) { return t.dim() >= 2 ? t.mT() : t.t(); }};
    case 15:
      return {"movedim" + at, [=](const at::Tensor& t) { return t.movedim(d, e); }};
    case 16: {
      const std::int64_t index = draw.below(std::max<std::int64_t>(size, 1));
      return {"select" + at, [=](const at::Tensor& t) { return t.select(d, index); }};
    }
    case 17: {
      const std::int64_t start = draw.below(size + 1), length = draw.below(size - start + 1);
      return {"narrow" + at, [=](const at::Tensor& t) { return t.narrow(d, start, length); }};
    }
    case 18: {
      const std::int64_t start = draw.below(size + 1), step = 1 + draw.below(3);
      return {"slice" + at, [=](const at::Tensor& t) { return t.slice(d, start, std::nullopt, step); }};
    }
    case 19: {
      const std::int64_t n = 1 + draw.below(4);
      return {"chunk" + at, [=](const at::Tensor& t) { return t.chunk(n, d).back(); }};
    }
    case 20: {
      const std::int64_t n = 1 + draw.below(4);
      return {"split" + at, [=](const at::Tensor& t) { return t.split(n, d).front(); }};
    }
    case 21: {
      const std::int64_t n = draw.below(size + 1);
      return {"split sizes" + at, [=](const at::Tensor& t) {
                return t.split_with_sizes(Shape{n, size - n}, d)[1];
              }};
    }
    case 22:
      return {"unbind" + at, [=](const at::Tensor& t) {
                const std::vector<at::Tensor> parts = t.unbind(d);
                return parts.at(parts.size() - 1);  // throws if the dim has no elements
              }};
    case 23:
      return {"stack" + at, [=](const at::Tensor& t) { return at::stack({t, t}, d); }};
    case 24:
      return {"cat" + at, [=](const at::Tensor& t) { return at::cat({t, t}, d); }};
    case 25:
      return {"contiguous", [](const at::Tensor& t) { return t.contiguous(); }};
    case 26:
      return {"clone and scale", [](const at::Tensor& t) { return t.clone() * 2 + t; }};
    case 27:
      return {"unflatten" + at, [=](const at::Tensor& t) { return t.unflatten(d, Shape{-1, 1}); }};
    case 28: {
      const std::int64_t offset = draw.below(4) - 1;
      return {"diagonal" + at + " " + std::to_string(e) + " " + std::to_string(offset),
              [=](const at::Tensor& t) { return t.diagonal(offset, d, e); }};
    }
    case 29:
    case 30: {
      const std::int64_t length = draw.below(size + 1), step = 1 + draw.below(3);
      return {"unfold" + at + " " + std::to_string(length) + " " + std::to_string(step),
              [=](const at::Tensor& t) { return t.unfold(d, length, step); }};
    }
    default: {
      const std::int64_t n = 1 + draw.below(3);
      return {"tensor_split" + at, [=](const at::Tensor& t) { return t.tensor_split(n, d)[0]; }};
    }
  }
}

//! Empty if the step is not possible.
std::optional<at::Tensor> tried(const Step& step, const at::Tensor& x) {
  try {
    return step.run(x);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

//! Throws, so that no rank continues alone.
void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void require_same(const at::Tensor& got, const at::Tensor& want) {
  require(tensor::is_dtensor(got), "not distributed");
  require(got.sizes() == want.sizes(), "sizes " + c10::str(got.sizes()));
  require(got.scalar_type() == want.scalar_type(), "another type");
  // A dim of size one may have any stride.
  for (std::int64_t d = 0; d < want.dim() && want.numel() > 0; ++d) {
    require(want.size(d) <= 1 || got.stride(d) == want.stride(d),
            "strides " + c10::str(got.strides()) + " and not " + c10::str(want.strides()));
  }
  require(want.numel() == 0 || got.is_contiguous() == want.is_contiguous(), "contiguous or not");
  const at::Tensor all = tensor::full_tensor(got).detach();
  require(all.sizes() == want.sizes(), "the full tensor has sizes " + c10::str(all.sizes()));
  require(at::allclose(all, want.detach(), 1e-5, 1e-5), "other values");
}

//! Runs one random chain; `where` describes it.
void sweep(const tensor::DeviceMesh& mesh, unsigned seed, std::string& where) {
  Draw draw(seed);
  const Shape sizes = draw.shape();
  tensor::Placements layout;
  for (int axis = 0; axis < mesh.ndim(); ++axis)
    layout.push_back(draw.placement(static_cast<std::int64_t>(sizes.size())));
  at::Tensor want = numbers(sizes, seed).set_requires_grad(true);
  at::Tensor got = distribute_tensor(want, mesh, layout, false);
  const at::Tensor dense = want, distributed = got;
  where = c10::str(want.sizes()) + " " + to_string(layout) + " on " + to_string(mesh) + ", seed " +
          std::to_string(seed) + ":";
  for (std::int64_t steps = 1 + draw.below(4); steps > 0; --steps) {
    const Step step = draw_step(draw, want);
    where += " " + step.name;
    const std::optional<at::Tensor> next = tried(step, want);
    if (!next) {
      require(!tried(step, got), "the dense tensor refuses it");
      break;
    }
    want = *next;
    got = step.run(got);
    require_same(got, want);
  }
  where += " gradient";
  const at::Tensor weight = numbers(want.sizes(), seed + 1);
  (want * weight).sum().backward();
  (got * weight).sum().backward();
  require(at::allclose(full_copy(distributed.grad()), dense.grad(), 1e-4, 1e-4), "other values");
}

TEST(TensorViews, MatchDenseTensor) {
  const unsigned seeds = std::getenv("PENSTOCK_LONG_SWEEP") != nullptr ? 20000 : 500;
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{4}, Shape{2, 2}}) {
    on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
      std::string where;
      try {
        for (unsigned seed = 0; seed < seeds; ++seed) sweep(mesh, seed, where);
      } catch (const std::exception& e) {
        throw std::runtime_error(where + ": " + e.what());
      }
    });
  }
}

TEST(TensorViews, SqueezeUsesGlobalSizes) {
  on_mesh({4}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({4, 1, 4}, 1);
    const at::Tensor d = distribute_tensor(dense, mesh, {tensor::Shard(0)});
    for (const at::Tensor& squeezed : {d.squeeze(), d.squeeze(1), d.squeeze(Shape{0, 1}), d.squeeze(-2)}) {
      EXPECT_EQ(squeezed.sizes(), (Shape{4, 4}));
      EXPECT_EQ(tensor::placements_of(squeezed), tensor::Placements{tensor::Shard(0)});
      EXPECT_TRUE(at::equal(tensor::full_tensor(squeezed), dense.squeeze()));
    }
    EXPECT_EQ(d.squeeze(0).sizes(), (Shape{4, 1, 4}));
  });
}

TEST(TensorViews, DiagonalAndUnfoldKeepShardsOfOtherDims) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({4, 5, 6}, 1);
    const auto shard = [&](std::int64_t dim) {
      return distribute_tensor(dense, mesh, {tensor::Shard(dim)}, false);
    };
    const auto expect = [&](const at::Tensor& got, const at::Tensor& want,
                            const tensor::Placements& placements, bool moves) {
      EXPECT_EQ(tensor::placements_of(got), placements);
      EXPECT_EQ(tensor::traffic().calls() > 0, moves);
      EXPECT_TRUE(at::equal(tensor::full_tensor(got), want));
    };
    const std::vector<at::Tensor> sharded{shard(0), shard(1), shard(2)};
    tensor::reset_traffic();
    expect(sharded[0].diagonal(1, 1, 2), dense.diagonal(1, 1, 2), {tensor::Shard(0)}, false);
    tensor::reset_traffic();
    expect(sharded[1].diagonal(0, 0, 2), dense.diagonal(0, 0, 2), {tensor::Shard(0)}, false);
    tensor::reset_traffic();
    expect(sharded[2].diagonal(-1, 0, -2), dense.diagonal(-1, 0, 1), {tensor::Shard(0)}, false);
    tensor::reset_traffic();
    expect(sharded[0].unfold(2, 3, 2), dense.unfold(2, 3, 2), {tensor::Shard(0)}, false);
    tensor::reset_traffic();
    expect(sharded[2].unfold(-3, 2, 1), dense.unfold(0, 2, 1), {tensor::Shard(2)}, false);
    // A sharded dim is redistributed first.
    tensor::reset_traffic();
    const at::Tensor moved = sharded[0].unfold(0, 2, 2);
    EXPECT_GT(tensor::traffic().calls(), 0);
    EXPECT_TRUE(at::equal(tensor::full_tensor(moved), dense.unfold(0, 2, 2)));
  });
}

TEST(TensorViews, PointwiseResultsOfChannelsLastHaveDenseStrides) {
  // A dim of one element: libtorch treats the tensor as channels-last, although its strides are others.
  const auto view = [](const at::Tensor& t) { return t.mT().unfold(-2, 1, 1); };
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> functions{
      [](const at::Tensor& t) { return t + t; }, [](const at::Tensor& t) { return t.relu(); },
      [](const at::Tensor& t) { return t.clone() * 2 + t; }};
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({2, 2, 2}, 1);
    const at::Tensor sharded = distribute_tensor(dense, mesh, {tensor::Shard(2)}, false);
    for (const auto& function : functions) {
      const at::Tensor want = function(view(dense)), got = function(view(sharded));
      EXPECT_EQ(got.strides(), want.strides());
      EXPECT_EQ(at::stack({got, got}, -2).strides(), at::stack({want, want}, -2).strides());
      EXPECT_TRUE(at::equal(tensor::full_tensor(got), want));
    }
  });
}

TEST(TensorViews, ContiguousOfTransposedTensorIsContiguous) {
  on_mesh({4}, [](const tensor::DeviceMesh& mesh) {
    // One column per rank: the strides of the tensor cannot be derived from its shard.
    const at::Tensor dense = numbers({4, 4}, 1);
    const at::Tensor turned = distribute_tensor(dense, mesh, {tensor::Shard(1)}).t();
    EXPECT_EQ(turned.strides(), (Shape{1, 4}));
    EXPECT_FALSE(turned.is_contiguous());
    EXPECT_ANY_THROW(turned.view({16}));
    const at::Tensor straight = turned.contiguous();
    EXPECT_TRUE(straight.is_contiguous());
    EXPECT_TRUE(at::equal(tensor::full_tensor(straight.view({16})), dense.t().contiguous().view({16})));
  });
}

// A shard that is copied for a view rejects writes that the tensor would not see.
TEST(TensorViews, RejectWritesToCopiedShard) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor wide = numbers({4, 6}, mesh.coordinate(0) == 0 ? 1U : 2U);
    const at::Tensor d = from_local(wide.narrow(1, 0, 3), mesh, {tensor::Shard(0)});
    const at::Tensor view = d.view({24});
    EXPECT_EQ(view.sizes(), (Shape{24}));
    EXPECT_ERROR(view.zero_(), UsageError, "would not reach its base tensor");
    const at::Tensor straight = d.clone();
    straight.view({24}).zero_();
    EXPECT_EQ(tensor::full_tensor(straight).abs().sum().item<float>(), 0);
  });
}

struct Complex {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> run;
};

TEST(TensorViews, KeepConjugation) {
  const std::vector<Complex> cases{
      {"conj + 1", [](const at::Tensor& x) { return x.conj() + 1; }},
      {"mH", [](const at::Tensor& x) { return x.mH() * 2; }},
      {"conj of conj", [](const at::Tensor& x) { return x.conj().conj(); }},
      {"real", [](const at::Tensor& x) { return at::real(x.conj()); }},
      {"imag", [](const at::Tensor& x) { return at::imag(x); }},
      {"imag of conj", [](const at::Tensor& x) { return at::imag(x.conj()) * 3; }},
      {"view as real", [](const at::Tensor& x) { return at::view_as_real(x); }},
      {"there and back", [](const at::Tensor& x) { return at::view_as_complex(at::view_as_real(x) * 2); }},
      {"product", [](const at::Tensor& x) { return x * x.conj(); }},
      {"matmul", [](const at::Tensor& x) { return x.matmul(x.mH()); }},
      {"sum of conj", [](const at::Tensor& x) { return x.conj().sum(0); }},
      {"resolved", [](const at::Tensor& x) { return x.conj().resolve_conj().abs(); }},
      {"negative view", [](const at::Tensor& x) { return at::_neg_view(x) + 1; }},
      {"view of conj", [](const at::Tensor& x) { return x.conj().t().reshape({-1}); }},
  };
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
      const at::Tensor values = at::complex(numbers({4, 5}, 1), numbers({4, 5}, 2));
      for (const Complex& c : cases) {
        for (const tensor::AxisPlacement& first :
             {tensor::AxisPlacement(tensor::Shard(0)), tensor::AxisPlacement(tensor::Shard(1)),
              tensor::AxisPlacement(tensor::Replicate()), tensor::AxisPlacement(tensor::Partial())}) {
          tensor::Placements layout(shape.size(), tensor::Shard(1));
          layout[0] = first;
          const std::string where = c.name + " " + to_string(layout) + " on " + to_string(mesh);
          const at::Tensor dense = values.clone().set_requires_grad(true);
          const at::Tensor sharded = distribute_tensor(dense, mesh, layout, false);
          try {
            const at::Tensor want = c.run(dense), got = c.run(sharded);
            require(got.sizes() == want.sizes(), "sizes");
            require(at::allclose(tensor::full_tensor(got).resolve_conj().resolve_neg(), want, 1e-4, 1e-4),
                    "values or gradient");
            // Redistributed as it is, lazily conjugated.
            const at::Tensor moved = redistribute(got, tensor::Placements(shape.size()));
            require(at::allclose(tensor::full_tensor(moved).resolve_conj(), want, 1e-4, 1e-4),
                    "values or gradient");
            at::abs(want).pow(2).sum().backward();
            at::abs(got).pow(2).sum().backward();
            require(at::allclose(full_copy(sharded.grad()).resolve_conj(), dense.grad(), 1e-3, 1e-3),
                    "values or gradient");
          } catch (const std::exception& e) {
            throw std::runtime_error(where + ": " + e.what());
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace penstock::test
