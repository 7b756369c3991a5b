// Reads the golden file.
#include "tensor/goldens.h"

#include <ATen/ATen.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace penstock::test {
namespace {

std::vector<std::string> split_text(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, from)) {
    parts.push_back(text.substr(from, at - from));
    from = at + separator.size();
  }
  parts.push_back(text.substr(from));
  return parts;
}

std::vector<std::int64_t> golden_sizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  if (text.empty()) return sizes;
  for (const std::string& part : split_text(text, ",")) sizes.push_back(std::stoll(part));
  return sizes;
}

tensor::AxisPlacement golden_placement(const std::string& name) {
  if (name == "R") return tensor::Replicate();
  if (name == "P") return tensor::Partial();
  if (name == "Pavg") return tensor::Partial(comm::ReduceOp::Avg);
  if (name == "Pmax") return tensor::Partial(comm::ReduceOp::Max);
  if (name == "Pmin") return tensor::Partial(comm::ReduceOp::Min);
  return tensor::Shard(std::stoll(name.substr(1)));
}

tensor::Placements golden_placements(const std::string& text) {
  tensor::Placements placements;
  for (const std::string& name : split_text(text, ",")) placements.push_back(golden_placement(name));
  return placements;
}

at::Tensor golden_list(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream stream(text);
  for (double number = 0; stream >> number;) numbers.push_back(number);
  return at::tensor(numbers, at::kDouble);
}

// `on 2x2: S0,R R,S1 -> S0,S1 | 3,4:17 3,4:33`
GoldenLayout golden_layout(const std::string& line) {
  GoldenLayout layout;
  layout.text = line;
  const std::size_t colon = line.find(": "), arrow = line.find(" -> ");
  for (const std::string& n : split_text(line.substr(3, colon - 3), "x"))
    layout.mesh.push_back(std::stoll(n));
  for (const std::string& input : split_text(line.substr(colon + 2, arrow - colon - 2), " "))
    layout.inputs.push_back(golden_placements(input));
  const auto sides = split_text(line.substr(arrow + 4), " | ");
  if (sides.size() == 1) {
    layout.refusal = sides[0];
    return layout;
  }
  const auto names = split_text(sides[0], " ; "), ranks = split_text(sides[1], " ; ");
  for (std::size_t i = 0; i < names.size(); ++i) {
    GoldenResult result{golden_placements(names[i]), {}};
    for (const std::string& rank : split_text(ranks.at(i), " ")) {
      const auto halves = split_text(rank, ":");
      GoldenResult::Local local{golden_sizes(halves[0]), std::nullopt};
      if (halves.at(1) != "-") local.checksum = std::stod(halves[1]);
      result.ranks.push_back(local);
    }
    layout.results.push_back(std::move(result));
  }
  return layout;
}

}  // namespace

Goldens read_goldens(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot read " + file);
  Goldens goldens;
  for (std::string line; std::getline(stream, line);) {
    const std::size_t space = line.find(' ');
    if (line.empty() || line[0] == '#') continue;
    const std::string word = line.substr(0, space), rest = line.substr(space + 1);
    const auto parts = split_text(rest, " ");
    if (word == "seed") {
      goldens.seed = std::stoll(rest);
    } else if (word == "op") {
      goldens.ops.emplace_back().name = rest;
    } else if (word == "in") {
      goldens.ops.back().inputs.push_back({parts[0], golden_sizes(parts.at(1))});
      goldens.ops.back().gradients.emplace_back();
    } else if (word == "args") {
      goldens.ops.back().args = parts;
    } else if (word == "value") {
      const std::size_t colon = rest.find(':');
      const auto head = split_text(rest.substr(0, colon), " ");
      const at::Tensor list = golden_list(rest.substr(colon + 1));
      goldens.ops.back().values.push_back(
          {head[0] == "exact", head.at(1), list.view(golden_sizes(head.at(2)))});
    } else if (word == "grad") {
      const std::size_t colon = rest.find(':'), which = std::stoul(parts.at(1));
      GoldenOp& op = goldens.ops.back();
      op.gradients.at(which) =
          GoldenValue{parts[0] == "exact", "float32",
                      golden_list(rest.substr(colon + 1)).view(op.inputs.at(which).sizes)};
    } else if (word == "on") {
      goldens.ops.back().layouts.push_back(golden_layout(line));
    } else {
      throw std::runtime_error("a golden file has no line like this: " + line);
    }
  }
  return goldens;
}

bool golden_has_gradient(const std::string& kind) {
  return kind == "small" || kind == "distinct" || kind == "big" || kind == "fours";
}

at::Tensor golden_numbers(const std::string& kind, const std::vector<std::int64_t>& sizes, std::int64_t which,
                          std::int64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t n : sizes) count *= n;
  const at::Tensor i = at::arange(count, at::kLong);
  const at::Tensor mix = (i * i * 5 + i * 3 + which * 7 + seed * 11).remainder(9);
  if (kind.starts_with("index")) return (mix * 5 + i).remainder(std::stoll(kind.substr(5))).view(sizes);
  if (kind == "mask") return (mix > 3).view(sizes);
  if (kind == "distinct")
    return ((i * 37 + which * 11 + seed).remainder(101) - 50).to(at::kFloat).view(sizes);
  if (kind == "big") return (mix + 1).to(at::kFloat).view(sizes);
  if (kind == "fours") return ((mix - 4) * 4).to(at::kFloat).view(sizes);
  return (mix - 4).to(at::kFloat).view(sizes);
}

}  // namespace penstock::test
