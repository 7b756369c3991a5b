// Classes of code points, as the split patterns of tokenizers use them.
#pragma once

namespace penstock::train {

bool is_letter(char32_t code);  //!< `\p{L}`
bool is_number(char32_t code);  //!< `\p{N}`
bool is_space(char32_t code);   //!< `\s`

}  // namespace penstock::train
