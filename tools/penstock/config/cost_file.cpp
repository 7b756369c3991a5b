// Reads cost files.
#include "config/cost_file.h"

#include "base/text.h"
#include "cli/arguments.h"
#include "cli/toml_text.h"
#include "cli/units.h"

#include <penstock/base/error.h>
#include <penstock/plan/partition.h>
#include <penstock/schedule/action.h>

#include <cmath>
#include <set>

namespace penstock::tool {
namespace {

[[noreturn]] void refuse(const toml::node& node, const std::string& what, const std::string& hint = {}) {
  throw ParseError(position_text(node.source().begin) + ": " + what, {}, hint);
}

// Limits far above any real machine. Sums of costs within them do not overflow.
constexpr double kMaxTime = 1e18, kMaxBytes = 1e14;

//! Reads the keys of a table. `done` rejects unknown keys.
class Keys {
 public:
  Keys(const toml::table& table, std::string what) : table_(table), what_(std::move(what)) {}

  const toml::node* find(const std::string& key) {
    known_.push_back(key);
    return table_.get(key);
  }
  void number(const std::string& key, double& target) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value >= 0) || !std::isfinite(*value))
      refuse(*node, key + " must be a non-negative number");
    if (*value > kMaxTime) refuse(*node, key + " must be at most 1e18");
    target = *value;
  }
  void number(const std::string& key, std::optional<double>& target) {
    double value = -1;
    number(key, value);
    if (value >= 0) target = value;
  }
  void bytes(const std::string& key, std::uint64_t& target) {
    double value = -1;
    bytes(key, value);
    if (value > kMaxBytes) refuse(*table_.get(key), key + " must be at most 1e14 bytes");
    if (value >= 0) target = static_cast<std::uint64_t>(std::llround(value));
  }
  void bytes(const std::string& key, double& target) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    if (const auto text = node->value_exact<std::string>()) {
      try {
        target = parse_bytes(*text);
      } catch (const UsageError& error) {
        refuse(*node, error.message(), error.hint());
      }
    } else {
      number(key, target);
    }
  }
  void truth(const std::string& key, bool& target) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    if (!node->is_boolean()) refuse(*node, key + " must be true or false");
    target = *node->value<bool>();
  }
  std::int64_t index(const std::string& key) {
    const toml::node* node = find(key);
    if (node == nullptr) refuse(table_, what_ + " needs " + key);
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < 0 || *value > 1'000'000) refuse(*node, key + " must be a non-negative integer");
    return *value;
  }
  void done() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      refuse(node, what_ + " has no key " + quote(name), did_you_mean(name, known_));
    }
  }

 private:
  const toml::table& table_;
  std::string what_;
  std::vector<std::string> known_;
};

void read_stage(Keys& keys, plan::StageCosts& stage) {
  keys.number("forward", stage.forward);
  keys.number("input", stage.input);
  keys.number("weight", stage.weight);
  keys.number("backward", stage.backward);
  keys.number("unshard", stage.unshard);
  keys.number("reshard", stage.reshard);
  keys.number("reduce_grad", stage.reduce_grad);
  keys.bytes("activation_bytes", stage.activation_bytes);
  keys.bytes("weight_bytes", stage.weight_bytes);
  keys.bytes("output_bytes", stage.output_bytes);
  keys.bytes("input_bytes", stage.input_bytes);
  keys.bytes("parameter_bytes", stage.parameter_bytes);
  keys.bytes("gradient_bytes", stage.gradient_bytes);
  keys.bytes("optimizer_bytes", stage.optimizer_bytes);
  keys.bytes("unsharded_bytes", stage.unsharded_bytes);
  keys.truth("recompute", stage.recompute);
}

void read_link(Keys& keys, plan::Link& link) {
  keys.number("latency", link.latency);
  keys.bytes("bandwidth", link.bandwidth);
}

//! Calls `use` with each table of an array of tables.
template <class Use>
void each_table(Keys& keys, const std::string& name, const Use& use) {
  const toml::node* node = keys.find(name);
  if (node == nullptr) return;
  const toml::array* array = node->as_array();
  if (array == nullptr) refuse(*node, name + " must be an array of tables", "write [[" + name + "]]");
  for (const toml::node& item : *array) {
    const toml::table* table = item.as_table();
    if (table == nullptr) refuse(item, name + " must be an array of tables", "write [[" + name + "]]");
    Keys inner(*table, "[[" + name + "]]");
    use(inner, *table);
    inner.done();
  }
}

