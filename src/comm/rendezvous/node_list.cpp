// Expands Slurm's node lists.
#include "comm/rendezvous/node_list.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace penstock::comm {
namespace {

constexpr std::size_t kMaxHosts = 65536;
constexpr std::size_t kMaxHostDigits = 9;
constexpr std::size_t kMaxNameBytes = 255;  // limits the memory for the names, and is longer than host names

[[noreturn]] void not_a_list(std::string_view text, const std::string& reason) {
  throw UsageError(quote(text) + " is not a list of nodes: " + reason, {},
                   "a list looks like node[01-03,7],gpu1");
}

// Splits at the commas outside brackets.
std::vector<std::string_view> split_items(std::string_view text) {
  std::vector<std::string_view> items;
  std::size_t start = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' && inside) not_a_list(text, "a bracket inside brackets");
    if (c == ']' && !inside) not_a_list(text, "a closing bracket without an opening one");
    if (c == '[' || c == ']') inside = c == '[';
    if (c != ',' || inside) continue;
    items.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  if (inside) not_a_list(text, "a bracket is not closed");
  items.push_back(text.substr(start));
  return items;
}

std::size_t parse_index(std::string_view text, std::string_view list) {
  if (text.empty() || text.size() > kMaxHostDigits ||
      text.find_first_not_of("0123456789") != std::string_view::npos)
    not_a_list(list, "expected a number in brackets, not " + quote(text));
  return std::stoul(std::string(text));
}

// Appends the numbers of `7` or `01-03`.
void expand_range(std::string_view range, std::string_view list, std::vector<std::string>& numbers) {
  const auto dash = range.find('-');
  const std::string_view low = range.substr(0, dash);
  const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
  const std::size_t first = parse_index(low, list), last = parse_index(high, list);
  if (last < first) not_a_list(list, "the range " + quote(range) + " is empty");
  if (high.size() > 1 && high.front() == '0' && high.size() != low.size())
    not_a_list(list, "the numbers of " + quote(range) + " have different widths");
  if (last - first >= kMaxHosts) not_a_list(list, "it is too long");
  for (std::size_t number = first; number <= last; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
    numbers.push_back(std::move(digits));
  }
}

std::vector<std::string> expand_brackets(std::string_view ranges, std::string_view list) {
  std::vector<std::string> numbers;
  for (std::size_t start = 0; start <= ranges.size();) {
    const std::size_t comma = std::min(ranges.find(',', start), ranges.size());
    expand_range(ranges.substr(start, comma - start), list, numbers);
    if (numbers.size() > kMaxHosts) not_a_list(list, "it is too long");
    start = comma + 1;
  }
  return numbers;
}

std::vector<std::string> expand_item(std::string_view item, std::string_view list) {
  if (item.empty()) not_a_list(list, "a name is empty");
  std::vector<std::string> names{""};
  while (!item.empty()) {
    const std::size_t open = std::min(item.find('['), item.size());
    if (names.front().size() + open > kMaxNameBytes) not_a_list(list, "a name is too long");
    for (std::string& name : names) name += item.substr(0, open);
    if (open == item.size()) break;
    const std::size_t close = item.find(']', open);  // exists: split_items has checked the brackets
    const auto numbers = expand_brackets(item.substr(open + 1, close - open - 1), list);
    if (names.size() * numbers.size() > kMaxHosts) not_a_list(list, "it is too long");
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const std::string& number : numbers) longer.push_back(name + number);
    names = std::move(longer);
    item.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text) {
  std::vector<std::string> hosts;
  for (const std::string_view item : split_items(text)) {
    for (std::string& name : expand_item(item, text)) hosts.push_back(std::move(name));
    if (hosts.size() > kMaxHosts) not_a_list(text, "it is too long");
  }
  return hosts;
}

}  // namespace penstock::comm
