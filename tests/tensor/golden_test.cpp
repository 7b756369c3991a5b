// Distributed tensors against the reference's (goldens/dtensor.txt, make_goldens.py): whole results, and this
// rank's part where the reference leaves it.
#include "ranks.h"

#include <torch/torch.h>

#include <fstream>
#include <map>
#include <sstream>

namespace penstock::test {
namespace {

using Shape = std::vector<std::int64_t>;
using Inputs = std::vector<at::Tensor>;
using Words = std::vector<std::string>;

Words words_of(const std::string& text, char between) {
  Words words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, between);) words.push_back(word);
  return words;
}

//! `4x6`; `-` has no dims.
Shape shape_of(const std::string& text) {
  Shape shape;
  if (text == "-") return shape;
  for (const std::string& word : words_of(text, 'x')) shape.push_back(std::stoll(word));
  return shape;
}

Placements placements_from(const std::string& text) {
  Placements placements;
  for (const std::string& word : words_of(text, ',')) {
    if (word == "R") placements.push_back(Replicate());
    if (word == "P") placements.push_back(Partial());
    if (word[0] == 'S') placements.push_back(Shard(std::stoll(word.substr(1))));
  }
  return placements;
}

at::Tensor input(const Shape& shape, std::int64_t k) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return ((at::arange(count) * 7 + 3 * k + 5).remainder(11) - 5).to(at::kFloat).view(shape);
}

//! Cut by the layout's own arithmetic, not by distribute_tensor.
at::Tensor part_of(at::Tensor whole, const DeviceMesh& mesh, const Placements& placements) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const auto n = mesh.shape()[axis], me = mesh.coordinate(static_cast<int>(axis));
    if (placements[axis].is_partial()) whole = me == 0 ? whole - (n - 1) : at::ones_like(whole);
  }
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    const auto n = mesh.shape()[axis], me = mesh.coordinate(static_cast<int>(axis));
    const std::int64_t dim = placements[axis].dim(), size = whole.size(dim), each = (size + n - 1) / n;
    const std::int64_t begin = std::min(each * me, size);
    whole = whole.narrow(dim, begin, std::min(each, size - begin));
  }
  return whole.contiguous();
}

double digest(const at::Tensor& part) {
  const at::Tensor flat = part.detach().flatten().to(at::kDouble);
  return (flat * at::arange(1, flat.numel() + 1)).sum().item<double>();
}

std::map<std::string, std::function<at::Tensor(const Inputs&)>> functions() {
  const at::Tensor index = at::arange(12).remainder(5).view({3, 4}),
                   rows = at::tensor({0, 2, 1, 2}, at::kLong);
  return {
      {"add", [](const Inputs& x) { return x[0] + x[1]; }},
      {"mul", [](const Inputs& x) { return x[0] * x[1]; }},
      {"broadcast", [](const Inputs& x) { return x[0] - 2 * x[1]; }},
      {"column", [](const Inputs& x) { return x[0] * x[1]; }},
      {"relu", [](const Inputs& x) { return at::relu(x[0]); }},
      {"where", [](const Inputs& x) { return at::where(x[0] > 0, x[0], x[1]); }},
      {"greater", [](const Inputs& x) { return (x[0] > x[1]).to(at::kFloat); }},
      {"mm", [](const Inputs& x) { return x[0].mm(x[1]); }},
      {"addmm", [](const Inputs& x) { return at::addmm(x[0], x[1], x[2]); }},
      {"bmm", [](const Inputs& x) { return x[0].bmm(x[1]); }},
      {"linear", [](const Inputs& x) { return at::linear(x[0], x[1], x[2]); }},
      {"matmul", [](const Inputs& x) { return x[0].matmul(x[1]); }},
      {"sum", [](const Inputs& x) { return x[0].sum(); }},
      {"sum_dim", [](const Inputs& x) { return x[0].sum(1); }},
      {"sum_keep", [](const Inputs& x) { return x[0].sum({0}, true); }},
      {"mean", [](const Inputs& x) { return x[0].mean(1); }},
      {"amax", [](const Inputs& x) { return x[0].amax({1}); }},
      {"cumsum", [](const Inputs& x) { return x[0].cumsum(1); }},
      {"softmax", [](const Inputs& x) { return at::softmax(x[0], 1); }},
      {"log_softmax", [](const Inputs& x) { return at::log_softmax(x[0], -1); }},
      {"layer_norm", [](const Inputs& x) { return at::layer_norm(x[0], {6}, x[1], x[2]); }},
      {"embedding", [=](const Inputs& x) { return at::embedding(x[0], index); }},
      {"view",
       [](const Inputs& x) {
         return x[0].view({2, 2, 6});
       }},
      {"flatten", [](const Inputs& x) { return x[0].flatten(1); }},
      {"heads",
       [](const Inputs& x) {
         return x[0].view({2, 3, 4, 2}).transpose(1, 2);
       }},
      {"transpose", [](const Inputs& x) { return x[0].transpose(0, 2); }},
      {"permute",
       [](const Inputs& x) {
         return x[0].permute({2, 0, 1});
       }},
      {"unsqueeze", [](const Inputs& x) { return x[0].unsqueeze(1); }},
      {"slice", [](const Inputs& x) { return x[0].slice(0, 1, 5).slice(1, 0, 8, 2); }},
      {"select", [](const Inputs& x) { return x[0].select(1, 3); }},
      {"cat",
       [](const Inputs& x) {
         return at::cat({x[0], x[1]});
       }},
      {"stack",
       [](const Inputs& x) {
         return at::stack({x[0], x[1]}, 1);
       }},
      {"split", [](const Inputs& x) { return x[0].split(2, 1)[1]; }},
      {"expand",
       [](const Inputs& x) {
         return x[0].expand({4, 2, 3});
       }},
      {"gather", [=](const Inputs& x) { return x[0].gather(1, index); }},
      {"index_select", [=](const Inputs& x) { return x[0].index_select(0, rows); }},
      {"tril", [](const Inputs& x) { return x[0].tril(); }},
      {"attention", [](const Inputs& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); }},
  };
}

