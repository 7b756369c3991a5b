// Normalizes texts.
#include "train/text/normalizer.h"

#include "train/text/normal_form.h"

#include <optional>

namespace penstock::train {
namespace {

// A step returns nothing if it does not change the text.
std::optional<std::string> normalize_step(const Compose&, std::string_view text) {
  if (precedes_marks(text)) return std::nullopt;
  return composed_form(text);
}

std::optional<std::string> normalize_step(const Prepend& step, std::string_view text) {
  if (text.empty()) return std::nullopt;
  return step.text + std::string(text);
}

std::optional<std::string> normalize_step(const Replace& step, std::string_view text) {
  if (text.find(step.from) == std::string_view::npos) return std::nullopt;
  return replaced(text, step.from, step.to);
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::size_t count = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, at + from.size()))
    ++count;
  std::string result;
  result.reserve(text.size() - count * from.size() + count * to.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, begin)) {
    result += text.substr(begin, at - begin);
    result += to;
    begin = at + from.size();
  }
  result += text.substr(begin);
  return result;
}

std::string_view normalized(std::string_view text, const std::vector<NormalizerStep>& steps,
                            std::string& storage) {
  for (const NormalizerStep& step : steps) {
    std::optional<std::string> changed =
        std::visit([&](const auto& one) { return normalize_step(one, text); }, step);
    if (!changed) continue;
    storage = std::move(*changed);
    text = storage;
  }
  return text;
}

std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps) {
  std::string storage;
  return std::string(normalized(text, steps, storage));
}

}  // namespace penstock::train
