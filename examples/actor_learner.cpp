// Reinforcement learning with data parallelism: proximal policy optimization (PPO) of a cart that balances a
// pole. Each rank is an actor, which collects steps of its own carts with the current policy, and a learner,
// which updates the policy; DistributedDataParallel averages the gradients. Start it with `penstock run
// --ranks 2 -- ./actor_learner`; without a launcher it runs as a single rank. Expected output: the same
// losses for 1, 2 and 4 ranks, and a trained policy that balances the pole many times longer than a random
// one.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace ps = penstock;

namespace {

constexpr int kCarts = 16, kHorizon = 64, kIterations = 30, kEpochs = 8, kLongest = 200, kWidth = 32;
constexpr double kDiscount = 0.98, kTrace = 0.95, kClip = 0.2, kEntropy = 0.01, kRate = 3e-3;

// A pole on a cart, which is pushed to the left or to the right. An episode ends when the pole falls or the
// cart leaves its track. Each cart has random numbers of its own, so that its episodes do not depend on the
// rank that runs it.
class CartPole {
 public:
  explicit CartPole(std::uint64_t seed) : random_(seed) { restart(); }

  void restart() {
    for (double& value : state) value = 0.1 * uniform() - 0.05;
    steps = 0;
  }

  // Pushes for 20 ms. The accelerations follow from the equations of motion of both masses without friction.
  void push(bool right) {
    constexpr double gravity = 9.8, cart = 1.0, pole = 0.1, half_length = 0.5, force = 10.0, time = 0.02;
    auto& [x, speed, angle, turn] = state;
    const double sine = std::sin(angle), cosine = std::cos(angle), mass = cart + pole;
    const double thrust = ((right ? force : -force) + pole * half_length * turn * turn * sine) / mass;
    const double turning =
        (gravity * sine - cosine * thrust) / (half_length * (4.0 / 3.0 - pole * cosine * cosine / mass));
    speed += time * (thrust - pole * half_length * turning * cosine / mass);
    turn += time * turning;
    x += time * speed;
    angle += time * turn;
    ++steps;
  }

  bool fell() const { return std::abs(state[0]) > 2.4 || std::abs(state[2]) > 0.21; }
  bool ended() const { return fell() || steps == kLongest; }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  std::array<double, 4> state{};
  int steps = 0;

