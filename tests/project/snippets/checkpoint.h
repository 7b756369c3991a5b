// docs/checkpoint.md: the step of the training loop.
extern std::int64_t step;
