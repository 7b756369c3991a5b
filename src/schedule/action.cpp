// Formats and parses actions. The parser accepts exactly what the formatter writes.
#include "base/text.h"
#include "schedule/action_text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/action.h>

#include <array>
#include <charconv>
#include <utility>

namespace penstock::schedule {
namespace {

void append_number(std::string& text, std::int64_t number) {
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

bool has_microbatch(ActionKind kind) {
  return kind != ActionKind::Unshard && kind != ActionKind::Reshard && kind != ActionKind::ReduceGrad;
}

// The adjacent stage, which is the peer of a transfer whose text names no stage.
int neighbor(ActionKind kind, int stage) {
  const bool later = kind == ActionKind::SendForward || kind == ActionKind::RecvBackward;
  return later ? stage + 1 : stage - 1;
}

// A name that is a prefix of another name must come after it.
constexpr std::array kNamedKinds{
    std::pair{std::string_view("SEND_F"), ActionKind::SendForward},
    std::pair{std::string_view("SEND_B"), ActionKind::SendBackward},
    std::pair{std::string_view("RECV_F"), ActionKind::RecvForward},
    std::pair{std::string_view("RECV_B"), ActionKind::RecvBackward},
    std::pair{std::string_view("UNSHARD"), ActionKind::Unshard},
    std::pair{std::string_view("RESHARD"), ActionKind::Reshard},
    std::pair{std::string_view("REDUCE_GRAD"), ActionKind::ReduceGrad},
    std::pair{std::string_view("F"), ActionKind::Forward},
    std::pair{std::string_view("B"), ActionKind::Backward},
    std::pair{std::string_view("I"), ActionKind::BackwardInput},
    std::pair{std::string_view("W"), ActionKind::BackwardWeight},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Parses a text from left to right and stops at the first problem.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool parse(Action& action) {
    if (text_.empty()) return fail("the text is empty");
    if (!(text_[0] == '(' ? overlap(action) : plain(action))) return false;
    return at_ == text_.size() || fail("unexpected " + quote(text_.substr(at_)) + " after the action");
  }

  ActionProblem problem() && { return std::move(problem_); }

 private:
  bool fail(std::string reason) {
    problem_ = {at_ + 1, std::move(reason)};
    return false;
  }

  bool take(std::string_view prefix) {
    if (text_.substr(at_, prefix.size()) != prefix) return false;
    at_ += prefix.size();
    return true;
  }

  bool number(const std::string& what, int limit, int& value) {
    const std::size_t start = at_;
    if (at_ >= text_.size() || !is_digit(text_[at_])) return fail("expected the number of a " + what);
    std::int64_t read = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      if (read <= limit) read = read * 10 + (text_[at_] - '0');
    }
    const bool padded = text_[start] == '0' && at_ - start > 1;
    if (!padded && read <= limit) {
      value = static_cast<int>(read);
      return true;
    }
    at_ = start;
    if (padded) return fail("the number of a " + what + " must not have leading zeros");
    return fail(str_cat("the number of a ", what, " must be at most ", limit));
  }

  bool kind(ActionKind& result) {
    for (const auto& [name, value] : kNamedKinds) {
      if (!take(name)) continue;
      result = value;
      return true;
    }
    return fail(
        "expected F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD or REDUCE_GRAD after the "
        "stage");
  }

  // `>4` or `<1`: the peer stage of a transfer along a skip edge.
  bool peer(ActionKind what, int stage, int& other) {
    const bool send = what == ActionKind::SendForward || what == ActionKind::SendBackward;
    const bool to_later = what == ActionKind::SendForward || what == ActionKind::RecvBackward;
    const std::size_t mark = at_;
    if (!take(send ? ">" : "<")) {
      if (other >= 0 && other < kMaxStages) return true;
      at_ = 0;
      return fail(str_cat("stage ", stage, " has no adjacent stage in that direction"));
    }
    int named = 0;
    if (!number("stage", kMaxStages - 1, named)) return false;
    if (named == other) {
      at_ = mark;
      return fail(str_cat("stage ", named, " is adjacent; leave it out"));
    }
    if (to_later ? named < stage : named > stage) {
      at_ = mark + 1;
      return fail(std::string("expected a ") + (to_later ? "later" : "earlier") + " stage");
    }
    if (named == stage) {
      at_ = mark + 1;
      return fail("a stage cannot send to or receive from itself");
    }
    other = named;
    return true;
  }

  bool plain(Action& action) {
    int stage = 0;
    ActionKind what{};
    if (!number("stage", kMaxStages - 1, stage) || !kind(what)) return false;
    int microbatch = 0;
    if (has_microbatch(what)) {
      if (!number("microbatch", kMaxMicrobatches - 1, microbatch)) return false;
    } else if (at_ < text_.size() && is_digit(text_[at_])) {
      return fail(std::string(to_string(what)) + " applies to a stage and takes no microbatch");
    }
    const StageId id(stage);
    const MicrobatchId batch(microbatch);
    int other = neighbor(what, stage);
    switch (what) {
      case ActionKind::Forward:
        action = Action::forward(id, batch);
        return true;
      case ActionKind::Backward:
        action = Action::backward(id, batch);
        return true;
      case ActionKind::BackwardInput:
        action = Action::backward_input(id, batch);
        return true;
      case ActionKind::BackwardWeight:
        action = Action::backward_weight(id, batch);
        return true;
      case ActionKind::Unshard:
        action = Action::unshard(id);
        return true;
      case ActionKind::Reshard:
        action = Action::reshard(id);
        return true;
      case ActionKind::ReduceGrad:
        action = Action::reduce_grad(id);
        return true;
      case ActionKind::SendForward:
        if (!peer(what, stage, other)) return false;
        action = Action::send_forward(id, batch, StageId(other));
        return true;
      case ActionKind::RecvForward:
        if (!peer(what, stage, other)) return false;
        action = Action::recv_forward(id, batch, StageId(other));
        return true;
      case ActionKind::SendBackward:
        if (!peer(what, stage, other)) return false;
        action = Action::send_backward(id, batch, StageId(other));
        return true;
      case ActionKind::RecvBackward:
        if (!peer(what, stage, other)) return false;
        action = Action::recv_backward(id, batch, StageId(other));
        return true;
      case ActionKind::Idle:
      case ActionKind::Overlap:
        break;
    }
    return fail("no action");
  }

  bool overlap(Action& action) {
    Action forward, backward;
    take("(");
    std::size_t mark = at_;
    if (!plain(forward)) return false;
    if (forward.kind() != ActionKind::Forward) {
      at_ = mark;
      return fail("the first part of an overlap must be an F");
    }
    if (!take(";")) return fail("expected ';' between the parts of an overlap");
    mark = at_;
    if (!plain(backward)) return false;
    if (backward.kind() != ActionKind::Backward && backward.kind() != ActionKind::BackwardInput) {
      at_ = mark;
      return fail("the second part of an overlap must be a B or an I");
    }
    if (!take(")")) return fail("expected ')' after the parts of an overlap");
    if (!take("OVERLAP_F_B")) return fail("expected OVERLAP_F_B after ')'");
    action = Action::overlap(forward, backward);
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  ActionProblem problem_;
};

[[noreturn]] void throw_bad_number(const char* what, std::int32_t number, int limit) {
  throw UsageError(
      str_cat("the number of a ", what, " in an action must be between 0 and ", limit - 1, ", not ", number));
}

}  // namespace

void detail::throw_bad_stage(StageId stage) {
  throw_bad_number("stage", stage.value, kMaxStages);
}
void detail::throw_bad_microbatch(MicrobatchId microbatch) {
  throw_bad_number("microbatch", microbatch.value, kMaxMicrobatches);
}

std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::Idle:
      return "";
    case ActionKind::Forward:
      return "F";
    case ActionKind::Backward:
      return "B";
    case ActionKind::BackwardInput:
      return "I";
    case ActionKind::BackwardWeight:
      return "W";
    case ActionKind::Overlap:
      return "OVERLAP_F_B";
    case ActionKind::SendForward:
      return "SEND_F";
    case ActionKind::RecvForward:
      return "RECV_F";
    case ActionKind::SendBackward:
      return "SEND_B";
    case ActionKind::RecvBackward:
      return "RECV_B";
    case ActionKind::Unshard:
      return "UNSHARD";
    case ActionKind::Reshard:
      return "RESHARD";
    case ActionKind::ReduceGrad:
      return "REDUCE_GRAD";
  }
  return "";
}