//! What the file says of one rank's part.
void expect_part(const at::Tensor& tensor, const Placements& to, const Words& words, std::size_t first,
                 const DeviceMesh& mesh, const std::string& line) {
  const auto ranks = static_cast<std::size_t>(mesh.all().size()),
             me = static_cast<std::size_t>(mesh.all().rank());
  ASSERT_EQ(words.size(), first + 2 * ranks) << line;
  const std::string& sum = words[first + ranks + me];
  if (sum == "-") return;  // each is free to choose its parts of a sum
  const at::Tensor part = local_of(redistribute(tensor, to));
  ASSERT_EQ(part.sizes(), c10::IntArrayRef(shape_of(words[first + me]))) << line;
  const double want = std::stod(sum);
  ASSERT_NEAR(digest(part), want, 1e-4 * std::max(1.0, std::abs(want))) << line;
}

struct OpCase {
  std::string name;
  std::vector<Shape> shapes;
  at::Tensor whole;
};

at::Tensor distributed(const Shape& shape, std::int64_t k, const DeviceMesh& mesh,
                       const Placements& placements) {
  return from_local(part_of(input(shape, k), mesh, placements), mesh, placements, shape);
}

void check_layout(const OpCase& c, const Words& words, const DeviceMesh& mesh, const std::string& line) {
  static const auto known = functions();
  Inputs inputs;
  for (std::size_t k = 0; k < c.shapes.size(); ++k)
    inputs.push_back(
        distributed(c.shapes[k], static_cast<std::int64_t>(k), mesh, placements_from(words[2 + k])));
  const at::Tensor got = known.at(c.name)(inputs);
  ASSERT_LT(difference(full_tensor(got).flatten(), c.whole), 1e-5) << c.name << " " << line;
  const std::size_t to = 3 + c.shapes.size();
  expect_part(got, placements_from(words[to]), words, to + 1, mesh, c.name + " " + line);
}

void check_move(const Words& words, const DeviceMesh& mesh, const std::string& line) {
  const Placements to = placements_from(words[4]);
  const at::Tensor from = distributed(shape_of(words[1]), 0, mesh, placements_from(words[3]));
  expect_part(redistribute(from, to), to, words, 5, mesh, line);
}

TEST(Goldens, ResultsAndPartsAreTheReferences) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/tensor/goldens/dtensor.txt");
  std::vector<OpCase> cases;
  std::map<std::string, std::vector<std::pair<std::size_t, std::string>>> by_mesh;  // lines with their case
  for (std::string line; std::getline(file, line);) {
    const Words words = words_of(line, ' ');
    if (words[0] == "op") {
      OpCase c{words[1], {}, {}};
      std::size_t i = 2;
      for (; words[i] != "="; ++i) c.shapes.push_back(shape_of(words[i]));
      std::vector<double> values;
      for (++i; i < words.size(); ++i) values.push_back(std::stod(words[i]));
      c.whole = at::tensor(values, at::kDouble);
      cases.push_back(c);
    } else if (words[0] == "at") {
      by_mesh[words[1]].emplace_back(cases.size() - 1, line);
    } else if (words[0] == "move") {
      by_mesh[words[2]].emplace_back(0, line);
    }
  }
  ASSERT_GT(cases.size(), 30U);
  ASSERT_EQ(by_mesh.size(), 4U);
  std::size_t count = 0;
  for (const auto& [shape, lines] : by_mesh) {
    count += lines.size();
    on_mesh(shape_of(shape), [&, &lines = lines](const DeviceMesh& mesh) {
      for (const auto& [number, line] : lines) {
        const Words words = words_of(line, ' ');
        try {
          words[0] == "move" ? check_move(words, mesh, line) : check_layout(cases[number], words, mesh, line);
        } catch (const std::exception& e) {
          throw std::runtime_error(cases[number].name + " " + line + ": " + e.what());
        }
      }
    });
  }
  EXPECT_GT(count, 500U);
}

}  // namespace
}  // namespace penstock::test
