// docs/parallel.md: the units of a model; the stages of a pipeline; a mesh.
extern torch::nn::Sequential module;
extern std::shared_ptr<torch::nn::Module> block0, block1;
extern ps::PipelineOptions options;
extern std::vector<ps::PipelineStage> stages;
extern int pp, num_stages;
extern at::Device device;
extern const ps::DeviceMesh mesh;
extern at::Tensor weight;
extern ps::Pipe pipe;
extern ps::StageId stage;
