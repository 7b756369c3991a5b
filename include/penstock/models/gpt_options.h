// The sizes and kinds of the built-in GPT, and the parts it can be cut into; light, for those who only pass
// them on.
#pragma once

#include <cstdint>

namespace penstock::models {

enum class FeedForwardKind { Gelu, SwiGlu };
enum class PositionKind { Rotary, Learned };

struct GptOptions {
  std::int64_t vocabulary = 65;
  std::int64_t context = 128;  //!< the longest sequence
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t hidden =
      0;  //!< width of the feed-forward; 0: 4 times the width, for SwiGLU 8/3 rounded up to 8s
  FeedForwardKind feed_forward = FeedForwardKind::Gelu;
  PositionKind positions = PositionKind::Rotary;
  bool tied = true;   //!< whether the head is the token table
  bool bias = false;  //!< of the linear layers
  double dropout = 0;

  std::int64_t head_width() const { return width / heads; }
  std::int64_t hidden_width() const;
};

//! Which part of the model a module holds. The parts of all stages, in order, are the whole.
struct GptPart {
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;  //!< one after the last
  bool embeds = false;         //!< takes tokens; otherwise what the part before gives
  bool predicts = false;       //!< gives logits

  static GptPart whole(const GptOptions& options) { return {0, options.layers, true, true}; }
};

}  // namespace penstock::models