 private:
  std::mt19937_64 random_;
};

// Maps states to two numbers each: the logit of a push to the right, and the value of the state.
struct PolicyImpl : torch::nn::Module {
  PolicyImpl() {
    actor = register_module("actor", network());
    critic = register_module("critic", network());
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.dim() > 1 ? parameter.normal_(0, 0.3, generator) : parameter.zero_();
    to(torch::kDouble);  // so that the order of sums changes no action
  }
  static torch::nn::Sequential network() {
    using namespace torch::nn;
    return Sequential(Linear(4, kWidth), Tanh(), Linear(kWidth, kWidth), Tanh(), Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& states) {
    return torch::cat({actor->forward(states), critic->forward(states)}, -1);
  }
  torch::nn::Sequential actor{nullptr}, critic{nullptr};
};
TORCH_MODULE(Policy);

torch::Tensor states_of(const std::vector<CartPole>& carts, const torch::Device& device) {
  std::vector<double> numbers;
  for (const CartPole& cart : carts) numbers.insert(numbers.end(), cart.state.begin(), cart.state.end());
  return torch::tensor(numbers, torch::kDouble).view({-1, 4}).to(device);
}

// The logarithm of the probability of each action: 1 for a push to the right, 0 to the left.
torch::Tensor log_probability(const torch::Tensor& logits, const torch::Tensor& actions) {
  return torch::log_sigmoid(torch::where(actions.gt(0), logits, -logits));
}

// What an actor has collected: kHorizon steps of each cart, as tensors [kHorizon * carts].
struct Experience {
  torch::Tensor states, actions, log_probabilities, advantages, returns;
};

// Rewards are 1 - kDiscount per step, so that values lie between 0 and 1. The advantages are the generalized
// estimates: discounted sums of the errors of the values, up to the end of the episode.
void estimate_advantages(Experience& experience, const torch::Tensor& values,
                         const torch::Tensor& next_values, const torch::Tensor& fell,
                         const torch::Tensor& ended) {
  const torch::Tensor errors = (1 - kDiscount) + kDiscount * next_values * (1 - fell) - values;
  std::vector<torch::Tensor> advantages(kHorizon);
  torch::Tensor sum = torch::zeros_like(errors[0]);
  for (int step = kHorizon - 1; step >= 0; --step) {
    sum = errors[step] + kDiscount * kTrace * (1 - ended[step]) * sum;
    advantages[static_cast<std::size_t>(step)] = sum;
  }
  experience.advantages = torch::stack(advantages).flatten();
  experience.returns = experience.advantages + values.flatten();
}

Experience collect(Policy& policy, std::vector<CartPole>& carts, const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> states, next_states;
  std::vector<double> actions, fell, ended;
  for (int step = 0; step < kHorizon; ++step) {
    states.push_back(states_of(carts, device));
    const torch::Tensor right = policy(states.back()).select(1, 0).sigmoid().cpu();
    for (std::size_t i = 0; i < carts.size(); ++i) {
      const bool action = carts[i].uniform() < right.data_ptr<double>()[i];
      carts[i].push(action);
      actions.push_back(action ? 1 : 0);
      fell.push_back(carts[i].fell() ? 1 : 0);
      ended.push_back(carts[i].ended() ? 1 : 0);
    }
    next_states.push_back(states_of(carts, device));
    for (CartPole& cart : carts)
      if (cart.ended()) cart.restart();
  }
  const auto per_step = [&](const std::vector<double>& numbers) {
    return torch::tensor(numbers, torch::kDouble).view({kHorizon, -1}).to(device);
  };
  const torch::Tensor outputs = policy(torch::stack(states));
  Experience experience{torch::cat(states), per_step(actions).flatten()};
  experience.log_probabilities = log_probability(outputs.select(2, 0).flatten(), experience.actions);
  estimate_advantages(experience, outputs.select(2, 1), policy(torch::stack(next_states)).select(2, 1),
                      per_step(fell), per_step(ended));
  return experience;
}

// Scales the advantages of all ranks to mean 0 and deviation 1.
void normalize(torch::Tensor& advantages, const ps::World& world) {
  const torch::Tensor sums =
      torch::stack({advantages.sum(), advantages.square().sum(), torch::ones_like(advantages).sum()});
  world.group().all_reduce(sums);
  const torch::Tensor mean = sums[0] / sums[2];
  advantages = (advantages - mean) / (sums[1] / sums[2] - mean.square() + 1e-8).sqrt();
}

torch::Tensor loss_of(const torch::Tensor& outputs, const Experience& experience) {
  const torch::Tensor logits = outputs.select(1, 0), values = outputs.select(1, 1);
  const torch::Tensor ratio =
      (log_probability(logits, experience.actions) - experience.log_probabilities).exp();
  const torch::Tensor gain =
      torch::min(ratio * experience.advantages, ratio.clamp(1 - kClip, 1 + kClip) * experience.advantages);
  const torch::Tensor right = logits.sigmoid();
  const torch::Tensor entropy =
      -right * torch::log_sigmoid(logits) - (1 - right) * torch::log_sigmoid(-logits);
  return (values - experience.returns).square().mean() - gain.mean() - kEntropy * entropy.mean();
}

// The mean length of one episode per cart; of random pushes if there is no policy.
double mean_return(Policy* policy, std::vector<CartPole> carts, const ps::World& world) {
  const torch::NoGradGuard no_grad;
  torch::Tensor total = torch::zeros({}, torch::TensorOptions(torch::kDouble).device(world.device()));
  for (CartPole& cart : carts) {
    for (cart.restart(); !cart.ended();)
      cart.push(policy == nullptr ? cart.uniform() < 0.5
                                  : (*policy)(states_of({cart}, world.device()))[0][0].item<double>() > 0);
    total += cart.steps;
  }
  world.group().all_reduce(total);
  return total.item<double>() / kCarts;
}

// The carts of this rank. Seeds are those of the carts, not of the ranks.
std::vector<CartPole> make_carts(const ps::World& world, int first_seed) {
  std::vector<CartPole> carts;
  for (int cart = world.rank().value; cart < kCarts; cart += world.size())
    carts.emplace_back(first_seed + cart);
  return carts;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  ps::World world = ps::init({.device = torch::Device(argc > 1 ? argv[1] : "cpu")});
  if (kCarts % world.size() != 0) {
    std::fprintf(stderr, "the number of ranks must divide %d\n", kCarts);
    return 1;
  }
  const bool reports = world.rank().value == 0;
  Policy policy;
  policy->to(world.device());
  ps::DistributedDataParallel ddp(policy, world.group());
  torch::optim::Adam optimizer(policy->parameters(), torch::optim::AdamOptions(kRate));
  std::vector<CartPole> carts = make_carts(world, 1);
  const std::vector<CartPole> test_carts = make_carts(world, 1001);
  const double random = mean_return(nullptr, test_carts, world);
  if (reports) std::printf("random policy: mean return %.1f\n", random);

  for (int step = 1; step <= kIterations; ++step) {
    const double left = 1 - (step - 1.0) / kIterations;  // the rate falls to 0: a good policy stays
    optimizer.param_groups()[0].options().set_lr(kRate * left);
    Experience experience = collect(policy, carts, world.device());
    normalize(experience.advantages, world);
    torch::Tensor loss;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      optimizer.zero_grad();
      loss = loss_of(ddp.forward(experience.states), experience);
      loss.backward();  // averages gradients over the ranks while it runs
      optimizer.step();
    }
    if (step % 10 != 0) continue;
    loss = loss.detach();
    world.group().all_reduce(loss, ps::ReduceOp::Avg);
    const double now = mean_return(&policy, test_carts, world);
    if (reports) std::printf("step %d loss %.6f mean return %.1f\n", step, loss.item<double>(), now);
  }
}
