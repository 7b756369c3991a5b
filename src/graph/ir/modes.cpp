// Enters and leaves modes like Python's context managers: each autocast region has its own cast cache.
#include "graph/ir/modes.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

namespace penstock::graph {

ModeGuard::ModeGuard(const NodeMode& mode) : grad_(c10::GradMode::is_enabled()) {
  switch (mode.grad) {
    case GradFlag::Inherit:
      break;
    case GradFlag::On:
      c10::GradMode::set_enabled(true);
      break;
    case GradFlag::Off:
      c10::GradMode::set_enabled(false);
      break;
  }
  for (const Autocast& cast : mode.autocast) {
    saved_.push_back({cast.device, at::autocast::get_autocast_dtype(cast.device),
                      at::autocast::is_autocast_enabled(cast.device),
                      at::autocast::is_autocast_cache_enabled()});
    at::autocast::set_autocast_enabled(cast.device, cast.enabled);
    at::autocast::set_autocast_dtype(cast.device, cast.dtype);
    at::autocast::set_autocast_cache_enabled(cast.cache);
    at::autocast::increment_nesting();
  }
}

ModeGuard::~ModeGuard() {
  for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved) {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(saved->device, saved->enabled);
    at::autocast::set_autocast_dtype(saved->device, saved->dtype);
    at::autocast::set_autocast_cache_enabled(saved->cache);
  }
  c10::GradMode::set_enabled(grad_);
}

}  // namespace penstock::graph
