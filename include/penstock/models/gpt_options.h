// Options of the built-in GPT and the description of its parts. This header does not include libtorch.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::models {

//! The activation of the feed-forward.
enum class FeedForwardKind { Gelu, SwiGlu };
//! How the model encodes positions.
enum class PositionKind { Rotary, Learned };

//! The architecture of the model.
struct GptOptions {
  std::int64_t vocabulary = 65;
  std::int64_t context = 128;  //!< maximum sequence length
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  //! Width of the feed-forward; default: 4 * width, or for SwiGLU 8/3 * width rounded up to a multiple of 8.
  std::optional<std::int64_t> hidden{};
  FeedForwardKind feed_forward = FeedForwardKind::Gelu;
  PositionKind positions = PositionKind::Rotary;
  bool tied = true;   //!< the head shares the weight of the token embedding
  bool bias = false;  //!< linear layers have a bias
  double dropout = 0;

  std::int64_t head_width() const { return width / heads; }
  //! `hidden` or its default.
  std::int64_t hidden_width() const;
};

//! Which part of the model a module contains. The parts of all stages, in order, form the complete model.
struct GptPart {
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;  //!< exclusive
  bool has_embedding = false;  //!< takes tokens; otherwise the output of the previous part
  bool has_head = false;       //!< returns logits

  //! The complete model.
  static GptPart full(const GptOptions& options) { return {0, options.layers, true, true}; }
};

}  // namespace penstock::models
