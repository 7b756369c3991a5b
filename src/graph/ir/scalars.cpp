// Arithmetic on sizes. As in Python, integers stay integers and integer division rounds down.
#include "graph/ir/scalars.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <cmath>

namespace penstock::graph {
namespace {

using c10::IValue;

[[noreturn]] void refuse(ScalarOp op, const std::string& why) {
  throw UsageError("scalar::" + std::string(to_string(op)) + " " + why);
}

bool is_integer(const IValue& value) {
  return value.isInt() || value.isBool();
}

std::int64_t to_integer(ScalarOp op, const IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  refuse(op, "needs integers");
}

double to_real(ScalarOp op, const IValue& value) {
  if (value.isDouble()) return value.toDouble();
  return static_cast<double>(to_integer(op, value));
}

std::int64_t power(ScalarOp op, std::int64_t base, std::int64_t exponent) {
  if (exponent > 62 && base != 0 && base != 1 && base != -1) refuse(op, "overflows");
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < exponent && i < 64; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) refuse(op, "overflows");
  }
  if (exponent > 62 && base == -1) return exponent % 2 == 0 ? 1 : -1;
  return result;
}

std::int64_t checked(ScalarOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflow = op == ScalarOp::Add   ? __builtin_add_overflow(a, b, &result)
                        : op == ScalarOp::Sub ? __builtin_sub_overflow(a, b, &result)
                                              : __builtin_mul_overflow(a, b, &result);
  if (overflow) refuse(op, "overflows");
  return result;
}

std::int64_t floor_div(ScalarOp op, std::int64_t a, std::int64_t b) {
  if (b == 0) refuse(op, "divides by zero");
  if (b == -1) return checked(ScalarOp::Sub, 0, a);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

IValue arithmetic(ScalarOp op, const IValue& a, const IValue& b) {
  const bool both = is_integer(a) && is_integer(b);
  switch (op) {
    case ScalarOp::Add:
      return both ? IValue(checked(op, to_integer(op, a), to_integer(op, b)))
                  : IValue(to_real(op, a) + to_real(op, b));
    case ScalarOp::Sub:
      return both ? IValue(checked(op, to_integer(op, a), to_integer(op, b)))
                  : IValue(to_real(op, a) - to_real(op, b));
    case ScalarOp::Mul:
      return both ? IValue(checked(op, to_integer(op, a), to_integer(op, b)))
                  : IValue(to_real(op, a) * to_real(op, b));
    case ScalarOp::FloorDiv:
      if (both) return floor_div(op, to_integer(op, a), to_integer(op, b));
      return std::floor(to_real(op, a) / to_real(op, b));
    case ScalarOp::Mod:
      if (both)
        return checked(
            ScalarOp::Sub, to_integer(op, a),
            checked(ScalarOp::Mul, floor_div(op, to_integer(op, a), to_integer(op, b)), to_integer(op, b)));
      return to_real(op, a) - std::floor(to_real(op, a) / to_real(op, b)) * to_real(op, b);
    case ScalarOp::Pow:
      if (both && to_integer(op, b) >= 0) return power(op, to_integer(op, a), to_integer(op, b));
      return std::pow(to_real(op, a), to_real(op, b));
    case ScalarOp::Max:
      return both ? IValue(std::max(to_integer(op, a), to_integer(op, b)))
                  : IValue(std::max(to_real(op, a), to_real(op, b)));
    case ScalarOp::Min:
      return both ? IValue(std::min(to_integer(op, a), to_integer(op, b)))
                  : IValue(std::min(to_real(op, a), to_real(op, b)));
    default:
      refuse(op, "is not an arithmetic operator");
  }
}

IValue to_int(ScalarOp op, const IValue& value) {
  if (is_integer(value)) return to_integer(op, value);
  const double number = std::trunc(value.toDouble());
  if (!(std::abs(number) < 9.2e18)) refuse(op, "overflows");
  return static_cast<std::int64_t>(number);
}

IValue bits(ScalarOp op, const IValue& a, const IValue& b) {
  if (a.isBool() && b.isBool())
    return op == ScalarOp::And ? a.toBool() && b.toBool() : a.toBool() || b.toBool();
  return op == ScalarOp::And ? to_integer(op, a) & to_integer(op, b) : to_integer(op, a) | to_integer(op, b);
}

IValue shift(ScalarOp op, std::int64_t a, std::int64_t by) {
  if (by < 0 || by > 62) refuse(op, str_cat("can shift by 0 to 62 bits, not by ", by));
  if (op == ScalarOp::RightShift) return a >> by;
  return checked(ScalarOp::Mul, a, std::int64_t{1} << by);
}

}  // namespace

std::size_t scalar_arity(ScalarOp op) {
  switch (op) {
    case ScalarOp::Neg:
    case ScalarOp::Pos:
    case ScalarOp::Not:
    case ScalarOp::Int:
    case ScalarOp::Float:
    case ScalarOp::Sqrt:
    case ScalarOp::Trunc:
      return 1;
    case ScalarOp::Ite:
      return 3;
    default:
      return 2;
  }
}

IValue evaluate(ScalarOp op, std::span<const IValue> operands) {
  if (operands.size() != scalar_arity(op)) refuse(op, str_cat("takes ", scalar_arity(op), " operands"));
  for (const IValue& operand : operands) {
    if (!is_integer(operand) && !operand.isDouble()) refuse(op, "needs numbers");
  }
  const IValue& a = operands[0];
  const auto b = [&]() -> const IValue& { return operands[1]; };
  switch (op) {
    case ScalarOp::Add:
    case ScalarOp::Sub:
    case ScalarOp::Mul:
    case ScalarOp::FloorDiv:
    case ScalarOp::Mod:
    case ScalarOp::Pow:
    case ScalarOp::Max:
    case ScalarOp::Min:
      return arithmetic(op, a, b());
    case ScalarOp::TrueDiv:
      if (to_real(op, b()) == 0) refuse(op, "divides by zero");
      return to_real(op, a) / to_real(op, b());
    case ScalarOp::Neg:
      return is_integer(a) ? IValue(checked(ScalarOp::Sub, 0, to_integer(op, a))) : IValue(-to_real(op, a));
    case ScalarOp::Pos:
      return a;
    case ScalarOp::Eq:
      return to_real(op, a) == to_real(op, b());
    case ScalarOp::Ne:
      return to_real(op, a) != to_real(op, b());
    case ScalarOp::Lt:
      return to_real(op, a) < to_real(op, b());
    case ScalarOp::Le:
      return to_real(op, a) <= to_real(op, b());
    case ScalarOp::Gt:
      return to_real(op, a) > to_real(op, b());
    case ScalarOp::Ge:
      return to_real(op, a) >= to_real(op, b());
    case ScalarOp::And:
    case ScalarOp::Or:
      return bits(op, a, b());
    case ScalarOp::Not:
      return to_real(op, a) == 0;
    case ScalarOp::Int:
    case ScalarOp::Trunc:
      return to_int(op, a);
    case ScalarOp::Float:
      return to_real(op, a);
    case ScalarOp::Sqrt:
      return std::sqrt(to_real(op, a));
    case ScalarOp::Ite:
      return to_real(op, a) != 0 ? operands[1] : operands[2];
    case ScalarOp::LeftShift:
    case ScalarOp::RightShift:
      return shift(op, to_integer(op, a), to_integer(op, b()));
  }
  refuse(op, "is unknown");
}

}  // namespace penstock::graph
