// Generates an artificial language with number agreement and nested clauses, which a small model learns in a
// minute.
#include <penstock/train/data.h>

#include <array>
#include <random>

namespace penstock::train {
namespace {

//! Draws one number after the other: in an expression with two draws, their order would be the compiler's
//! choice.
class Grammar {
 public:
  explicit Grammar(std::uint64_t seed) : random_(seed) {}

  std::string sentence() {
    const bool plural = chance(2);
    std::string text = noun_phrase(plural, 2) + " ";
    text += verb(plural) + " ";
    text += noun_phrase(chance(2), 1);
    if (chance(3)) {
      text += pick(kConjunctions);
      text += noun_phrase(plural, 0) + " ";
      text += verb(plural);
    }
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text + (chance(5) ? "!\n" : ".\n");
  }

 private:
  bool chance(unsigned one_in) { return random_() % one_in == 0; }
  template <class List>
  const char* pick(const List& list) {
    return list[random_() % list.size()];
  }
  std::string noun_phrase(bool plural, int depth) {
    std::string text = plural ? "the " : "a ";
    if (chance(2)) text += std::string(pick(kAdjectives)) + " ";
    text += std::string(pick(kNouns)) + (plural ? "s" : "");
    if (depth > 0 && chance(4)) {
      text += " that " + verb(plural) + " ";
      text += noun_phrase(chance(2), depth - 1);
    }
    return text;
  }
  std::string verb(bool plural) { return std::string(pick(kVerbs)) + (plural ? "" : "s"); }

  std::mt19937_64 random_;
  static constexpr std::array<const char*, 10> kNouns{"king",  "river", "letter", "sailor", "garden",
                                                      "storm", "horse", "window", "crown",  "friend"};
  static constexpr std::array<const char*, 8> kVerbs{"follow", "remember", "find",  "keep",
                                                     "fear",   "greet",    "leave", "praise"};
  static constexpr std::array<const char*, 7> kAdjectives{"quiet",   "golden", "bitter", "young",
                                                          "distant", "broken", "merry"};
  static constexpr std::array<const char*, 4> kConjunctions{", and ", ", but ", ", while ", ", for "};
};

}  // namespace

std::string generated_text(std::size_t bytes, std::uint64_t seed) {
  Grammar grammar(seed);
  std::string text;
  while (text.size() < bytes) text += grammar.sentence();
  return text;
}

}  // namespace penstock::train
