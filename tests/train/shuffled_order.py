# The order of shuffled examples, as docs/training.md defines it. Prints the permutation of each argument
# SIZE,SEED,NUMBER on a line.
import sys

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def scramble(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def permutation(size, seed, number):
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    key = scramble(scramble(seed + GOLDEN & MASK) + number * GOLDEN & MASK)
    keys = [scramble(key + r * GOLDEN & MASK) for r in range(1, 9)]

    def permuted(x):
        while True:
            left, right = x >> half, x & 2**half - 1
            for k in keys:
                left, right = right, left ^ scramble(right + k & MASK) & 2**half - 1
            x = left << half | right
            if x < size:
                return x

    return [permuted(i) for i in range(size)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(*permutation(*map(int, argument.split(","))))
