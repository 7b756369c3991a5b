"""Trains tokenizers on generated text with the package `tokenizers` and writes the tokens of sample texts, for tokenizer_test.cpp.

Usage: python3 tokenizer_oracle.py FOLDER SEED. For each family NAME writes NAME.json, with the structure of the files of
well-known models, and NAME.cases: a list of texts, their tokens, and the text of the tokens. Families random0 to random19
have random steps.
"""
import json
import random
import sys
import unicodedata

from tokenizers import Tokenizer, pre_tokenizers, trainers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SCRIPTS = ["Die Straße führt über 12 Brücken, don't you THINK'S so? It'll be I'VE  ",
           "В лесу родилась ёлочка 1984 года.\r\n\r\n", "我能吞下玻璃而不伤身体。三百二十一 ①②③\n", "مرحبا بالعالم ١٢٣ ", "नमस्ते दुनिया १२३\t\t",
           "ガラスを食べられます。 それは私を傷つけません。", "def f(x):\n    return x**2  # ½ of x\n\n\n", "🙂👩‍👩‍👧 naïve café ﬁ ’s 'ſ 'Tis\u00a0\u3000\u2028x ",
           "cafe\u0301 A\u030a \u1112\u1161\u11ab\u1100\u1173\u11af q\u0307\u0323 \u212b\ufb1f\u0958 I\u0307'S",
           "The quick brown fox jumps over the lazy dog, and then the dog sleeps. "]
MARK = "\u2581"


