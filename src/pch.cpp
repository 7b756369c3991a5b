// Owns the precompiled header that the torch side shares.
