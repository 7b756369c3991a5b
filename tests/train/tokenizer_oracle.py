"""Trains tokenizers on generated text with the package `tokenizers` and writes the tokens of sample texts, for tokenizer_test.cpp.

Usage: python3 tokenizer_oracle.py FOLDER SEED. For each split pattern NAME writes NAME.json, and for each sample text
NAME-I.txt, NAME-I.tokens and NAME-I.decoded, the text of the tokens.
"""
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"gpt2": None, "llama3": WORDS % r"\p{N}{1,3}", "qwen2": WORDS % r"\p{N}", "neox": None}
COMPOSING = ("qwen2", "neox")  # these have the normalizer NFC
ADDED = ["<|endoftext|>", "<|end", "<|user|>", "\u2402 two words"]
SCRIPTS = ["Die Straße führt über 12 Brücken, don't you THINK'S so? It'll be I'VE  ",
           "В лесу родилась ёлочка 1984 года.\r\n\r\n", "我能吞下玻璃而不伤身体。三百二十一 ①②③\n", "مرحبا بالعالم ١٢٣ ", "नमस्ते दुनिया १२३\t\t",
           "ガラスを食べられます。 それは私を傷つけません。", "def f(x):\n    return x**2  # ½ of x\n\n\n", "🙂👩‍👩‍👧 naïve café ﬁ ’s 'ſ 'Tis\u00a0\u3000\u2028x ",
           "cafe\u0301 A\u030a \u1112\u1161\u11ab\u1100\u1173\u11af q\u0307\u0323 \u212b\ufb1f\u0958 I\u0307'S"]


def code_points(generator, count):
    """Characters of Unicode that this Python knows: whatever a tokenizer knows of newer ones may differ."""
    text = ""
    while len(text) < count:
        plane = generator.choice([0x80, 0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000])
        code = generator.randrange(plane)
        if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co"):
            text += chr(code)
    return text


def sample(generator):
    parts = []
    for _ in range(generator.randrange(1, 30)):
        kind = generator.randrange(6)
        if kind == 0:
            parts.append(code_points(generator, generator.randrange(1, 12)))
        elif kind == 1:
            parts.append("".join(generator.choice(" \t\r\n\u00a0\u3000'") for _ in range(generator.randrange(1, 6))))
        elif kind == 2:
            parts.append(str(generator.randrange(10 ** generator.randrange(1, 9))))
        elif kind == 3:
            parts.append(generator.choice(ADDED + ["<|endoftext", "<|"]))
        else:
            text = generator.choice(SCRIPTS)
            start = generator.randrange(len(text))
            parts.append(text[start:start + generator.randrange(1, 40)])
    return "".join(parts)


def make(name, pattern, generator):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), split])
    tokenizer.pre_tokenizer = split
    if name in COMPOSING:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=[AddedToken(text, normalized=False) for text in ADDED[:2]])
    tokenizer.train_from_iterator([text for text in SCRIPTS for _ in range(4)] + [sample(generator) for _ in range(50)], trainer)
    tokenizer.add_tokens([AddedToken(ADDED[2], normalized=True)])
    tokenizer.add_special_tokens([AddedToken(ADDED[3], normalized=False)])
    return tokenizer


def main():
    folder, seed = sys.argv[1], int(sys.argv[2])
    generator = random.Random(seed)
    for name, pattern in PATTERNS.items():
        tokenizer = make(name, pattern, generator)
        tokenizer.save(f"{folder}/{name}.json", pretty=name == "qwen2")
        texts = SCRIPTS + ["", " ", "\n", "  a", "a  ", "x" * 3000] + [sample(generator) for _ in range(60)]
        for index, text in enumerate(texts):
            with open(f"{folder}/{name}-{index}.txt", "wb") as out:
                out.write(text.encode())
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            with open(f"{folder}/{name}-{index}.tokens", "w") as out:
                out.write(" ".join(map(str, ids)))
            with open(f"{folder}/{name}-{index}.decoded", "wb") as out:
                out.write((tokenizer.decode(ids, skip_special_tokens=False) if name in COMPOSING else text).encode())


main()