def split(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def split_at(text, behavior):
    return {"type": "Split", "pattern": {"String": text}, "behavior": behavior, "invert": False}


def byte_level(prefix=False, words=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": words}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": splits}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def strip(left, right):
    return {"type": "Strip", "content": " ", "start": left, "stop": right}


NFC, PREPEND, SPACES = {"type": "NFC"}, {"type": "Prepend", "prepend": MARK}, replace(" ", MARK)
BYTES, FALLBACK, FUSE = byte_level(), {"type": "ByteFallback"}, {"type": "Fuse"}
LLAMA = {"normalizer": [PREPEND, SPACES], "splits": [], "decoder": [replace(MARK, " "), FALLBACK, FUSE, strip(1, 0)],
         "bytes": 256,  # that have tokens; None: byte-level
         "trained": [metaspace("always", True)]}  # steps that only the training has
GPT2 = {"normalizer": [], "splits": [byte_level()], "decoder": [BYTES], "bytes": None}
FAMILIES = {
    "gpt2": GPT2,
    "llama3": {**GPT2, "splits": [split(WORDS % r"\p{N}{1,3}"), byte_level(words=False)], "ignore_merges": True},
    "qwen2": {**GPT2, "normalizer": [NFC], "splits": [split(WORDS % r"\p{N}"), byte_level(words=False)]},
    "neox": {**GPT2, "normalizer": [NFC]},
    "starcoder": {**GPT2, "splits": [digits(True), byte_level()]},
    "commands": {**GPT2, "normalizer": [NFC], "splits": [digits(False), byte_level(prefix=True)]},
    "prefixed": {**GPT2, "splits": [byte_level(prefix=True)]},
    "steps": {**GPT2, "splits": [split(WORDS % r"\p{N}"), digits(True), split_at("e", "MergedWithNext"), byte_level(True, True)]},
    "undivided": {**GPT2, "normalizer": [replace("  ", " ")], "splits": [byte_level(words=False)]},
    "llama2": LLAMA,
    "llama2_normalized": {**LLAMA, "normalized": True},
    "gemma": {"normalizer": [SPACES], "splits": [split_at(" ", "MergedWithPrevious")], "bytes": 256, "extra": ["\n\n", MARK * 2, MARK * 5],
              "decoder": [replace(MARK, " "), FALLBACK, FUSE], "fuse_unk": True},
    "phi3": {**LLAMA, "strips": True},
    "mistral": {**LLAMA, "normalizer": [], "splits": [metaspace("first", False)], "ignore_merges": True},
    "always": {**LLAMA, "normalizer": [NFC], "splits": [metaspace("always", True)], "decoder": [FALLBACK, metaspace("always", True)]},
    "never": {**LLAMA, "normalizer": [], "splits": [metaspace("never", True)], "decoder": [metaspace("never", True)]},
    "first": {**LLAMA, "normalizer": [], "splits": [digits(True), metaspace("first", True)],
              "decoder": [metaspace("first", True), FALLBACK]},
    "unknown": {**LLAMA, "bytes": 0, "unk": True, "fuse_unk": True},
    "unfused": {**LLAMA, "normalizer": [], "splits": [split_at(" ", "MergedWithNext")], "decoder": None, "bytes": 0, "unk": True,
                "strips": True},
    "partial": {**LLAMA, "bytes": 200, "unk": True, "fuse_unk": True},
}


def random_family(generator):
    """Any combination of steps that is supported."""
    family = {"decoder": [], "strips": generator.random() < 0.3, "normalized": generator.random() < 0.3,
              "normalizer": generator.sample([NFC, PREPEND, SPACES, replace("e", "\u0435e"), replace("\n", " ")], generator.randrange(4)),
              "splits": generator.sample([digits(True), digits(False), split(WORDS % r"\p{N}"), split_at("a ", "MergedWithNext"),
                                          split_at("t", "MergedWithPrevious")], generator.randrange(3)),
              "ignore_merges": generator.random() < 0.3, "fuse_unk": generator.random() < 0.5, "unk": generator.random() < 0.5}
    if generator.random() < 0.3:
        return {**family, "splits": family["splits"] + [byte_level(generator.random() < 0.5, generator.random() < 0.5)], "decoder": [BYTES],
                "bytes": None}
    if generator.random() < 0.5:
        schemes = ["always", "never"] + ["first"] * (not family["normalizer"])
        family["splits"].insert(generator.randrange(3), metaspace(generator.choice(schemes), generator.random() < 0.5))
    decoder = [replace(MARK, " "), FALLBACK, FUSE, strip(1, 0), metaspace("always", True), replace("e", "E"), strip(2, 0)]
    return {**family, "decoder": generator.sample(decoder, generator.randrange(len(decoder))),
            "bytes": generator.choice([0, 128, 250]) if family["unk"] else 256,
            "trained": generator.choice([[], [metaspace("always", True)]])}


def code_points(generator, count):
    """Characters that this Python knows: whatever a tokenizer knows of newer ones may differ. Its normalizer is even older."""
    old = unicodedata.ucd_3_2_0
    text = ""
    while len(text) < count:
        plane = generator.choice([0x80, 0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000])
        char = chr(generator.randrange(plane))
        changed = any(getattr(old, name)(char) != getattr(unicodedata, name)(char) for name in ("combining", "decomposition"))
        if unicodedata.category(char) not in ("Cs", "Cn", "Co") and not changed:
            text += char
    return text


ADDED = ["<|endoftext|>", "<|end", "<|user|>", "\u2402 two words", "</s>", "<s>", " x"]


def sample(generator):
    parts = []
    for _ in range(generator.randrange(1, 30)):
        kind = generator.randrange(7)
        if kind == 0:
            parts.append(code_points(generator, generator.randrange(1, 12)))
        elif kind == 1:
            parts.append("".join(generator.choice(" \t\r\n\u00a0\u3000'") for _ in range(generator.randrange(1, 6))))
        elif kind == 2:
            parts.append(str(generator.randrange(10 ** generator.randrange(1, 9))))
        elif kind == 3:
            parts.append(generator.choice(ADDED + ["<|endoftext", "<|", "<unk>", "<0x41>", MARK, "\n\n", MARK * 3]))
        elif kind == 4:
            parts.append(generator.choice(" \nx=") * generator.randrange(1, 40))
        else:
            text = generator.choice(SCRIPTS)
            start = generator.randrange(len(text))
            parts.append(text[start:start + generator.randrange(1, 40)])
    return "".join(parts)


def sequence(name, steps):
    return {"type": "Sequence", name: steps} if steps is not None else None


def trained_model(family, generator):
    """Vocabulary and merges, trained on the samples."""
    steps = family["splits"] + family.get("trained", [])
    content = {"version": "1.0", "added_tokens": [], "normalizer": sequence("normalizers", family["normalizer"]),
               "pre_tokenizer": sequence("pretokenizers", steps), "model": {"type": "BPE", "vocab": {}, "merges": []}}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    limits = {"limit_alphabet": 90} if family["bytes"] is not None else {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, max_token_length=20, **limits)
    tokenizer.train_from_iterator([text for text in SCRIPTS for _ in range(4)] + [sample(generator) for _ in range(50)], trainer)
    return json.loads(tokenizer.to_str())["model"]


def added_tokens(family, vocabulary, generator):
    """In the format of a file. Ids of tokens that are not in the vocabulary continue it."""
    tokens = []
    for content in ADDED + family.get("extra", []):
        strips = family.get("strips", False) and content not in (" x", "\u2402 two words")
        normalized = content in ("<|user|>", "\u2402 two words") or (family.get("normalized", False) and content == "</s>")
        tokens.append({"id": vocabulary.get(content, len(vocabulary) + sum(token["id"] >= len(vocabulary) for token in tokens)),
                       "content": content, "single_word": False, "lstrip": strips and generator.random() < 0.5,
                       "rstrip": strips and generator.random() < 0.5, "normalized": normalized, "special": generator.random() < 0.5})
    return tokens


def make(family, generator):
    model = trained_model(family, generator)
    names = sorted(model["vocab"], key=model["vocab"].get)
    if family["bytes"] is not None:
        left_out = set(generator.sample(range(256), 256 - family["bytes"]))
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if byte not in left_out]
        names = special + family.get("extra", []) + names
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(pair) for pair in model["merges"]]
    merges += generator.sample(merges, 3)  # the last one of a pair counts
    if generator.random() < 0.5 and not any(" " in part for pair in merges for part in pair):
        merges = [" ".join(pair) for pair in merges]
    steps = family["splits"]
    splits = steps[0] if len(steps) == 1 else sequence("pretokenizers", steps) if steps else None
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens(family, vocabulary, generator),
            "normalizer": sequence("normalizers", family["normalizer"]) if family["normalizer"] else None, "pre_tokenizer": splits,
            "post_processor": None, "decoder": sequence("decoders", family["decoder"]),
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>" if family.get("unk") else None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": family.get("fuse_unk", False),
                      "byte_fallback": bool(family["bytes"]), "ignore_merges": family.get("ignore_merges", False), "vocab": vocabulary, "merges": merges}}


def main():
    folder, seed = sys.argv[1], int(sys.argv[2])
    generator = random.Random(seed)
    for name, family in list(FAMILIES.items()) + [(f"random{index}", random_family(generator)) for index in range(20)]:
        content = json.dumps(make(family, generator), ensure_ascii=generator.random() < 0.5)
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as out:
            out.write(content)
        tokenizer = Tokenizer.from_str(content)
        texts = SCRIPTS + ["", " ", "\n", "  a", "a  ", "x" * 3000, MARK, "".join(SCRIPTS) * 3] + [sample(generator) for _ in range(60)]
        cases = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "tokens": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        with open(f"{folder}/{name}.cases", "w", encoding="utf-8") as out:
            json.dump(cases, out)


main()
