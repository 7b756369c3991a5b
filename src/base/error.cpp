// Formats error messages.
#include <penstock/base/error.h>

#include <utility>

namespace penstock {
namespace {

std::string compose(const std::string& message, const ErrorContext& context, const std::string& hint) {
  std::string text = message;
  if (const std::string where = to_string(context); !where.empty()) text += " (" + where + ")";
  if (!hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace

std::string to_string(const ErrorContext& context) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (context.rank) add("rank " + std::to_string(context.rank->value));
  if (context.stage) add("stage " + std::to_string(context.stage->value));
  if (context.microbatch) add("microbatch " + std::to_string(context.microbatch->value));
  if (!context.action.empty()) add("action " + context.action);
  if (!context.tensor.empty()) add("tensor " + context.tensor);
  if (!context.op.empty()) add("op " + context.op);
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
