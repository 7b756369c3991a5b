// Tables of Unicode for its normalization forms, as text: hexadecimal numbers, with a space after each item.
#pragma once

#include <string_view>

namespace penstock::train {

//! `CODE=FIRST,SECOND` or `CODE=FIRST`, with a `!` at the end if the parts are not composed again. Without
//! the syllables of Hangul, which follow a formula.
extern const std::string_view kDecompositions;
//! `CODE=CLASS` or `FIRST-LAST=CLASS`; all other classes are 0.
extern const std::string_view kCombiningClasses;

}  // namespace penstock::train
