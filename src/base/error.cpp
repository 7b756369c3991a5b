// Formats error messages.
#include <penstock/base/error.h>

#include <utility>

namespace penstock {
namespace {

std::string compose(const std::string& message, const ErrorContext& context, const std::string& hint) {
  std::string text = message;
  if (const std::string where = context.text(); !where.empty()) text += " (" + where + ")";
  if (!hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace

std::string ErrorContext::text() const {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (rank) add("rank " + std::to_string(rank->value));
  if (stage) add("stage " + std::to_string(stage->value));
  if (microbatch) add("microbatch " + std::to_string(microbatch->value));
  if (!action.empty()) add("action " + action);
  if (!tensor.empty()) add("tensor " + tensor);
  if (!op.empty()) add("op " + op);
  return text;
}

ErrorContext ErrorContext::within(const ErrorContext& outer) const {
  ErrorContext merged = *this;
  if (!merged.rank) merged.rank = outer.rank;
  if (!merged.stage) merged.stage = outer.stage;
  if (!merged.microbatch) merged.microbatch = outer.microbatch;
  if (merged.action.empty()) merged.action = outer.action;
  if (merged.tensor.empty()) merged.tensor = outer.tensor;
  if (merged.op.empty()) merged.op = outer.op;
  return merged;
}

Error::Error(std::string message, ErrorContext context, std::string hint)
    : std::runtime_error(compose(message, context, hint)),
      message_(std::move(message)),
      context_(std::move(context)),
      hint_(std::move(hint)) {}

PeerFailed::PeerFailed(Rank peer, std::string cause, ErrorContext context)
    : CommError("rank " + std::to_string(peer.value) + " failed: " + cause, std::move(context)),
      peer_(peer),
      cause_(std::move(cause)) {}

}  // namespace penstock
