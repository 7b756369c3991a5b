// docs/errors.md: the arguments of a run.
extern const ps::train::Model& model;
extern const ps::train::DataSource& data;
extern ps::train::RunOptions options;
