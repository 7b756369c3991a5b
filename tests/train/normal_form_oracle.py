"""Writes texts and their normalization form C, for normal_form_test.cpp.

Usage: python3 normal_form_oracle.py FOLDER SEED. Writes texts.txt and composed.txt, with a line for each text: all code points that this
version of Python knows, their decompositions, and random strings, mostly of characters that compose and of marks.
"""
import random
import sys
import unicodedata


def is_assigned(code):
    return unicodedata.category(chr(code)) not in ("Cs", "Cn")


def main():
    folder, generator = sys.argv[1], random.Random(int(sys.argv[2]))
    known = [chr(code) for code in range(0x110000) if is_assigned(code)]
    marks = [character for character in known if unicodedata.combining(character)]
    composing = [part for character in known for part in unicodedata.normalize("NFD", character)
                 if unicodedata.normalize("NFD", character) != character]
    composing += [chr(code) for first, last in ((0x1100, 0x1113), (0x1161, 0x1176), (0x11a7, 0x11c3)) for code in range(first, last)]
    texts = known + [unicodedata.normalize("NFD", character) for character in known]
    texts += [character + "\u0323\u0307" for character in known]
    for _ in range(30000):
        kinds = [generator.choice((known, marks, marks, composing, composing)) for _ in range(generator.randrange(2, 12))]
        texts.append("".join(generator.choice(kind) for kind in kinds))
    texts = [text for text in texts if "\n" not in text]
    with open(f"{folder}/texts.txt", "wb") as out:
        out.write("".join(text + "\n" for text in texts).encode())
    with open(f"{folder}/composed.txt", "wb") as out:
        out.write("".join(unicodedata.normalize("NFC", text) + "\n" for text in texts).encode())


main()