void append_text(std::string& text, const Action& action) {
  if (action.is_idle()) return;
  if (action.kind() == ActionKind::Overlap) {
    text += '(';
    append_text(text, action.forward_part());
    text += ';';
    append_text(text, action.backward_part());
    text += ")OVERLAP_F_B";
    return;
  }
  append_number(text, action.stage().value);
  text += to_string(action.kind());
  if (has_microbatch(action.kind())) append_number(text, action.microbatch().value);
  if (action.is_transfer() && action.peer().value != neighbor(action.kind(), action.stage().value)) {
    text += action.is_send() ? '>' : '<';
    append_number(text, action.peer().value);
  }
}

std::string to_string(const Action& action) {
  std::string text;
  append_text(text, action);
  return text;
}

std::variant<Action, ActionProblem> try_parse_action(std::string_view text) {
  Reader reader(text);
  Action action;
  if (reader.parse(action)) return action;
  return std::move(reader).problem();
}

Action parse_action(std::string_view text) {
  const auto result = try_parse_action(text);
  if (const auto* problem = std::get_if<ActionProblem>(&result)) {
    throw ParseError(
        str_cat(quote(text), " is not a valid action: column ", problem->column, ": ", problem->reason), {},
        "write stage, kind and microbatch, for example 2F0, 1SEND_B3 or 4UNSHARD");
  }
  return std::get<Action>(result);
}

}  // namespace penstock::schedule
