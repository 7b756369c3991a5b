// docs/gpus.md: the module of a stage.
extern torch::nn::Sequential module;
extern ps::StageId index;
extern int num_stages;
