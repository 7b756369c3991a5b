// Unicode normalization form C, which some tokenizers apply to a text first.
#pragma once

#include <string>
#include <string_view>

namespace penstock::train {

//! Whether a text is certainly in this form, because all its characters precede the marks. Fast.
bool precedes_marks(std::string_view text);

//! Decomposes characters, sorts their marks and composes them: `e` and U+0301 become `é`. Throws UsageError
//! with the offset if the text is not valid UTF-8.
std::string composed_form(std::string_view text);

}  // namespace penstock::train