template <class Use>
void one_table(Keys& keys, const std::string& name, const Use& use) {
  const toml::node* node = keys.find(name);
  if (node == nullptr) return;
  const toml::table* table = node->as_table();
  if (table == nullptr) refuse(*node, name + " must be a table", "write [" + name + "]");
  Keys inner(*table, "[" + name + "]");
  use(inner);
  inner.done();
}

//! Partitioning takes time quadratic in the number of layers.
constexpr std::size_t kMaxLayers = 16'384;

//! The `count` of an entry. `held` is the number of entries so far.
std::size_t repeats(Keys& keys, const toml::table& table, std::size_t held, std::size_t most) {
  const auto count = static_cast<std::size_t>(table.contains("count") ? keys.index("count") : 1);
  keys.find("count");
  if (held + count > most) refuse(table, str_cat("there can be at most ", most, " entries"));
  return count;
}

CostFile read_root(const toml::table& root) {
  CostFile file;
  file.time_unit = view::TimeUnit::Seconds;
  Keys keys(root, "the file");
  keys.number("overlap", file.shared.overlap);
  keys.number("overhead", file.shared.overhead);
  if (root.contains("microbatches")) {
    if (const auto count = static_cast<int>(keys.index("microbatches")); count > 0) file.microbatches = count;
  }
  one_table(keys, "each", [&](Keys& inner) { read_stage(inner, file.each); });
  one_table(keys, "link", [&](Keys& inner) { read_link(inner, file.shared.link); });
  each_table(keys, "links", [&](Keys& inner, const toml::table&) {
    plan::Link link = file.shared.link;
    const std::pair pair{Rank(inner.index("from")), Rank(inner.index("to"))};
    read_link(inner, link);
    file.shared.links[pair] = link;
  });
  each_table(keys, "skips", [&](Keys& inner, const toml::table&) {
    const std::pair pair{StageId(inner.index("from")), StageId(inner.index("to"))};
    inner.bytes("bytes", file.shared.skip_bytes[pair]);
  });
  each_table(keys, "stages", [&](Keys& inner, const toml::table& table) {
    plan::StageCosts stage = file.each;
    const std::size_t count = repeats(inner, table, file.stages.size(), schedule::kMaxStages);
    read_stage(inner, stage);
    file.stages.insert(file.stages.end(), count, stage);
  });
  each_table(keys, "layers", [&](Keys& inner, const toml::table& table) {
    plan::Layer layer{"layer", file.each};
    const std::size_t count = repeats(inner, table, file.layers.size(), kMaxLayers);
    if (const toml::node* name = inner.find("name")) layer.name = name->value_or(layer.name);
    read_stage(inner, layer.costs);
    for (std::size_t i = 0; i < count; ++i) {
      file.layers.push_back(layer);
      if (count > 1) file.layers.back().name += str_cat(".", i);
    }
  });
  keys.done();
  if (!file.stages.empty() && !file.layers.empty()) {
    refuse(*root.get("layers"), "a cost file must contain either stages or layers, not both");
  }
  if (file.shared.overlap > 1) refuse(*root.get("overlap"), "overlap must be between 0 and 1");
  return file;
}

}  // namespace

CostFile read_cost_file(const std::string& path) {
  return read_cost_text(read_input(path), path);
}

CostFile read_cost_text(const std::string& text, const std::string& path) {
  try {
    return read_root(parse_toml(text));
  } catch (const toml::parse_error& error) {
    throw UsageError(quote(path, 200) + ", " + position_text(error.source().begin) + ": " +
                     std::string(error.description()));
  } catch (const ParseError& error) {
    throw UsageError(quote(path, 200) + ", " + error.message(), {}, error.hint());
  }
}

plan::Costs costs_for(const CostFile& file, const std::vector<Rank>& rank_of_stage) {
  plan::Costs costs = file.shared;
  if (!file.layers.empty()) {
    plan::PartitionOptions options;
    options.rank_of_stage = rank_of_stage;
    costs.stages = partition_layers(file.layers, options)->stages;
  } else if (!file.stages.empty()) {
    costs.stages = file.stages;
  } else {
    costs.stages.assign(rank_of_stage.size(), file.each);
  }
  check_costs(costs, static_cast<int>(rank_of_stage.size()));
  return costs;
}

}  // namespace penstock::tool
