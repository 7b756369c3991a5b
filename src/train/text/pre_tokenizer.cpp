// Divides texts into pieces.
#include "train/text/pre_tokenizer.h"

#include "train/text/normalizer.h"
#include "train/text/unicode_classes.h"

namespace penstock::train {
namespace {

template <class Next>
void divide(const PatternSplit& step, std::string_view text, bool, const Next& next) {
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = end_of_word(text, begin, step.pattern);
    next(text.substr(begin, end - begin));
  }
}

template <class Next>
void divide(const LiteralSplit& step, std::string_view text, bool, const Next& next) {
  std::size_t begin = 0;
  const auto end_piece = [&](std::size_t end) {
    if (end > begin) next(text.substr(begin, end - begin));
    begin = end;
  };
  for (std::size_t at = text.find(step.text); at != std::string_view::npos;) {
    const std::size_t after = at + step.text.size();
    end_piece(step.before ? at : after);
    at = text.find(step.text, after);
  }
  end_piece(text.size());
}

template <class Next>
void divide(const DigitSplit& step, std::string_view text, bool, const Next& next) {
  std::size_t begin = 0;
  bool in_number = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point(text, at);
    const bool number = is_number(point.code);
    if (at > begin && (number != in_number || (number && step.individual))) {
      next(text.substr(begin, at - begin));
      begin = at;
    }
    in_number = number;
    at += point.length;
  }
  next(text.substr(begin));
}

template <class Next>
void divide(const MarkSpaces& step, std::string_view text, bool at_start, const Next& next) {
  std::string marked = replaced(text, " ", step.mark);
  const bool wanted =
      step.prefix == MarkSpaces::Prefix::Always || (step.prefix == MarkSpaces::Prefix::First && at_start);
  if (wanted && !marked.starts_with(step.mark)) marked.insert(0, step.mark);
  if (!step.splits) return next(marked);
  divide(LiteralSplit{step.mark, true}, marked, at_start, next);
}

template <class Next>
void divide(const ByteSplit& step, std::string_view text, bool at_start, const Next& next) {
  std::string prefixed;
  if (step.prefix && text.front() != ' ') {
    prefixed.reserve(text.size() + 1);
    prefixed += ' ';
    prefixed += text;
    text = prefixed;
  }
  if (!step.words) return next(text);
  divide(PatternSplit{gpt2_pattern()}, text, at_start, next);
}

}  // namespace

void for_each_piece(std::string_view text, bool at_start, std::span<const SplitStep> steps,
                    const std::function<void(std::string_view)>& use) {
  if (text.empty()) return;
  if (steps.empty()) return use(text);
  bool first = at_start;
  const auto next = [&](std::string_view piece) {
    for_each_piece(piece, first, steps.subspan(1), use);
    first = false;
  };
  std::visit([&](const auto& step) { divide(step, text, at_start, next); }, steps.front());
}

}  // namespace penstock::train
